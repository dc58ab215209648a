"""Decoding on an executor: rows that grow below the trunks that a pass has kept.

A pass keeps the keys and values of some trees' trunks (Layout.kept). Every decode step then adds rows below them; a row
attends the trunk, the rows above it on its own path, and itself. Its keys and values stay in the executor's pool of *own
rows*, so that any later row may have it on its path: moving or splitting a beam copies nothing, and slots, trees and
passes are decoded together, whatever they are. Who uses which own row is the caller's book-keeping.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from spinf_stream.questions.plan import F64, I32, I64
from spinf_stream.slots.automaton import Automaton


class Step(NamedTuple):
    """n new rows, r reads, c picks. Rows of one trunk lie together; a row comes after those on its path."""

    trunks: tuple[Any, ...]  # [g] as Fetched.trunks has them
    length: I32  # [g] tokens of each trunk
    trunk: I32  # [n] index into trunks, non-decreasing
    token: I32  # [n]
    position: I32  # [n]
    path: I64  # [n, L] own rows from the trunk down, the row's own one last; -1 = padding behind it. Entry j is at position
    #            length[trunk] + j
    read: I64  # [r] rows of this step whose next token is read
    automata: tuple[Automaton, ...]
    automaton: I32  # [r] index into automata
    state: I32  # [r] its state there
    pick_ptr: I64  # [r+1]
    pick: I32  # [c] tokens whose log-probability is wanted
    top: int  # the best so many extensions are wanted

    @property
    def rows(self) -> int:
        return len(self.token)


class Grown(NamedTuple):
    """All over the whole vocabulary."""

    token: I32  # [r, top] extensions in the read's state, the most probable first, ties by id; -1 where there are fewer
    logprob: F64  # [r, top] -inf where there are fewer
    first: F64  # [r] probability of the automaton's `first` tokens in that state
    second: F64  # [r] likewise of `second`
    pick: F64  # [c] log-probabilities
    seconds: float  # device or compute time


@runtime_checkable
class Grower(Protocol):
    """An executor that can also decode. `grow` is called from the thread that fetches. Raises as Executor does."""

    def grow(self, step: Step) -> Grown: ...
