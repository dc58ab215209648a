"""Copy-only slots: the probability of what stands in the article, and of nothing else.

Numbers: all candidate spellings are one forest below the template, read in a single step. Text: the article's own token
trie, opened a few levels at a time below the beginnings that the model finds likely.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from spinf_stream.engine.seam import Copies
from spinf_stream.slots.automaton import NEVER, Automaton
from spinf_stream.slots.program import FLOOR, Ending, Program, Read, Wanted
from spinf_stream.slots.search import Beam, Search

LEVELS = 4  # of the article's trie computed at once
FEW = 3  # branches of a path up to which they are computed ahead


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
    """Without candidates nothing is wanted: there is no answer."""

    def __init__(self, template: Sequence[int], automaton: Automaton, copy: Copy) -> None:
        super().__init__(template, automaton)
        self.copy = copy
        self.below: dict[int, list[int]] = {}  # node -> children, -1 = the template
        first = len(self.token)
        for node, (token, link) in enumerate(zip(copy.token.tolist(), copy.link.tolist())):
            self.add(token, first + link if link >= 0 else self.stem)
            self.below.setdefault(link, []).append(node)
        if self.below:
            nodes = [(-1, self.stem, 0), *((i, first + i, int(s)) for i, s in enumerate(copy.state.tolist()))]
            self.wanted = [Wanted(row, state, self.picks(i)) for i, row, state in nodes]

    def picks(self, node: int) -> list[int]:
        return [int(self.copy.token[c]) for c in self.below.get(node, ())]

    def feed(self, reads: Sequence[Read]) -> None:
        self.wanted = []
        of = dict(zip(range(-1, len(self.copy.token)), reads))
        path: dict[int, tuple[tuple[int, ...], float]] = {-1: ((), 0.0)}
        for node, link in enumerate(self.copy.link.tolist()):
            token, siblings = int(self.copy.token[node]), self.below[link]
            tokens, logprob = path[link]
            logprob += float(of[link].pick[siblings.index(node)])
            path[node] = tokens, logprob = (*tokens, token), logprob
            if self.copy.ends[node]:
                self.endings.append(Ending(tokens, logprob + math.log(self._end(node, of))))

    def _end(self, node: int, of: dict[int, Read]) -> float:
        """P(the number ends here). A comma, point or space after it is taken for the end of the number, except for the part
        of it after which a candidate's digits follow."""
        read = of[node]
        p = 1.0 - (read.first - read.second)
        state = int(self.copy.state[node])
        for k, child in enumerate(self.below.get(node, ())):
            at = int(np.searchsorted(self.automaton.token, self.copy.token[child]))
            if at < len(self.automaton.token) and self.automaton.second[state, at]:
                p -= math.exp(float(read.pick[k])) * of[child].first
        return max(p, FLOOR)


class CopyText(Search):
    """A search whose paths are pieces of the article. Rows below a beam are computed ahead, so that one step serves several
    tokens; which paths are followed does not depend on that."""

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
        for beam in self.beams:
            self._open(beam.tokens, beam.row, beam.state, LEVELS)

    def _open(self, path: tuple[int, ...], row: int, state: int, levels: int) -> None:
        """Ask for a row, and for those below it while they are few."""
        following = self._following(path, state)
        if row not in self.known:
            self.wanted.append(Wanted(row, state, list(following)))
        if path and levels > 1 and len(path) < self.max_tokens and len(following) <= FEW:
            for token in following:
                after = self.automaton.after(state, token)
                if self.automaton.open[after]:
                    self._open((*path, token), self._of(path, row, token), after, levels - 1)

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
        return zip(self._following(beam.tokens, beam.state), read.pick.tolist())

    def _row(self, beam: Beam, token: int) -> int:
        return self._of(beam.tokens, beam.row, token)
