"""Searched slots: beam search with the peer's constants (section 4.2 of its description).

Two things differ. A number that has begun to go on and then does not ("5," and a word) ends where it was last complete, so
its probability is not lost: every path ends somewhere, and answers.py cuts the text to its longest number. And a path that
nothing can extend has ended, without a further row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spinf_stream.slots.automaton import NEVER, Automaton
from spinf_stream.slots.plan import BEAM, MIN_P, REL_P
from spinf_stream.slots.program import Ending, Program, Read, Wanted


class Beam(NamedTuple):
    row: int
    state: int
    tokens: tuple[int, ...]
    logprob: float


class Search(Program):
    top = BEAM

    def __init__(self, template: Sequence[int], automaton: Automaton, max_tokens: int) -> None:
        super().__init__(template, automaton)
        self.left = max_tokens
        self.best = 0.0  # the best answer so far, of one path
        self.beams = [Beam(self.stem, 0, (), 0.0)]
        self._ask()

    def feed(self, reads: Sequence[Read]) -> None:
        self._level(reads)
        self._ask()

    def _ask(self) -> None:
        self.wanted = [Wanted(b.row, b.state) for b in self.beams]

    def _level(self, reads: Sequence[Read]) -> None:
        """One token further. reads: one for each beam."""
        for beam, read in zip(self.beams, reads):
            if beam.tokens:
                self._end(beam, read)
        self.beams = self._extend(reads) if self.left else []
        self.left -= 1

    def _extensions(self, beam: Beam, read: Read) -> Iterable[tuple[int, float]]:
        return [(t, p) for t, p in zip(read.token[:BEAM], read.logprob[:BEAM]) if t >= 0]

    def _floor(self, likeliest: float) -> float:
        """Log-probability under which a path is not followed; `likeliest` is that of the most probable one."""
        return math.log(max(MIN_P, REL_P * self.best))

    def _row(self, beam: Beam, token: int) -> int:
        return self.add(token, beam.row)

    def _end(self, beam: Beam, read: Read) -> None:
        a = self.automaton
        if a.rest:
            p = self.rest(read)
            self._ending(beam.tokens, beam.logprob + math.log(p), 0, bool(a.final[beam.state]))
            return
        taken = int(a.taken[beam.state])
        for p, cut in ((read.first, 0), (read.second, taken)) if taken else ((read.first + read.second, 0),):
            if p > 0:
                self._ending(beam.tokens, beam.logprob + math.log(p), cut, True)

    def _ending(self, tokens: tuple[int, ...], logprob: float, taken: int, counts: bool) -> None:
        self.endings.append(Ending(tokens, logprob, taken))
        if counts:
            self.best = max(self.best, math.exp(logprob))

    def _extend(self, reads: Sequence[Read]) -> list[Beam]:
        found = [
            (beam.logprob + logprob, i, token)
            for i, (beam, read) in enumerate(zip(self.beams, reads))
            for token, logprob in self._extensions(beam, read)
        ]  # fmt: skip
        floor = self._floor(max((f[0] for f in found), default=0.0))
        out: list[Beam] = []
        for logprob, i, token in sorted(found, key=lambda c: (-c[0], c[1], c[2])):
            if logprob < floor:
                break
            old = self.beams[i]
            state = self.automaton.after(old.state, token)
            assert state != NEVER
            if not self.automaton.open[state]:
                self._ending((*old.tokens, token), logprob, 0, True)
            elif len(out) < BEAM:
                out.append(Beam(self._row(old, token), state, (*old.tokens, token), logprob))
        return out
