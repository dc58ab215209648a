"""The seam between the worker and the engine: frozen structs of arrays, and nothing else crosses it.

Only numpy arrays and plain numbers, so that the engine can move into a process of its own over shared memory
without another change (DECISIONS 19).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from spinf_stream.questions.plan import F64, I32, I64, Bool, Plan
from spinf_stream.slots.plan import SlotPlan


class Copies(NamedTuple):
    """What the copy-only slots of a pass may copy, one entry a tree and slot.

    Numbers: a forest of candidate spellings in pre-order. Text: the article's tokens, one after another.
    """

    tree: I32  # [c] non-decreasing
    slot: I32  # [c] of the tree's slot plan, ascending within a tree
    ptr: I64  # [c+1] entry i has the nodes ptr[i] .. ptr[i+1]-1
    token: I32  # [n] -1 in text = a break that no answer spans
    link: I32  # [n] numbers: the parent, counted from the entry's first node, -1 = the template. Text: the token that an
    #            answer which begins here begins with, -1 = none does
    state: I32  # [n] numbers: the automaton's state after the node. Text: 0
    ends: Bool  # [n] numbers: a candidate ends here. Text: false


class PassInput(NamedTuple):
    """The trees of one pass. A tree is one trunk (BOS + content ids) with the branches of one registered plan."""

    ids: I32  # [sum of trunk lengths] token ids of all trunks, one after another
    start: NDArray[np.int64]  # [A+1] trunk i is ids[start[i]:start[i+1]], never empty
    plan: I32  # [A] index of a registered plan
    copies: Copies | None = None

    @property
    def trees(self) -> int:
        return len(self.plan)


class Found(NamedTuple):
    """What was extracted below one trunk. An *ending* is one token path that ended as an answer in one way."""

    ptr: I64  # [S+1] endings of slot i are ptr[i] .. ptr[i+1]-1, in the order of discovery; of generated slots one a sequence
    token_ptr: I64  # [E+1]
    token: I32  # token ids, without the template
    logprob: F64  # [E] of the path and of its end
    taken: I32  # [E] characters at its end that are no part of the answer: they began the stop text that ended it
    complete: Bool  # [E] False: cut at max_tokens (generated ones alone)
    rows: int  # rows computed for this tree's slots


class TreeOutput(NamedTuple):
    """What one tree's plan read: a row of numbers for each of its arrays. Finite, or the engine has raised."""

    cand: F64  # [C] log-probability over the whole vocabulary; the raw (soft-capped) logit at reads with read_norm False
    end: F64  # [R] log-probability that the next token does not start with a letter or digit; 0 where read_end is False
    slots: Found | None = None  # with a slot plan


HOWS = ("searched", "copied", "generated")  # slots


class PassOutput(NamedTuple):
    trees: tuple[TreeOutput, ...]
    busy_seconds: float  # device (or compute) time of the pass
    tokens: int  # rows computed: trunks, branches
    padding: int  # rows computed that belong to nobody
    slot_rows: int = 0  # rows decoded for slots, not among `tokens`
    slot_rows_by: tuple[int, ...] = (0, 0, 0)  # of those, by HOWS
    slot_seconds: float = 0.0  # time of those, not among `busy_seconds`; of a step shared with other passes its share by rows


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

    def register(self, plan: Plan, slots: SlotPlan | None = None) -> int:
        """Make a plan usable, return its index. Registering the same objects again returns the same index."""
        ...

    def submit(self, batch: PassInput) -> Any: ...

    def collect(self, handle: Any) -> PassOutput: ...


class Pending(Protocol):
    """A pass whose reads are done and whose slots are being decoded."""

    done: bool  # nothing is left to decode, or it failed

    def output(self) -> PassOutput:
        """Once done. Raises what `collect` raises."""
        ...


@runtime_checkable
class Decoding(Protocol):
    """An engine whose slots are decoded step by step, so that passes and steps can take turns (runner.py).

    Both are called from the thread that collects; `collect(h)` is `begin(h)` and then `advance()` until that pass is done.
    """

    def begin(self, handle: Any) -> Pending:
        """As collect, without waiting for slots."""
        ...

    def advance(self) -> None:
        """One decode step of all that is pending."""
        ...
