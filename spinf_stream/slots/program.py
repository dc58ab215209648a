"""One slot being decoded: which rows it needs next, and what it makes of what they say. Numbers alone, no device.

    program = Search(...)
    while program.wanted:                      # what is to be read, below the rows in program.token / program.parent
        program.feed(reads of program.wanted)  # adds rows and asks for the next reads, or ends
    program.endings
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from spinf_stream.slots.automaton import Automaton

FLOOR = 1e-12  # P(end) of a number, where rounding leaves nothing


class Wanted(NamedTuple):
    row: int
    state: int
    picks: Sequence[int] = ()


class Read(NamedTuple):
    """What one Wanted got; see engine.grow.Grown."""

    token: Sequence[int]  # [top]
    logprob: Sequence[float]  # [top]
    first: float
    second: float
    pick: Sequence[float]


class Ending(NamedTuple):
    tokens: tuple[int, ...]
    logprob: float
    taken: int = 0
    complete: bool = True


_Record = TypeVar("_Record", bound=tuple[Any, ...])


def records(kind: type[_Record], *columns: Iterable[Any]) -> list[_Record]:
    """Named tuples of columns that have all their fields, at half the price of calling their class."""
    return list(map(functools.partial(tuple.__new__, kind), zip(*columns)))


class Program(ABC):
    """Rows are numbered as they are added; the template's come first. Row -1 is the trunk."""

    top = 0  # extensions wanted of each read
    sequences = 0  # generations that run at once

    def __init__(self, template: Sequence[int], automaton: Automaton) -> None:
        """template: at least one token."""
        self.automaton = automaton
        self.token = list(template)
        self.parent = list(range(-1, len(self.token) - 1))
        self.stem = len(self.token) - 1  # the template's last row
        self.endings: list[Ending] = []
        self.wanted: list[Wanted] = []

    def add(self, token: int, parent: int) -> int:
        self.token.append(token)
        self.parent.append(parent)
        return len(self.token) - 1

    @abstractmethod
    def feed(self, reads: Sequence[Read]) -> None:
        """reads: one for each of `wanted`, in order."""
