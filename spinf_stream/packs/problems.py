"""Faults of a pack file, each with its JSON path, and a checker that goes on after the first.

No message quotes a question, an option or a value: paths, ids and rules are enough to find the place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any, Literal, NamedTuple

# error: the pack is refused. edited: it loads, with the fallback the format prescribes. note: worth a look.
Level = Literal["error", "edited", "note"]

LARGEST = 1e12  # constants beyond it overflow somewhere in the evaluator and mean nothing
_SHOWN = 20


class Problem(NamedTuple):
    path: str  # such as $.reads[3].sd
    message: str
    level: Level = "error"

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class PackError(ValueError):
    """A pack, manifest or source that cannot be used; `problems` holds every fault found, not only the first."""

    def __init__(self, where: str, problems: list[Problem]) -> None:
        shown = [str(p) for p in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            shown.append(f"and {len(problems) - _SHOWN} more")
        super().__init__(f"{where}: " + "; ".join(shown))
        self.where = where
        self.problems = problems


class ParameterError(ValueError):
    """A pack parameter that is unknown, missing or of a wrong type. Names the parameter, never its value."""


def step(path: str, key: str | int) -> str:
    """The path one level down, in the notation of msgspec's own messages."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f"{path}[{ascii(key)[:80]}]"


class Checker:
    """Typed access to decoded JSON: a wrong type is a problem with a path and yields None, never an exception."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def error(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    def note(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message, "note"))

    @property
    def errors(self) -> int:
        return sum(p.level == "error" for p in self.problems)

    def table(self, value: Any, path: str, known: Collection[str] = ()) -> dict[str, Any] | None:
        """A JSON object. With `known`, other fields are noted: they are ignored, and so is a misspelt one."""
        if not isinstance(value, dict):
            self.error(path, f"must be an object, not {kind(value)}")
            return None
        if known:
            for key in value:
                if key not in known:
                    self.note(step(path, key), "unknown field, ignored")
        return value

    def items(self, value: Any, path: str, *, empty: bool = False) -> list[Any] | None:
        if not isinstance(value, list):
            self.error(path, f"must be a list, not {kind(value)}")
            return None
        if not value and not empty:
            self.error(path, "must not be empty")
            return None
        return value

    def text(
        self, of: dict[str, Any], key: str, path: str, *, required: bool = False, pattern: re.Pattern[str] | None = None,
        longest: int | None = None, one_of: Collection[str] | None = None,
    ) -> str | None:  # fmt: skip
        value = of.get(key)
        at = step(path, key)
        if value is None:
            if required:
                self.error(at, ("is missing" if key not in of else "must be a string, not null") + (f": {', '.join(one_of)}" if one_of else ""))
            return None
        if not isinstance(value, str):
            self.error(at, f"must be a string, not {kind(value)}")
        elif required and not value:
            self.error(at, "must not be empty")
        elif longest is not None and len(value) > longest:
            self.error(at, f"has {len(value)} characters, at most {longest} are allowed")
        elif pattern is not None and not pattern.fullmatch(value):
            self.error(at, f"does not match {pattern.pattern}")
        elif one_of is not None and value not in one_of:
            self.error(at, f"must be one of {', '.join(one_of)}")
        else:
            return value
        return None

    def flag(self, of: dict[str, Any], key: str, path: str, *, null: bool = False) -> bool | None:
        if key not in of or (null and of[key] is None):
            return None
        if not isinstance(of[key], bool):
            self.error(step(path, key), f"must be true or false, not {kind(of[key])}")
            return None
        return bool(of[key])

    def number(self, value: Any, path: str, low: float = -LARGEST, high: float = LARGEST, *, above: float | None = None) -> float | None:
        """A finite number in [low, high], and greater than `above` where that is given."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.error(path, f"must be a number, not {kind(value)}")
            return None
        try:
            x = float(value)
        except OverflowError:
            x = math.inf
        if not math.isfinite(x):
            self.error(path, "must be a finite number")
        elif above is not None and x <= above:
            self.error(path, f"must be greater than {above:g}")
        elif not low <= x <= high:
            self.error(path, f"must lie in [{low:g}, {high:g}]")
        else:
            return x
        return None

    def index(self, value: Any, path: str, size: int) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            self.error(path, f"must be an option index, not {kind(value)}")
            return None
        if not 0 <= value < size:
            self.error(path, f"must lie in 0..{size - 1}")
            return None
        return value


def kind(value: Any) -> str:
    """The JSON name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    for t, name in ((str, "a string"), (int, "a number"), (float, "a number"), (list, "a list"), (dict, "an object")):
        if isinstance(value, t):
            return name
    return type(value).__name__
