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
from spinf_stream.slots.program import FLOOR, Ending, Program, Read, Wanted


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
        """(token, its log-probability); a token -1 is none."""
        return zip(read.token, read.logprob)

    def _floor(self, reads: Sequence[Read]) -> float:
        """Log-probability under which a path is not followed."""
        return math.log(max(MIN_P, REL_P * self.best))

    def _row(self, beam: Beam, tokens: tuple[int, ...]) -> int:
        """Of the path that a beam goes on to."""
        return self.add(tokens[-1], beam.row)

    def _end(self, beam: Beam, read: Read) -> None:
        a = self.automaton
        if a.rest:  # P(a number ends here), before marks are weighed
            self._ending(beam.tokens, beam.logprob + math.log(p if (p := 1.0 - read.first) > FLOOR else FLOOR), 0, a.final.item(beam.state))
            return
        taken = a.taken.item(beam.state)
        for p, cut in ((read.first, 0), (read.second, taken)) if taken else ((read.first + read.second, 0),):
            if p > 0:
                self._ending(beam.tokens, beam.logprob + math.log(p), cut, True)

    def _ending(self, tokens: tuple[int, ...], logprob: float, taken: int, counts: bool) -> None:
        self.endings.append(Ending(tokens, logprob, taken))
        if counts and (p := math.exp(logprob)) > self.best:
            self.best = p

    def _extend(self, reads: Sequence[Read]) -> list[Beam]:
        floor = self._floor(reads)
        found = [
            (-p, i, token)  # in the order in which they are followed
            for i, (beam, read) in enumerate(zip(self.beams, reads))
            for token, of in self._extensions(beam, read)
            if (p := beam.logprob + of) >= floor and token >= 0
        ]  # fmt: skip
        a = self.automaton
        out: list[Beam] = []
        for minus, i, token in sorted(found):
            full = len(out) == BEAM
            if full and token not in a.closing:
                continue
            old = self.beams[i]
            state = a.after(old.state, token)
            assert state != NEVER
            tokens = (*old.tokens, token)
            if not a.open.item(state):
                self._ending(tokens, -minus, 0, True)
            elif not full:
                out.append(Beam(self._row(old, tokens), state, tokens, -minus))
        return out
