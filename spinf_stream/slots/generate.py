"""Generated slots: the most probable token each time, or a draw.

A draw's random number is that of the article, the slot, the seed, the sequence and the step (draws.py). So a sequence
depends on the request alone: not on what is decoded beside it, nor on how many sequences are asked for.

At temperature 0 the i-th of n sequences begins with the i-th most probable token and goes on greedily: n different answers
(the peer returns n copies, W33).
"""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spinf_stream.slots.automaton import Automaton
from spinf_stream.slots.draws import uniforms
from spinf_stream.slots.plan import Sampling
from spinf_stream.slots.program import Ending, Program, Read, Wanted

END = -1
NONE = -1  # stands in a read behind its last token


class Running(NamedTuple):
    number: int
    row: int
    state: int
    tokens: tuple[int, ...]
    logprob: float


class Generate(Program):
    def __init__(
        self, template: Sequence[int], automaton: Automaton, max_tokens: int, how: Sampling, key: tuple[int, int]
    ) -> None:
        """key: two 64-bit numbers that stand for the article, the slot and the seed."""
        super().__init__(template, automaton)
        self.how, self.max_tokens = how, max_tokens
        self.top = max(how.top_k, 1) if how.temperature > 0 else how.n
        self.sequences = how.n
        self.uniform = [uniforms(key, i, max_tokens) for i in range(how.n)] if how.temperature > 0 else []
        self.step = 0
        self.running = [Running(i, self.stem, 0, (), 0.0) for i in range(how.n)]
        self.ended: dict[int, Ending] = {}
        self.wanted = [Wanted(self.stem, 0)]  # all begin alike

    def feed(self, reads: Sequence[Read]) -> None:
        if self.step == 0:
            reads = [reads[0]] * len(self.running)
        going: list[Running] = []
        for s, read in zip(self.running, reads):
            token, logprob = self._choose(s, read)
            tokens, total = (*s.tokens, token), s.logprob + logprob
            if token == END:
                taken = self.automaton.taken.item(s.state) if read.second > read.first else 0
                self.ended[s.number] = Ending(s.tokens, total, taken)
                continue
            state = self.automaton.after(s.state, token)
            if not self.automaton.open.item(state):
                self.ended[s.number] = Ending(tokens, total)
            elif len(tokens) == self.max_tokens:
                self.ended[s.number] = Ending(tokens, total, 0, False)
            else:
                going.append(Running(s.number, self.add(token, s.row), state, tokens, total))
        self.running = going
        self.step += 1
        self.wanted = [Wanted(s.row, s.state) for s in going]
        if not going:
            self.endings = [self.ended[i] for i in sorted(self.ended)]

    def _choose(self, s: Running, read: Read) -> tuple[int, float]:
        """(token or END, its log-probability)."""
        stop = read.first + read.second
        end = math.log(stop) if stop > 0 else -math.inf
        if self.how.temperature > 0:
            return self._draw(s.number, end, read)
        tokens = [(t, p) for t, p in zip(read.token, read.logprob) if t >= 0]
        if self.step == 0 and s.number < len(tokens):
            ranked = [(END, end), *tokens] if not tokens or end >= tokens[0][1] else tokens
            return ranked[s.number]
        return (END, end) if not tokens or end >= tokens[0][1] else tokens[0]

    def _draw(self, sequence: int, end: float, read: Read) -> tuple[int, float]:
        """The end stands among the tokens, which come the most probable first; before those that are as probable."""
        there = len(read.token) - read.token.count(NONE)
        at = bisect.bisect_left(read.logprob, -end, 0, there, key=operator.neg)
        choices = [*read.logprob[:at], end, *read.logprob[at:there]]
        logs = np.array(choices) / self.how.temperature
        p = np.exp(logs - logs[0])
        p /= p.sum()
        mass = p.cumsum().tolist()
        kept = min(bisect.bisect_left(mass, self.how.top_p - 1e-12) + 1, len(mass))  # the smallest set that reaches top_p
        drawn = self.uniform[sequence][self.step] * mass[kept - 1]
        n = min(bisect.bisect_right(mass, drawn, 0, kept), kept - 1)
        return END if n == at else read.token[n - (n > at)], choices[n]
