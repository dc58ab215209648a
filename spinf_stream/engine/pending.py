"""A pass between its reads and its answers: slots that are still being decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from spinf_stream.engine.seam import HOWS, Copies, Found, NonFinite, PassInput, PassOutput, TreeOutput
from spinf_stream.questions.plan import I32
from spinf_stream.slots.automaton import Automaton
from spinf_stream.slots.copying import Copy, CopyNumbers, CopyText, Pieces, Spellings
from spinf_stream.slots.decoding import Live
from spinf_stream.slots.generate import Generate
from spinf_stream.slots.plan import Slot, SlotPlan
from spinf_stream.slots.program import Ending, Program
from spinf_stream.slots.search import Search

_Kind = TypeVar("_Kind", Spellings, Pieces)
_HOW = {"search": 0, "copy_numbers": 1, "copy_text": 1, "generate": 2}  # into HOWS


class PendingPass:
    """seam.Pending. `of` has the slot plan of each tree, None for one without."""

    def __init__(self, trees: Sequence[TreeOutput], of: Sequence[SlotPlan | None], seconds: float, rows: int) -> None:
        self.trees, self.of, self.seconds, self.rows = list(trees), of, seconds, rows
        self.endings: list[list[Sequence[Ending]]] = [[()] * len(p.slots) if p else [] for p in of]
        self.slot_rows = [0] * len(of)
        self.rows_by = [0] * len(HOWS)
        self.slot_seconds = 0.0
        self.left = 0  # programs in the decoder
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.left == 0 or self.error is not None

    def take(self, live: Live) -> None:
        """A program that is done."""
        tree, slot = live.place
        self.left -= 1
        plan = self.of[tree]
        assert plan is not None
        self.slot_rows[tree] += live.rows
        self.rows_by[_HOW[plan.slots[slot].how]] += live.rows
        self.slot_seconds += live.seconds
        self.endings[tree][slot] = live.program.endings
        if not live.finite:
            self.error = NonFinite(tree, "a log-probability of a slot")

    def output(self) -> PassOutput:
        if self.error is not None:
            raise self.error
        trees = [
            tree if plan is None else tree._replace(slots=found(self.endings[i], self.slot_rows[i]))
            for i, (tree, plan) in enumerate(zip(self.trees, self.of))
        ]
        return PassOutput(tuple(trees), self.seconds, self.rows, 0, sum(self.slot_rows), tuple(self.rows_by), self.slot_seconds)


def programs(plan: SlotPlan, batch: PassInput, tree: int) -> list[Program]:
    """One a slot of the tree. Raises ValueError for a slot that lacks what its kind needs."""
    ids = batch.ids[batch.start[tree] : batch.start[tree + 1]]
    copied = Copied(batch.copies, tree)
    return [program(slot, plan.automata[slot.automaton], ids, copied, i) for i, slot in enumerate(plan.slots)]


def program(slot: Slot, automaton: Automaton, ids: I32, copied: Copied, index: int) -> Program:
    """ids: the trunk's. index: of the slot."""
    template = slot.template.tolist()
    if slot.how == "search":
        return Search(template, automaton, slot.max_tokens)
    if slot.how == "generate":
        if slot.sampling is None:
            raise ValueError("a generated slot says how")
        return Generate(template, automaton, slot.max_tokens, slot.sampling, sample_key(slot, ids))
    if slot.how == "copy_numbers":
        return CopyNumbers(template, copied.of(index, automaton, Spellings))
    return CopyText(template, slot.max_tokens, copied.of(index, automaton, Pieces))


class Copied:
    """What the slots of one tree may copy. Slots that may copy the same share what is made of it."""

    def __init__(self, copies: Copies | None, tree: int) -> None:
        self.copies = copies
        self.entry: dict[int, int] = {}  # slot -> entry of copies
        if copies is not None:
            lo, hi = np.searchsorted(copies.tree, [tree, tree + 1]).tolist()
            self.entry = dict(zip(copies.slot[lo:hi].tolist(), range(lo, hi)))
        self.made: dict[tuple[Any, ...], Any] = {}

    def of(self, slot: int, automaton: Automaton, kind: type[_Kind]) -> _Kind:
        """kind: Spellings or Pieces."""
        if self.copies is None or slot not in self.entry:
            raise ValueError("a copy-only slot comes with what may be copied")
        copy: Copy = Copy.of(self.copies, self.entry[slot])
        key = (kind, id(automaton), *(column.tobytes() for column in copy))
        if key not in self.made:
            self.made[key] = kind(automaton, copy)
        made: _Kind = self.made[key]
        return made


def sample_key(slot: Slot, ids: I32) -> tuple[int, int]:
    """What a sample depends on, beside its number and step: the trunk, the template, the seed."""
    seed = slot.sampling.seed if slot.sampling else 0
    h = hashlib.blake2b(digest_size=16)
    for part in (ids, slot.template, np.array([seed], np.int64)):
        raw = np.ascontiguousarray(part).tobytes()
        h.update(len(raw).to_bytes(8, "little") + raw)
    low, high = np.frombuffer(h.digest(), "<u8").tolist()
    return low, high


def found(endings: Sequence[Sequence[Ending]], rows: int) -> Found:
    flat = [e for of_slot in endings for e in of_slot]
    return Found(
        np.cumsum([0, *map(len, endings)]).astype(np.int64),
        np.cumsum([0, *(len(e.tokens) for e in flat)]).astype(np.int64),
        np.array([t for e in flat for t in e.tokens], np.int32),
        np.array([e.logprob for e in flat], np.float64),
        np.array([e.taken for e in flat], np.int32),
        np.array([e.complete for e in flat], np.bool_),
        rows,
    )
