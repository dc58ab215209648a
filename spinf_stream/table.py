"""Scores as people read them: a line a question with its likeliest option, p, floor and the lift of p over the floor.

A model has favourites that it names without any article. Where another option was raised more, the line says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from spinf_stream.records import CompactScores, OptionScore, QueryScore, Scores

HEADINGS = f"{'p':>6} {'floor':>6} {'lift':>7}"


class Row(NamedTuple):
    question: str
    answer: str
    numbers: str


def block(s: Scores, query: str | None = None, everything: bool = False, width: int = 120) -> list[str]:
    """The lines of one record. `query`: this question alone. `everything`: all options, not only the likeliest."""
    more = "".join(f", {note}" for note in (["truncated"] if s.truncated else []) + s.warnings)
    head = f"{s.id} {s.outcome}, {s.tokens.content} tokens{more} [{s.origin.topic}-{s.origin.partition}-{s.origin.offset}]"
    head = printable(head)
    if isinstance(s.scores, CompactScores):
        parts = "".join(f"; {part.prompts} of {printable(part.pack)} in {printable(part.context or '')}" for part in s.scores.parts if part.pack)
        return [head, f"  {s.scores.prompts} questions, {s.scores.options} options, compact{parts}; questions {s.questions_digest[:16]}"]
    rows = [row for q in s.scores if query in (None, q.id) for row in _scored(q, everything)]
    rows += [row for slot in s.slots if query in (None, slot.get("id")) for row in _slot(slot)]
    rows += [row for pack in s.packs if query is None for row in _pack(pack)]
    first = min(48, max((len(r.question) for r in rows), default=0))
    second = max(8, min(32, width - first - len(HEADINGS) - 6, max((len(r.answer) for r in rows), default=0)))
    left = max(first + second + 4, min(len(head), width - len(HEADINGS) - 2))
    second = left - first - 4
    lines = [f"{_cut(head, left):<{left}}  {HEADINGS}" if rows else head]
    lines += [f"  {_cut(r.question, first):<{first}}  {_cut(r.answer, second):<{second}}  {r.numbers}".rstrip() for r in rows]
    return lines


def printable(text: str) -> str:
    """Control characters escaped: what an article brings must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def numbers(o: OptionScore) -> str:
    """p, floor_p, and how many times likelier the option is with the article than with no article at all."""
    floor = "     -" if o.floor_p is None else f"{o.floor_p:6.3f}" if o.floor_p >= 0.0005 else f"{o.floor_p:6.0e}"
    return f"{o.p:6.3f} {floor} {f'{lift(o):6.2f}x' if o.floor_p else '      -'}"


def lift(o: OptionScore) -> float:
    """1 where there is no floor to compare with."""
    return o.p / o.floor_p if o.floor_p else 1.0


def _scored(q: QueryScore, everything: bool) -> Iterator[Row]:
    name = f"{q.pack}/{q.id}" if q.pack else q.id
    for combination in q.combinations:
        label = _label(name, combination.values)
        options = sorted(combination.options, key=lambda o: -o.p)
        if everything:
            for n, option in enumerate(options):
                yield Row("" if n else label, option.text.strip(), numbers(option))
            continue
        raised = max(options, key=lift)
        note = f"  raised most: {raised.text.strip()} {lift(raised):.2f}x" if lift(raised) > lift(options[0]) else ""
        yield Row(label, options[0].text.strip(), numbers(options[0]) + note)


def _slot(slot: dict[str, Any]) -> Iterator[Row]:
    for combination in slot.get("combinations", ()):
        best: dict[str, Any] = next(iter(combination.get("answers", ())), {})
        p = best.get("p")
        answer = str(best.get("text", "")).strip()
        yield Row(_label(str(slot.get("id")), combination.get("values", {})), answer, "" if p is None else f"{p:6.3f}")


def _pack(pack: dict[str, Any]) -> Iterator[Row]:
    name = f"pack {pack.get('id')}@{pack.get('version')}"
    if pack.get("categories") is None:
        yield Row(name, "does not judge: a draft" if not pack.get("calibrated") else "has no categories", "")
        return
    for n, (category, found) in enumerate(pack["categories"].items()):
        score = found.get("score")
        flag = {True: "flagged", False: "not flagged"}.get(found.get("flagged"), "")
        yield Row("" if n else name, f"{category} {flag}".strip(), "" if score is None else f"{score:6.3f}")


def _label(name: str, values: dict[str, str]) -> str:
    return name + "".join(f" {k}={v}" for k, v in values.items())


def _cut(text: str, width: int) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
