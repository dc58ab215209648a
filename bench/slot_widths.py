"""How many rows slots of each kind take, step by step: recorded on the demo model and real articles, replayed on random weights.

bench/data/slot_widths.json (`slots.py accuracy` writes it): kind -> one list a slot, the rows that its first step computes
below the template and together with it, then those of each further step. Only copied numbers and amounts begin with any.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spinf_stream.slots.automaton import Automaton
from spinf_stream.slots.build import Vocabularies
from spinf_stream.slots.copying import CopyNumbers, CopyText
from spinf_stream.slots.program import Program, Read, Wanted
from spinf_stream.slots.search import Search

FILE = Path(__file__).resolve().parent / "data" / "slot_widths.json"
ASKED = {"n": "number", "$": "amount", "*": "text"}
DEEP = 4  # rows below one another in a step of copied numbers, which take whole numbers


class Widths:
    """Records while the block runs. Slots that have nothing to copy take no step and are not among them."""

    def __init__(self) -> None:
        self.taken: dict[str, list[list[int]]] = {}
        self.asked: dict[Automaton, str] = {}  # what a program asks for is known where its automaton is made, and nowhere later

    def __enter__(self) -> Widths:
        self.old: list[tuple[type, str, Callable[..., Any]]] = [(Vocabularies, "automaton", Vocabularies.automaton)]
        self.old += [(c, "feed", c.feed) for c in (Search, CopyText, CopyNumbers)]
        Vocabularies.automaton = self._named(Vocabularies.automaton)  # type: ignore[method-assign]
        for owner, name, feed in self.old[1:]:
            setattr(owner, name, self._counted("" if owner is Search else "copied ", feed))
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, method in self.old:
            setattr(owner, name, method)

    def _named(self, automaton: Callable[..., Automaton]) -> Callable[..., Automaton]:
        def named(words: Vocabularies, query: Any) -> Automaton:
            made = automaton(words, query)
            self.asked[made] = ASKED[query.kind]
            return made

        return named

    def _counted(self, how: str, feed: Callable[..., None]) -> Callable[..., None]:
        def counted(program: Any, reads: Any) -> None:
            before = len(program.token)
            steps = program.__dict__.setdefault("_steps", [before - program.stem - 1])
            feed(program, reads)
            if program.wanted:
                steps.append(len(program.token) - before)
            else:
                self.taken.setdefault(how + self.asked[program.automaton], []).append(steps)

        return counted

    def write(self, path: Path = FILE) -> None:
        kinds = sorted(self.taken)
        path.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(self.taken[k])}" for k in kinds) + "\n}\n")


class Spread:
    """Recorded slots, one after another: the first is the middle one, and so many as are taken have about the mean of all."""

    def __init__(self, widths: Sequence[Sequence[int]]) -> None:
        self.widths = sorted(widths, key=lambda steps: (sum(steps), len(steps)))

    def __getitem__(self, n: int) -> Sequence[int]:
        return self.widths[int((0.5 + n * 0.6180339887498949) % 1 * len(self.widths))]


class Replay(Program):
    """In place of a real program, whose template, automaton and kind of reads it has: a recorded number of rows in each step,
    whatever the numbers say."""

    def __init__(self, real: Program, widths: Sequence[int]) -> None:
        super().__init__(real.token[: real.stem + 1], real.automaton)
        self.top = real.top
        self.copies = isinstance(real, CopyNumbers | CopyText)
        self.deep = DEEP if isinstance(real, CopyNumbers) else 1
        self.last = [self.stem]
        self.left = list(widths)
        below = self._rows(self.left.pop(0))
        self.wanted = [Wanted(self.stem, 0, real.wanted[0].picks if real.wanted else ()), *below]

    def feed(self, reads: Sequence[Read]) -> None:
        self.wanted = self._rows(self.left.pop(0)) if self.left else []

    def _rows(self, width: int) -> list[Wanted]:
        """Copying also asks for the tokens of the rows below each row: as many in all as there are rows."""
        out: list[Wanted] = []
        tokens = self.automaton.token
        for i in range(width):
            token = int(tokens[i % len(tokens)])
            parent = out[-1].row if i % self.deep else self.last[min(i // self.deep, len(self.last) - 1)]
            out.append(Wanted(self.add(token, parent), 0, (token,) if self.copies else ()))
        self.last = [w.row for w in out] or self.last
        return out
