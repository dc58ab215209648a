"""What is wrong with a question file: every problem at once, each with its query and its place.

Messages never quote a template, an option or a value: places and counts are enough to find them, and a log may carry them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

# A closed list. The peer's codes where it has one.
Reason = Literal[
    "not_json", "not_toml", "duplicate_key", "invalid_field", "unknown_field", "missing_field", "field_not_allowed",
    "empty_queries", "duplicate_id", "reserved_group", "invalid_template", "missing_value", "unknown_placeholder",
    "too_many_combinations", "too_many_options", "too_many_prompts", "too_many_extractions", "duplicate_option",
    "empty_template", "template_too_long", "option_too_long", "option_boundary", "multi_token_option", "special_token",
]  # fmt: skip


class Problem(NamedTuple):
    query: str | None  # its id; a pack's query is "pack:id"; None = no query can be named
    path: str  # JSON path, such as $.queries[3].options[1]
    reason: Reason
    message: str

    def __str__(self) -> str:
        who = f" query {self.query!r}:" if self.query is not None else ""
        return f"{self.path}:{who} {self.reason}: {self.message}"


class QuestionError(ValueError):
    """The questions cannot be asked. `problems` holds all that could be found, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=_place))
        rest = len(self.problems) - 1
        super().__init__(f"{self.problems[0]}" + (f" (and {rest} more)" if rest else ""))


def _place(problem: Problem) -> list[tuple[int, str]]:
    """Sort key: paths by their indices as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", problem.path)]
