"""Copy-only slots: the probability of what stands in the article, and of nothing else.

Numbers: the candidate spellings are one forest below the template, opened whole below what the model finds likely. Text: the
article's own token trie, opened like a search, and a little ahead of it. Likely is relative to the best, so that even an
unsure model has an answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spinf_stream.engine.seam import Copies
from spinf_stream.slots.automaton import NEVER, Automaton
from spinf_stream.slots.plan import REL_P
from spinf_stream.slots.program import FLOOR, Ending, Program, Read, Wanted
from spinf_stream.slots.search import Beam, Search

BEGINNINGS = 16  # rows of what numbers begin with
AHEAD = 2  # tokens below the likeliest path that are computed with it, while the article has one way on


class Copy(NamedTuple):
    """One entry of seam.Copies."""

    token: np.ndarray
    link: np.ndarray
    state: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, copies: Copies, entry: int) -> Copy:
        at = slice(int(copies.ptr[entry]), int(copies.ptr[entry + 1]))
        return cls(copies.token[at], copies.link[at], copies.state[at], copies.ends[at])


class CopyNumbers(Program):
    """First what numbers begin with (space, sign, currency), then whole numbers below the likely beginnings, until what was
    left out is less probable than REL_P of the best answer. Without candidates nothing is wanted: there is no answer."""

    def __init__(self, template: Sequence[int], automaton: Automaton, copy: Copy) -> None:
        super().__init__(template, automaton)
        self.node_token, self.state = copy.token.tolist(), copy.state.tolist()
        self.candidate = copy.ends.tolist()
        self.below: dict[int, list[int]] = {-1: []}  # node -> children, -1 = the template
        for node, link in enumerate(copy.link.tolist()):
            self.below[node] = []
            self.below[link].append(node)
        self.row = {-1: self.stem}  # node -> its row, once it is asked for
        self.path: dict[int, tuple[tuple[int, ...], float]] = {-1: ((), 0.0)}
        self.closed: list[int] = []  # nodes with nothing below them asked for yet
        self.best = -math.inf
        self.asked: list[int] = []
        if self.below[-1]:
            self._ask(self._beginnings())

    def _beginnings(self) -> list[int]:
        out, todo = [-1], list(self.below[-1])
        while todo:
            node = todo.pop(0)
            if self.automaton.final[self.state[node]] or not self.below[node] or len(out) > BEGINNINGS:
                self.closed.append(node)
            else:
                out.append(node)
                todo += self.below[node]
        return out

    def _ask(self, nodes: list[int]) -> None:
        """Parents before their children."""
        parent = {c: n for n in self.below for c in self.below[n]}
        for node in nodes:
            if node not in self.row:
                self.row[node] = self.add(self.node_token[node], self.row[parent[node]])
        self.asked = nodes
        self.wanted = [Wanted(self.row[n], self.state[n] if n >= 0 else 0, [self.node_token[c] for c in self.below[n]]) for n in nodes]

    def feed(self, reads: Sequence[Read]) -> None:
        of = dict(zip(self.asked, reads))
        for node in self.asked:
            tokens, logprob = self.path[node]
            for child, p in zip(self.below[node], of[node].pick):
                self.path[child] = (*tokens, self.node_token[child]), logprob + p
            if node >= 0 and self.candidate[node]:
                self.endings.append(Ending(tokens, logprob + math.log(self._end(node, of))))
                self.best = max(self.best, self.endings[-1].logprob)
        self._go_on()

    def _go_on(self) -> None:
        bar = self.best if self.endings else max((self.path[n][1] for n in self.closed), default=0.0)
        likely = [n for n in self.closed if self.path[n][1] >= bar + math.log(REL_P)]
        self.closed = [n for n in self.closed if n not in likely]
        self._ask([n for top in likely for n in self._whole(top)])

    def _whole(self, node: int) -> Iterator[int]:
        yield node
        for child in self.below[node]:
            yield from self._whole(child)

    def _end(self, node: int, of: dict[int, Read]) -> float:
        """P(the number ends here). A comma, point or space after it is taken for the end of the number, except for the part
        of it after which a candidate's digits follow."""
        read = of[node]
        p = 1.0 - (read.first - read.second)
        for k, child in enumerate(self.below[node]):
            at = self.automaton.column.get(self.node_token[child])
            if at is not None and self.automaton.second[self.state[node], at]:
                p -= math.exp(read.pick[k]) * of[child].first
        return max(p, FLOOR)


class CopyText(Search):
    """A search whose paths are pieces of the article. Rows below the likeliest beam are computed ahead, so that one step may
    serve several tokens; which paths are followed does not depend on that. Further ahead, or below every beam, a row costs more
    than the step that it may save (slots/__init__.py)."""

    top = 0

    def __init__(self, template: Sequence[int], automaton: Automaton, max_tokens: int, copy: Copy) -> None:
        self.max_tokens = max_tokens
        self.stream: list[int] = copy.token.tolist()
        self.below: dict[tuple[int, ...], dict[int, list[int]]] = {}  # path -> next token -> places where that token stands
        self.rows: dict[tuple[int, ...], int] = {}
        self.known: dict[int, Read] = {}  # row -> what was read there
        begins: dict[int, list[int]] = {}
        for place, first in enumerate(copy.link.tolist()):
            if first >= 0:
                begins.setdefault(first, []).append(place)
        self.below[()] = self._usable(automaton, 0, begins)
        super().__init__(template, automaton, max_tokens)
        if not begins:
            self.beams, self.wanted = [], []

    def feed(self, reads: Sequence[Read]) -> None:
        self.known.update(zip((w.row for w in self.wanted), reads))
        while self.beams and all(b.row in self.known for b in self.beams):
            self._level([self.known[b.row] for b in self.beams])
        self._ask()

    def _ask(self) -> None:
        self.wanted = []
        for rank, beam in enumerate(self.beams):  # the likeliest first
            self._open(beam.tokens, beam.row, beam.state, AHEAD if rank == 0 else 0)

    def _open(self, path: tuple[int, ...], row: int, state: int, ahead: int) -> None:
        """Ask for a row, and for those below it while there is one way on."""
        following = self._following(path, state)
        if row not in self.known:
            self.wanted.append(Wanted(row, state, list(following)))
        if not path or not ahead or len(path) == self.max_tokens or len(following) != 1:
            return
        (token,) = following
        after = self.automaton.after(state, token)
        if self.automaton.open[after]:
            self._open((*path, token), self._of(path, row, token), after, ahead - 1)

    def _following(self, path: tuple[int, ...], state: int) -> dict[int, list[int]]:
        if path not in self.below:
            found: dict[int, list[int]] = {}
            for place in self.below[path[:-1]][path[-1]]:
                if place + 1 < len(self.stream) and (token := self.stream[place + 1]) >= 0:
                    found.setdefault(token, []).append(place + 1)
            self.below[path] = self._usable(self.automaton, state, found)
        return self.below[path]

    @staticmethod
    def _usable(automaton: Automaton, state: int, found: dict[int, list[int]]) -> dict[int, list[int]]:
        return {t: found[t] for t in sorted(found) if automaton.after(state, t) != NEVER}

    def _of(self, path: tuple[int, ...], row: int, token: int) -> int:
        longer = (*path, token)
        if longer not in self.rows:
            self.rows[longer] = self.add(token, row)
        return self.rows[longer]

    def _extensions(self, beam: Beam, read: Read) -> Iterable[tuple[int, float]]:
        return zip(self._following(beam.tokens, beam.state), read.pick)

    def _floor(self, likeliest: float) -> float:
        return math.log(REL_P) + max(likeliest, math.log(self.best) if self.best > 0 else -math.inf)

    def _row(self, beam: Beam, token: int) -> int:
        return self._of(beam.tokens, beam.row, token)
