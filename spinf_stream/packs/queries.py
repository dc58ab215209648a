"""The questions of a pack: the question compiler's own checks, and what a pack adds to them.

Order of a pack's answers, everywhere: query, then combination, then option, as the file has them. Extraction queries
(ours; the peer has none in packs) lie outside that order and cannot be read by reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from spinf_stream.packs.problems import Checker, step
from spinf_stream.questions.problems import Problem as QuestionProblem
from spinf_stream.questions.rules import Question
from spinf_stream.questions.rules import questions as check_questions
from spinf_stream.questions.spec import Limits, read

LONGEST_ID = 128
LIMITS = Limits()


class Prompt(NamedTuple):
    """One filled template: where its answers lie among the pack's options."""

    query: str
    values: dict[str, str]
    first: int
    options: tuple[str, ...]


def prompts(questions: Iterable[Question]) -> list[Prompt]:
    out, at = [], 0
    for question in questions:
        options = question.query.options or ()
        for values in question.values:
            out.append(Prompt(question.query.id, values, at, options))
            at += len(options)
    return out


def check_scoring(check: Checker, scoring: Any, pack: str | None, path: str = "$.scoring") -> dict[str, Question]:
    """The usable questions by id; what is wrong with the others stands in `check`.

    A pack's case rule is false unless it says otherwise, unlike a question file's. Unknown fields are noted, not refused:
    the peer ignores them, and its packs must load here.
    """
    found: list[QuestionProblem] = []
    if isinstance(scoring, dict):
        scoring = {"case_insensitive": False, **scoring}
    placed, file = read(scoring, path, found)
    out: dict[str, Question] = {}
    total = 0
    for question in check_questions(placed, file, LIMITS, found, pack=pack) if file is not None else ():
        query, at = question.query, question.path
        before = len(check.problems)
        scored = question.template.slot == "?"
        if scored and len(query.options or ()) < 2:
            check.error(step(at, "options"), "has one option, a pack's query needs at least two")
        if query.group is not None:
            check.error(step(at, "group"), "is not allowed in a pack, whose queries are one group")
        if len(check.problems) == before:
            out[query.id] = question
        total += len(question.values) if scored else 0
    for p in found:
        (check.note if p.reason == "unknown_field" else check.error)(p.path, p.message)
    if total > LIMITS.max_prompts:
        check.error(step(path, "queries"), f"ask {total} prompts, at most {LIMITS.max_prompts} are allowed")
    return out
