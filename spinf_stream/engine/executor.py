"""What runs a layout on a device. torch_executor.py runs anywhere, gpu/ with fused kernels."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from spinf_stream.engine.forest import Layout
from spinf_stream.engine.stack import Stack
from spinf_stream.questions.plan import F64


class Fetched(NamedTuple):
    """One layout's reads, in its order of reads and candidates."""

    cand: F64  # [c] log-probability over the whole vocabulary; the soft-capped logit at reads without read_norm
    end: F64  # [r] log P(next token does not start with a letter or digit); 0 where read_end is False
    seconds: float  # device or compute time
    trunks: tuple[Any, ...] = ()  # keys and values of the trees in Layout.kept, in that order; for grow.py


class Executor(Protocol):
    """`launch` and `fetch` are called in the same order, launch from one thread and fetch from another.

    Raise seam.OutOfMemory and seam.EngineFatal for what the device says; anything else counts as the articles' fault.
    """

    stack: Stack
    bit_exact: bool
    default_budget: int  # rows a pass
    numerics: dict[str, object]  # everything beside the weights that touches a bit: goes into the fingerprint

    def launch(self, layout: Layout) -> Any:
        """Start a pass; returns at once on a GPU."""
        ...

    def fetch(self, handle: Any) -> Fetched:
        """Wait for a pass."""
        ...
