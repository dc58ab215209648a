"""Copy-only slots: the probability of what stands in the article, and of nothing else.

Numbers: the candidate spellings are one forest below the template, opened whole below what the model finds likely. Text: the
article's own token trie, opened like a search, and a little ahead of it. Likely is relative to the best, so that even an
unsure model has an answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from spinf_stream.engine.seam import Copies
from spinf_stream.slots.automaton import NEVER, Automaton
from spinf_stream.slots.plan import REL_P
from spinf_stream.slots.program import FLOOR, Ending, Program, Read, Wanted, records
from spinf_stream.slots.search import Beam, Search

BEGINNINGS = 16  # rows of what numbers begin with
FIRST_P = 0.1  # below beginnings this much less likely numbers are opened at once: a step costs a card what eight rows cost
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


class Spellings:
    """The candidate numbers of an article, read once for all slots that may copy them. A node -1 stands for the template; its
    entry of each list is the last."""

    def __init__(self, automaton: Automaton, copy: Copy) -> None:
        self.automaton = automaton
        self.token, self.parent = copy.token.tolist(), copy.link.tolist()
        self.state = [*copy.state.tolist(), 0]
        n = len(self.token)
        self.below: list[list[int]] = [[] for _ in range(n + 1)]  # children
        self.path: list[tuple[int, ...]] = [()] * (n + 1)
        for node, parent in enumerate(self.parent):
            self.below[parent].append(node)
            self.path[node] = (*self.path[parent], self.token[node])
        self.following = [[self.token[c] for c in below] for below in self.below]  # children's tokens
        self.until = list(range(1, n + 1))  # nodes are in pre-order: those of a subtree are node .. until-1
        for node in range(n - 1, -1, -1):
            if (parent := self.parent[node]) >= 0:
                self.until[parent] = max(self.until[parent], self.until[node])
        self.marks: list[list[tuple[int, int]] | None] = [  # None where no candidate ends
            *(self._marks(node) if ends else None for node, ends in enumerate(copy.ends.tolist())), None
        ]  # fmt: skip
        self.beginnings, self.closed = self._beginnings()

    def _marks(self, node: int) -> list[tuple[int, int]]:
        """(place among the children, child) of those that are a comma, point or space after the candidate that ends here."""
        second, column, state = self.automaton.second, self.automaton.column, self.state[node]
        at = [column.get(t) for t in self.following[node]]
        return [(k, child) for k, child in enumerate(self.below[node]) if (c := at[k]) is not None and second[state, c]]

    def _beginnings(self) -> tuple[list[int], list[int]]:
        """(what numbers begin with, from the template on; the nodes below it)."""
        out, closed, todo = [-1], [], list(self.below[-1])
        for node in todo:  # which grows
            if self.automaton.final[self.state[node]] or not self.below[node] or len(out) > BEGINNINGS:
                closed.append(node)
            else:
                out.append(node)
                todo += self.below[node]
        return out, closed


class CopyNumbers(Program):
    """First what numbers begin with (space, sign, currency), then whole numbers below the likely beginnings, until what was
    left out is less probable than REL_P of the best answer. Without candidates nothing is wanted: there is no answer."""

    def __init__(self, template: Sequence[int], spellings: Spellings) -> None:
        super().__init__(template, spellings.automaton)
        self.spellings = spellings
        n = len(spellings.token)
        self.row = [self.stem] * (n + 1)  # of each node, once it is asked for; the last is the template's
        self.logprob = [0.0] * (n + 1)  # of each node's path, once its parent is read
        self.closed = spellings.closed  # nodes with nothing below them asked for yet
        self.best = -math.inf
        self.asked: list[int] = []
        if n:
            self._ask(spellings.beginnings)

    def _ask(self, nodes: list[int]) -> None:
        """Parents before their children."""
        s, row = self.spellings, self.row
        new = [n for n in nodes if n >= 0]
        for at, node in enumerate(new, len(self.token)):
            row[node] = at
        self.token += [s.token[n] for n in new]
        self.parent += [row[s.parent[n]] for n in new]
        self.asked = nodes
        self.wanted = records(Wanted, [row[n] for n in nodes], [s.state[n] for n in nodes], [s.following[n] for n in nodes])

    def feed(self, reads: Sequence[Read]) -> None:
        """A comma, point or space after a number is taken for its end, except for the part of it after which a candidate's
        digits follow."""
        logprob, below, marks = self.logprob, self.spellings.below, self.spellings.marks
        of = dict(zip(self.asked, reads))
        ended: list[int] = []
        total: list[float] = []
        for node, read in of.items():
            so_far = logprob[node]
            if children := below[node]:
                for child, p in zip(children, read.pick):
                    logprob[child] = so_far + p
            if (after := marks[node]) is not None:
                end = 1.0 - (read.first - read.second)
                for k, child in after:
                    end -= math.exp(read.pick[k]) * of[child].first
                ended.append(node)
                total.append(so_far + math.log(end if end > FLOOR else FLOOR))
        if ended:
            self.endings += records(Ending, [self.spellings.path[n] for n in ended], total, repeat(0), repeat(True))
            self.best = max(self.best, *total)
        self._go_on()

    def _go_on(self) -> None:
        bar = self.best if self.endings else max((self.logprob[n] for n in self.closed), default=0.0) + math.log(FIRST_P)
        least = bar + math.log(REL_P)
        likely = [n for n in self.closed if self.logprob[n] >= least]
        self.closed = [n for n in self.closed if self.logprob[n] < least]
        self._ask([n for top in likely for n in range(top, self.spellings.until[top])])


class Pieces:
    """The pieces of an article, read once for all slots that may copy them."""

    def __init__(self, automaton: Automaton, copy: Copy) -> None:
        self.automaton = automaton
        self.stream: list[int] = [*copy.token.tolist(), -1]
        begins: dict[int, list[int]] = {}
        places = np.flatnonzero(copy.link >= 0)
        for place, first in zip(places.tolist(), copy.link[places].tolist()):
            begins.setdefault(first, []).append(place)
        self.any = bool(begins)
        self.below: dict[tuple[int, ...], dict[int, list[int]]] = {(): self._usable(0, begins)}  # path -> next token -> places where that token stands

    def following(self, path: tuple[int, ...], state: int) -> dict[int, list[int]]:
        """By token, ascending; `state` is the automaton's after the path."""
        known = self.below.get(path)
        if known is None:
            found: dict[int, list[int]] = {}
            for place in self.below[path[:-1]][path[-1]]:
                if (token := self.stream[place + 1]) >= 0:
                    found.setdefault(token, []).append(place + 1)
            known = self.below[path] = self._usable(state, found)
        return known

    def _usable(self, state: int, found: dict[int, list[int]]) -> dict[int, list[int]]:
        return {t: found[t] for t in sorted(found) if self.automaton.after(state, t) != NEVER}


class CopyText(Search):
    """A search whose paths are pieces of the article. Rows below the likeliest beam are computed ahead, so that one step may
    serve several tokens; which paths are followed does not depend on that. Further ahead, or below every beam, a row costs more
    than the step that it may save (slots/__init__.py)."""

    top = 0

    def __init__(self, template: Sequence[int], max_tokens: int, pieces: Pieces) -> None:
        self.max_tokens = max_tokens
        self.pieces = pieces
        self.rows: dict[tuple[int, ...], int] = {}
        self.known: dict[int, Read] = {}  # row -> what was read there
        super().__init__(template, pieces.automaton, max_tokens)
        if not pieces.any:
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
        following = self.pieces.following(path, state)
        if row not in self.known:
            self.wanted.append(Wanted(row, state, list(following)))
        if not path or not ahead or len(path) == self.max_tokens or len(following) != 1:
            return
        (token,) = following
        after = self.automaton.after(state, token)
        if self.automaton.open.item(after):
            longer = (*path, token)
            self._open(longer, self._of(longer, row), after, ahead - 1)

    def _of(self, path: tuple[int, ...], above: int) -> int:
        """The row of a path, `above` that of the path without its last token."""
        row = self.rows.get(path)
        if row is None:
            row = self.rows[path] = self.add(path[-1], above)
        return row

    def _extensions(self, beam: Beam, read: Read) -> Iterable[tuple[int, float]]:
        return zip(self.pieces.following(beam.tokens, beam.state), read.pick)

    def _floor(self, reads: Sequence[Read]) -> float:
        likeliest = max((beam.logprob + max(read.pick) for beam, read in zip(self.beams, reads) if read.pick), default=0.0)
        return math.log(REL_P) + max(likeliest, math.log(self.best) if self.best > 0 else -math.inf)

    def _row(self, beam: Beam, tokens: tuple[int, ...]) -> int:
        return self._of(tokens, beam.row)
