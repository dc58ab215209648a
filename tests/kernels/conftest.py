"""The interpreter and opcode checks need their own pair of Triton and numpy (DECISIONS 23): `make test-kernels`.

There the interpreter is switched on before anything imports Triton; everywhere else those files are not collected.
"""

from __future__ import annotations

import importlib.metadata as md
import os


def _kernel_environment() -> bool:
    return md.version("triton") == "3.6.0" and tuple(map(int, md.version("numpy").split(".")[:2])) < (2, 4)


collect_ignore = ["test_interpreted.py", "test_compiled.py"]
if _kernel_environment():
    os.environ["TRITON_INTERPRET"] = "1"
    collect_ignore = ["test_executor.py"]  # runs with the suite
