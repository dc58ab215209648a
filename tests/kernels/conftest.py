"""The interpreter and opcode checks need their own pair of Triton and numpy (DECISIONS 23): `make test-kernels`."""

from __future__ import annotations

import importlib.metadata as md


def _kernel_environment() -> bool:
    return md.version("triton") == "3.6.0" and tuple(map(int, md.version("numpy").split(".")[:2])) < (2, 4)


collect_ignore = [] if _kernel_environment() else ["test_interpreted.py", "test_compiled.py"]
