"""All slots that are being decoded, of whatever trees and passes, one step at a time.

A step serves every program that waits, first come, first served, up to ROWS rows and SEQUENCES generations; what does not
fit waits for a later step. The rows of a program are the executor's own rows while it runs, and free again afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.engine.grow import Grower, Grown, Step
from spinf_stream.slots.program import Program, Read

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
        self.paths: list[list[int]] = []  # own rows from the trunk down to each row computed so far
        self.rows = 0  # computed in all
        self.seconds = 0.0
        self.finite = True  # False: it was given up

    @property
    def fresh(self) -> int:
        return len(self.program.token) - len(self.paths)


class Decoder:
    def __init__(self, grower: Grower) -> None:
        self.grower = grower
        self.live: list[Live] = []  # in order of arrival
        self.free: list[int] = []
        self.used = 0  # own rows 0 .. used-1 have been given out at some time

    def add(self, owner: Any, place: tuple[int, int], below: Below, program: Program) -> None:
        self.live.append(Live(owner, place, below, program))

    def drop(self, owner: Any) -> None:
        """Forget what belongs to this owner."""
        for live in [a for a in self.live if a.owner is owner]:
            self._end(live)

    def advance(self) -> list[Live]:
        """One step; the programs that are done with it. Raises what the executor raises; then nothing has moved."""
        chosen = self._choose()
        if not chosen:
            return []
        before = [len(a.paths) for a in chosen]
        try:
            step = self._step(chosen)
            grown = self.grower.grow(step)
        except BaseException:
            for live, n in zip(chosen, before):
                self._shorten(live, n)
            raise
        done: list[Live] = []
        reads, sound = _reads(grown, step)
        at = 0
        for live, n in zip(chosen, before):
            fresh, until = len(live.paths) - n, at + len(live.program.wanted)
            live.rows += fresh
            live.seconds += grown.seconds * fresh / max(1, step.rows)
            live.finite = all(sound[at:until])
            if live.finite:
                live.program.feed(reads[at:until])
            if not live.finite or not live.program.wanted:
                self._end(live)
                done.append(live)
            at = until
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
        rows: list[tuple[int, int]] = []  # trunk, token
        paths: list[list[int]] = []
        reads: list[tuple[int, int, int]] = []  # row, automaton, state
        picks: list[Sequence[int]] = []
        for live in chosen:
            program, known = live.program, len(live.paths)
            first = len(rows) - known
            for token, parent in zip(program.token[known:], program.parent[known:]):
                live.paths.append([*(live.paths[parent] if parent >= 0 else ()), self._row()])
                rows.append((trunk_of[id(live.below.trunk)], token))
            paths += live.paths[known:]
            for want in program.wanted:
                if want.row < known:
                    raise AssertionError("a row is read in the step that computes it")
                reads.append((first + want.row, automaton_of[id(program.automaton)], want.state))
                picks.append(want.picks)
        length = np.array([len(p) for p in paths], np.int32)
        path = np.full((len(paths), int(length.max())), -1, np.int64)
        for i, p in enumerate(paths):
            path[i, : len(p)] = p
        trunk, token = np.array(rows, np.int32).T
        base = np.array(list({id(a.below.trunk): a.below.length for a in chosen}.values()), np.int32)
        read, automaton, state = np.array(reads, np.int32).reshape(-1, 3).T
        counts = np.cumsum([0, *map(len, picks)]).astype(np.int64)
        return Step(
            tuple(trunks), base, trunk, token, base[trunk] + length - 1, path, read.astype(np.int64), tuple(automata), automaton, state,
            counts, np.array([t for p in picks for t in p], np.int32), max(a.program.top for a in chosen),
        )  # fmt: skip

    def _row(self) -> int:
        if self.free:
            return self.free.pop()
        self.used += 1
        return self.used - 1

    def _shorten(self, live: Live, rows: int) -> None:
        self.free += [p[-1] for p in live.paths[rows:]]
        del live.paths[rows:]

    def _end(self, live: Live) -> None:
        self._shorten(live, 0)
        self.live.remove(live)


def _reads(grown: Grown, step: Step) -> tuple[list[Read], list[bool]]:
    """Each read as plain numbers, and whether it is finite. -inf stands only where there is no extension."""
    sound = np.isfinite(np.where(grown.token >= 0, grown.logprob, 0.0)).all(1) & np.isfinite(grown.first) & np.isfinite(grown.second)
    bad = np.flatnonzero(~np.isfinite(grown.pick))
    sound[np.searchsorted(step.pick_ptr, bad, side="right") - 1] = False
    pick, ptr = grown.pick.tolist(), step.pick_ptr.tolist()
    columns = zip(grown.token.tolist(), grown.logprob.tolist(), grown.first.tolist(), grown.second.tolist(), ptr, ptr[1:])
    return [Read(t, p, a, b, pick[lo:hi]) for t, p, a, b, lo, hi in columns], sound.tolist()
