"""All slots that are being decoded, of whatever trees and passes, one step at a time.

A step serves every program that waits, first come, first served, up to ROWS rows and SEQUENCES generations; what does not
fit waits for a later step. The rows of a program are the executor's own rows while it runs, and free again afterwards.
Templates that begin alike below one trunk share the rows of what is alike, but never the last one: it is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.engine.grow import Grower, Grown, Step
from spinf_stream.questions.plan import I32, I64
from spinf_stream.slots.program import Program, Read, records

ROWS = 1024  # of one step
SEQUENCES = 64  # generations at once


class Below(NamedTuple):
    """Where a program's rows grow."""

    trunk: Any  # as Fetched.trunks has it
    length: int  # its tokens


class Live:
    """One program in the decoder, for an owner who gets it back when it is done; `place` is (tree, slot) there."""

    def __init__(self, owner: Any, place: tuple[int, int], below: Below, program: Program) -> None:
        self.owner, self.place, self.below, self.program = owner, place, below, program
        self.own = [-1]  # own[r + 1] = the own row of row r, for the rows computed so far; -1 = the trunk, as row -1 is
        self.rows = 0  # in all, shared ones too: what a program took does not depend on its company
        self.seconds = 0.0
        self.finite = True  # False: it was given up

    @property
    def fresh(self) -> int:
        return len(self.program.token) + 1 - len(self.own)


class Decoder:
    def __init__(self, grower: Grower) -> None:
        self.grower = grower
        self.live: list[Live] = []  # in order of arrival
        self.free: list[int] = []
        self.used = 0  # own rows 0 .. used-1 have been given out at some time
        self.begun: dict[tuple[int, int, int], int] = {}  # id of a trunk, own row above, token -> the row of a template there
        self.shared: dict[int, list[Any]] = {}  # such a row -> [how many programs have it, its key]
        self.above = np.full(ROWS, -1, np.int64)  # own row above each own row in use, -1 = the trunk; longer than `used`: the last is -1

    def add(self, owner: Any, place: tuple[int, int], below: Below, program: Program) -> None:
        self.live.append(Live(owner, place, below, program))

    def drop(self, owner: Any) -> None:
        """Forget what belongs to this owner."""
        self._end([a for a in self.live if a.owner is owner])

    def advance(self) -> list[Live]:
        """One step; the programs that are done with it. Raises what the executor raises; then nothing has moved."""
        chosen = self._choose()
        if not chosen:
            return []
        before = [len(a.own) for a in chosen]
        try:
            step = self._step(chosen)
            grown = self.grower.grow(step)
        except BaseException:
            for live, n in zip(chosen, before):
                self._shorten(live, n)
            raise
        done: list[Live] = []
        rows = sum(len(a.own) - n for a, n in zip(chosen, before))
        for live, n, (reads, finite) in zip(chosen, before, _reads(grown, step, chosen)):
            fresh = len(live.own) - n
            live.rows += fresh
            live.seconds += grown.seconds * fresh / max(1, rows)
            live.finite = finite
            if finite:
                live.program.feed(reads)
            if not finite or not live.program.wanted:
                done.append(live)
        self._end(done)
        return done

    def _choose(self) -> list[Live]:
        """Rows of one trunk together."""
        chosen: list[Live] = []
        rows = sequences = 0
        trunks: dict[int, int] = {}
        for live in self.live:
            if chosen and (rows + live.fresh > ROWS or sequences + live.program.sequences > SEQUENCES):
                continue
            chosen.append(live)
            trunks.setdefault(id(live.below.trunk), len(trunks))
            rows, sequences = rows + live.fresh, sequences + live.program.sequences
        return sorted(chosen, key=lambda a: trunks[id(a.below.trunk)])

    def _step(self, chosen: Sequence[Live]) -> Step:
        trunks = list({id(a.below.trunk): a.below.trunk for a in chosen}.values())
        automata = list({id(a.program.automaton): a.program.automaton for a in chosen}.values())
        trunk_of, automaton_of = ({id(x): i for i, x in enumerate(xs)} for xs in (trunks, automata))
        rows: list[int] = []
        above: list[int] = []
        token: list[int] = []
        fresh = []
        for live in chosen:
            program, own, begins = live.program, live.own, len(live.own) == 1
            if begins:
                self._share(live)
            until = len(own) - 1
            new = self._rows(len(program.token) - until)
            own += new
            rows += new
            above += [own[parent + 1] for parent in program.parent[until:]]
            token += program.token[until:]
            fresh.append(len(new))
            if begins:
                self._offer(live, until)
        path, length = self._paths(np.array(rows, np.int64), np.array(above, np.int64))
        base = np.array(list({id(a.below.trunk): a.below.length for a in chosen}.values()), np.int32)
        trunk = np.repeat(np.array([trunk_of[id(a.below.trunk)] for a in chosen], np.int32), fresh)
        wanted = [want for a in chosen for want in a.program.wanted]
        wants = [len(a.program.wanted) for a in chosen]
        known = np.array([len(a.program.token) for a in chosen]) - fresh
        rows_read, states, picks = zip(*wanted)
        row = np.array(rows_read, np.int64)
        if (row < np.repeat(known, wants)).any():
            raise AssertionError("a row is read in the step that computes it")
        return Step(
            tuple(trunks), base, trunk, np.array(token, np.int32), base[trunk] + length - 1, path,
            row + np.repeat(np.cumsum(fresh) - fresh - known, wants), tuple(automata),
            np.repeat(np.array([automaton_of[id(a.program.automaton)] for a in chosen], np.int32), wants),
            np.array(states, np.int32), np.array([0, *itertools.accumulate(map(len, picks))], np.int64),
            np.array(list(itertools.chain.from_iterable(picks)), np.int32), max(a.program.top for a in chosen),
        )  # fmt: skip

    def _rows(self, n: int) -> list[int]:
        """Own rows that are free; those that came free last are the first."""
        kept = max(0, len(self.free) - n)
        rows = self.free[kept:][::-1]
        del self.free[kept:]
        fresh = n - len(rows)
        rows += range(self.used, self.used + fresh)
        self.used += fresh
        if self.used >= len(self.above):
            self.above = np.concatenate([self.above, np.full(self.used, -1, np.int64)])
        return rows

    def _paths(self, rows: I64, above: I64) -> tuple[I64, I32]:
        """(Step.path for rows below `above`, how long each is [n]). All rows walk upwards together."""
        self.above[rows] = above
        levels = [rows]
        while above.max() >= 0:
            levels.append(above)
            above = self.above[above]
        upwards = np.array(levels[::-1]).T  # as it is to be, but that each row's padding stands in front
        there = upwards >= 0
        length = there.sum(1, dtype=np.int32)
        path = np.full(there.shape, -1, np.int64)
        path[np.arange(len(levels)) < length[:, None]] = upwards[there]
        return path, length

    def _share(self, live: Live) -> None:
        own, program = live.own, live.program
        for token in program.token[: program.stem]:
            row = self.begun.get((id(live.below.trunk), own[-1], token))
            if row is None:
                return
            own.append(row)
            self.shared[row][0] += 1

    def _offer(self, live: Live, known: int) -> None:
        """The rows of a template from `known` on to those that begin alike."""
        own, program = live.own, live.program
        for r in range(known, program.stem):
            key = (id(live.below.trunk), own[r], program.token[r])
            self.begun[key] = own[r + 1]
            self.shared[own[r + 1]] = [1, key]

    def _shorten(self, live: Live, known: int) -> None:
        for row in live.own[known:]:
            if row in self.shared:
                self.shared[row][0] -= 1
                if self.shared[row][0]:
                    continue
                del self.begun[self.shared.pop(row)[1]]
            self.free.append(row)
        del live.own[known:]

    def _end(self, done: Sequence[Live]) -> None:
        for live in done:
            self._shorten(live, 1)
        gone = set(map(id, done))
        self.live = [a for a in self.live if id(a) not in gone]


def _reads(grown: Grown, step: Step, chosen: Sequence[Live]) -> list[tuple[list[Read], bool]]:
    """Each program's reads as plain numbers, and whether they are finite. -inf stands only where there is no extension."""
    sound = np.isfinite(np.where(grown.token >= 0, grown.logprob, 0.0)).all(1) & np.isfinite(grown.first) & np.isfinite(grown.second)
    bad = np.flatnonzero(~np.isfinite(grown.pick))
    sound[np.searchsorted(step.pick_ptr, bad, side="right") - 1] = False
    finite, pick, ptr = sound.tolist(), grown.pick.tolist(), step.pick_ptr.tolist()
    wants = [len(a.program.wanted) for a in chosen]
    tops = np.repeat([a.program.top for a in chosen], wants)
    reads: dict[int, Iterator[Read]] = {}  # top -> the reads of all that want so many, in order
    for top in {a.program.top for a in chosen}:
        at = np.flatnonzero(tops == top)
        token, logprob = (x[at, :top].tolist() if top else itertools.repeat(()) for x in (grown.token, grown.logprob))
        picks = [pick[ptr[i] : ptr[i + 1]] for i in at.tolist()]
        reads[top] = iter(records(Read, token, logprob, grown.first[at].tolist(), grown.second[at].tolist(), picks))
    return [
        (list(itertools.islice(reads[live.program.top], n)), all(finite[end - n : end]))
        for live, n, end in zip(chosen, wants, itertools.accumulate(wants))
    ]  # fmt: skip
