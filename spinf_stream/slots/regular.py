"""Regular languages as small trees of pieces, compiled to a minimal deterministic automaton over characters.

    word("ab"), chars("0123"), seq(a, b), alt(a, b), opt(a), plus(a), times(a, 2, 3)

A library for regular expressions matches text; what a decoder needs is the automaton itself: which characters may follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Piece = tuple[str, tuple["Piece | str", ...]]
DEAD = -1


def word(text: str) -> Piece:
    return ("word", (text,))


def chars(any_of: str) -> Piece:
    return ("chars", (any_of,))


def seq(*parts: Piece) -> Piece:
    return ("seq", parts)


def alt(*parts: Piece) -> Piece:
    return ("alt", parts)


def opt(part: Piece) -> Piece:
    return alt(part, word(""))


def plus(part: Piece) -> Piece:
    return ("plus", (part,))


def times(part: Piece, least: int, most: int) -> Piece:
    return seq(*[part] * least, *[opt(part)] * (most - least))


class Dfa(NamedTuple):
    """State 0 is the start. Every state can still reach a final one; what leads nowhere has no transition."""

    next: tuple[Mapping[str, int], ...]  # [S] character -> state
    final: tuple[bool, ...]  # [S]

    def run(self, text: str, state: int = 0) -> int:
        """The state after `text`, DEAD when nothing in the language begins so."""
        for c in text:
            state = self.next[state].get(c, DEAD)
            if state == DEAD:
                break
        return state


class _Nfa:
    def __init__(self) -> None:
        self.edges: list[dict[str, set[int]]] = []
        self.free: list[set[int]] = []

    def state(self) -> int:
        self.edges.append({})
        self.free.append(set())
        return len(self.edges) - 1

    def add(self, piece: Piece, start: int) -> int:
        """Lay `piece` from `start` on; the state where it ends."""
        kind, parts = piece
        if kind == "word":
            for c in str(parts[0]):
                start = self._edge(start, c)
            return start
        if kind == "chars":
            end = self.state()
            for c in str(parts[0]):
                self.edges[start].setdefault(c, set()).add(end)
            return end
        inner = [p for p in parts if not isinstance(p, str)]
        if kind == "seq":
            for p in inner:
                start = self.add(p, start)
            return start
        end = self.state()
        if kind == "alt":
            for p in inner:
                self.free[self.add(p, start)].add(end)
            return end
        again = self.state()  # plus: a state of its own, so that the loop does not catch what else leaves `start`
        self.free[start].add(again)
        last = self.add(inner[0], again)
        self.free[last] |= {again, end}
        return end

    def _edge(self, start: int, c: str) -> int:
        end = self.state()
        self.edges[start].setdefault(c, set()).add(end)
        return end

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        seen, stack = set(states), list(states)
        while stack:
            for s in self.free[stack.pop()] - seen:
                seen.add(s)
                stack.append(s)
        return frozenset(seen)


def compile(piece: Piece) -> Dfa:
    nfa = _Nfa()
    start = nfa.state()
    end = nfa.add(piece, start)
    first = nfa.closure([start])
    number: dict[frozenset[int], int] = {first: 0}
    order, moves = [first], []
    for states in order:  # grows while it runs
        to: dict[str, set[int]] = {}
        for s in states:
            for c, ends in nfa.edges[s].items():
                to.setdefault(c, set()).update(ends)
        row: dict[str, int] = {}
        for c, ends in to.items():
            closed = nfa.closure(ends)
            if closed not in number:
                number[closed] = len(order)
                order.append(closed)
            row[c] = number[closed]
        moves.append(row)
    return _minimal(moves, [end in states for states in order])


def _minimal(moves: list[dict[str, int]], final: list[bool]) -> Dfa:
    """Moore's refinement. Thompson's pieces leave no dead state: each one lies on a way to the end."""
    block = [int(f) for f in final]
    count = 0
    while True:
        names: dict[tuple[object, ...], int] = {}
        block = [
            names.setdefault((block[s], *sorted((c, block[t]) for c, t in row.items())), len(names))
            for s, row in enumerate(moves)
        ]  # fmt: skip
        if len(names) == count:
            break
        count = len(names)
    rows: dict[int, tuple[dict[str, int], bool]] = {}
    for s, b in enumerate(block):  # block of state 0 is 0, for it is named first
        rows.setdefault(b, ({c: block[t] for c, t in moves[s].items()}, final[s]))
    return Dfa(tuple(rows[b][0] for b in range(count)), tuple(rows[b][1] for b in range(count)))
