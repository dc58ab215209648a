"""The seam between the worker and the engine: frozen structs of arrays, and nothing else crosses it.

Only numpy arrays and plain numbers, so that the engine can move into a process of its own over shared memory
without another change (DECISIONS 19).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spinf_stream.questions.plan import F64, I32, Plan


class PassInput(NamedTuple):
    """The trees of one pass. A tree is one trunk (BOS + content ids) with the branches of one registered plan."""

    ids: I32  # [sum of trunk lengths] token ids of all trunks, one after another
    start: NDArray[np.int64]  # [A+1] trunk i is ids[start[i]:start[i+1]], never empty
    plan: I32  # [A] index of a registered plan

    @property
    def trees(self) -> int:
        return len(self.plan)


class TreeOutput(NamedTuple):
    """What one tree's plan read: a row of numbers for each of its arrays. Finite, or the engine has raised."""

    cand: F64  # [C] log-probability over the whole vocabulary; the raw (soft-capped) logit at reads with read_norm False
    end: F64  # [R] log-probability that the next token does not start with a letter or digit; 0 where read_end is False


class PassOutput(NamedTuple):
    trees: tuple[TreeOutput, ...]
    busy_seconds: float  # device (or compute) time of the pass
    tokens: int  # rows computed: trunks, branches
    padding: int  # rows computed that belong to nobody


class EngineFault(RuntimeError):
    """The engine failed in a way that a retry of the same pass may survive (a device hiccup, a lost process)."""


class EngineFatal(RuntimeError):
    """The engine is gone (any CUDA error but out-of-memory): publish nothing more, fail readiness, exit 70."""


class OutOfMemory(EngineFault):
    """The pass did not fit: lower the budget, split it, try again."""


class NonFinite(RuntimeError):
    """A NaN or infinity came out of tree `tree` of the pass. Deterministic: the article is poison, not the pass."""

    def __init__(self, tree: int, what: str) -> None:
        super().__init__(f"tree {tree}: {what} is not finite")
        self.tree = tree


class Engine(Protocol):
    """Runs passes. `submit` is called from one thread and `collect` from another, in the same order (runner.py).

    `submit` starts a pass and returns at once where the device allows it, `collect` waits for it: with one pass
    submitted before the last is collected the device never waits for Python. Raises: EngineFault, OutOfMemory,
    EngineFatal, NonFinite, both from submit and from collect.
    """

    budget: int  # rows of one pass; lowered once after OutOfMemory
    bit_exact: bool  # every gate of this card passed

    def register(self, plan: Plan) -> int:
        """Make a plan usable, return its index. Registering an equal object again returns the same index."""
        ...

    def submit(self, batch: PassInput) -> Any: ...

    def collect(self, handle: Any) -> PassOutput: ...
