"""What changed between two versions of a pack, and which of the old scores still mean the same.

Three things can change, and each costs something else: a question or its context costs a new forward pass; a constant
costs `packs evaluate` over stored scores; a threshold or a decision rule costs that too, but leaves every score as it was.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from spinf_stream.packs.file import Pack
from spinf_stream.packs.validate import PLACE
from spinf_stream.questions.rules import Question

Cost = Literal["score", "evaluate", "none"]  # what makes an old record as good as a new one


class Change(NamedTuple):
    path: str
    before: Any  # None = not there
    after: Any
    cost: Cost


class Diff(NamedTuple):
    changes: list[Change]
    questions_kept: list[str]  # ids of queries whose answers stay comparable, in a context whose text is unchanged
    contexts_kept: list[str]
    categories_kept: list[str]  # stored category scores stay comparable
    categories_recomputed: list[str]  # comparable after `packs evaluate`
    categories_lost: list[str]  # their questions changed


def diff(old: Pack, new: Pack) -> Diff:
    changes: list[Change] = []
    a, b = old.doc, new.doc
    for key in ("pack", "version"):
        _value(changes, f"$.{key}", a.get(key), b.get(key), "none")
    for key in ("model", "calibrated"):
        _value(changes, f"$.{key}", a.get(key), b.get(key), "evaluate")
    _value(changes, "$.answers", old.answers, new.answers, "evaluate")
    _value(changes, "$.scoring.case_insensitive", old.case_insensitive, new.case_insensitive, "score")
    _table(changes, "$.contexts", a["contexts"], b["contexts"], "score")
    _table(changes, "$.parameters", a.get("parameters", {}), b.get("parameters", {}), "score")
    if list(a["contexts"])[:1] != list(b["contexts"])[:1]:
        _value(changes, "$.contexts (default)", old.default_context, new.default_context, "none")
    mine = {q.query.id: q for q in (*old.questions, *old.slots)}
    theirs = {q.query.id: q for q in (*new.questions, *new.slots)}
    for name in [*mine, *(n for n in theirs if n not in mine)]:
        one, two = mine.get(name), theirs.get(name)
        _value(changes, f"$.scoring.queries[{name}]", one and _asked(one), two and _asked(two), "score")
        if one and two and one.floor != two.floor:
            _value(changes, f"$.scoring.queries[{name}].empty_floor", one.floor, two.floor, "none")
    _table(changes, "$.reads", {r["id"]: r for r in a.get("reads", [])}, {r["id"]: r for r in b.get("reads", [])}, "evaluate")
    _categories(changes, a.get("categories", {}), b.get("categories", {}))
    _value(changes, "$.decision", a.get("decision"), b.get("decision"), "evaluate")

    kept = [n for n, q in mine.items() if n in theirs and _asked(q) == _asked(theirs[n])]
    contexts = [n for n in a["contexts"] if n in b["contexts"] and _context(a, n) == _context(b, n)]
    same, again, lost = [], [], []
    for name in old.categories:
        if name not in new.categories:
            continue
        reads = {r.query for p in (old, new) for r in p.reads if r.category == name}
        if not reads <= set(kept) or not contexts:
            lost.append(name)
        elif _judged(old, name) == _judged(new, name):
            same.append(name)
        else:
            again.append(name)
    return Diff(changes, kept, contexts, same, again, lost)


def _asked(q: Question) -> dict[str, Any]:
    """All of a question that its answers depend on; the floor is measured without an article and changes none."""
    return {
        "template": q.query.template, "options": list(q.query.options or ()), "combinations": list(q.values),
        "case_insensitive": q.case_insensitive, "ends": q.query.ends, "residual": q.query.residual,
    }  # fmt: skip


def _context(doc: dict[str, Any], name: str) -> Any:
    text = doc["contexts"][name]
    used = [p for p in PLACE.findall(text) if p != "X"]
    return text, [doc.get("parameters", {}).get(p, {}).get("default") for p in used]


def _judged(pack: Pack, name: str) -> Any:
    """All of a category that its score depends on, beside the answers."""
    spec = pack.categories[name]
    return pack.model, pack.answers, pack.calibrated, spec.platt, spec.aggregate, [r for r in pack.reads if r.category == name]


def _categories(changes: list[Change], a: dict[str, Any], b: dict[str, Any]) -> None:
    for name in [*a, *(n for n in b if n not in a)]:
        at = f"$.categories.{name}"
        if name in a and name in b:
            for key in dict.fromkeys((*a[name], *b[name])):
                _value(changes, f"{at}.{key}", a[name].get(key), b[name].get(key), "none" if key in ("label", "description") else "evaluate")
        else:
            _value(changes, at, a.get(name), b.get(name), "evaluate")


def _table(changes: list[Change], at: str, a: dict[str, Any], b: dict[str, Any], cost: Cost) -> None:
    for name in [*a, *(n for n in b if n not in a)]:
        _value(changes, f"{at}[{name}]" if at == "$.reads" else f"{at}.{name}", a.get(name), b.get(name), cost)


def _value(changes: list[Change], at: str, a: Any, b: Any, cost: Cost) -> None:
    if a == b:
        return
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys((*a, *b)):
            _value(changes, f"{at}.{key}", a.get(key), b.get(key), cost)
        return
    changes.append(Change(at, a, b, cost))


def diff_lines(d: Diff, old: Pack, new: Pack) -> list[str]:
    """For a person."""
    out = [f"{old.label} {old.digest[:19]} -> {new.label} {new.digest[:19]}"]
    if not d.changes:
        return [*out, "the two say the same"]
    words = {"score": "ask again", "evaluate": "recompute", "none": "no score changes"}
    for c in d.changes:
        out.append(f"  {c.path}: {_short(c.before)} -> {_short(c.after)}  ({words[c.cost]})")
    total = len(old.questions) + len(old.slots)
    where = f"in {', '.join(d.contexts_kept)}" if d.contexts_kept else "in no context: every context's text changed"
    out.append(f"answers stay comparable: {len(d.questions_kept)} of {total} queries, {where}")
    for names, text in (
        (d.categories_kept, "category scores stay comparable"),
        (d.categories_recomputed, "category scores comparable after `packs evaluate` over stored records"),
        (d.categories_lost, "category scores not comparable, their questions must be asked again"),
    ):
        if names:
            out.append(f"{text}: {', '.join(names)}")
    return out


def _short(value: Any) -> str:
    if value is None:
        return "-"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
