"""Checks of a pack's reads and categories: which answers feed which score, and the constants fitted for them."""

from __future__ import annotations

import itertools
from typing import Any

from spinf_stream.packs.problems import Checker, kind, step
from spinf_stream.packs.queries import LONGEST_ID
from spinf_stream.questions.rules import Question

KINDS = ("pair", "option", "any", "set")
SMALLEST_SD = 1e-9  # below it a z-score is noise of the last digit
_READ = ("id", "query", "F", "kind", "sign", "option", "mu", "unsafe", "category", "view", "mean", "sd")
_CATEGORY = ("label", "description", "platt", "threshold", "aggregate", "normal_quantiles", "requires", "decides", "fitted")


class Reads:
    """What later checks need to know of the reads that have an id, whole or not."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.fed: dict[str, bool] = {}  # category -> some read of it has a view


def check_reads(check: Checker, raw: Any, questions: dict[str, Question], broken: set[str], draft: bool, path: str = "$.reads") -> Reads:
    """`broken`: ids of queries that exist but are faulty themselves: a read of them is not blamed as well."""
    out = Reads()
    for i, item in enumerate(check.items(raw, path) or ()):
        at = step(path, i)
        read = check.table(item, at, _READ)
        if read is None:
            continue
        name = check.text(read, "id", at, required=True, longest=LONGEST_ID)
        if name is not None and name in out.ids:
            check.error(step(at, "id"), "another read has this id")
        elif name is not None:
            out.ids.add(name)
        category = check.text(read, "category", at, required=True, longest=LONGEST_ID)
        view = check.text(read, "view", at, longest=LONGEST_ID)
        if category is not None:
            out.fed[category] = out.fed.get(category, False) or view is not None
        question = _question(check, read, at, questions, broken)
        size = None if question is None else len(question.query.options or ())
        _kind(check, read, at, size, draft)
        for key in ("mean", "sd"):
            if read.get(key) is not None or (key in read and not draft):
                low = SMALLEST_SD if key == "sd" else -1e12
                check.number(read[key], step(at, key), low, above=0.0 if key == "sd" else None)
            elif not draft:
                check.error(step(at, key), "is missing")
    return out


def _question(check: Checker, read: dict[str, Any], at: str, questions: dict[str, Question], broken: set[str]) -> Question | None:
    name = check.text(read, "query", at, required=True)
    value = check.text(read, "F", at)
    if name is None or name in broken:
        return None
    if name not in questions or questions[name].template.slot != "?":
        check.error(step(at, "query"), "is an extraction query, reads need a scored one" if name in questions else "names no query of this pack")
        return None
    question = questions[name]
    if question.values == ({},):
        if value is not None:
            check.error(step(at, "F"), "is given, but the query has no combinations")
        return question
    if "F" not in question.values[0]:
        check.error(step(at, "query"), "has combinations without a placeholder F: reads cannot tell them apart")
        return None
    if value is None:
        if not isinstance(read.get("F"), str) and read.get("F") is None:
            check.error(step(at, "F"), "is missing: the query has combinations")
        return question
    same = [c for c in question.values if c["F"] == value]
    if not same:
        check.error(step(at, "F"), "is no value of F in the query's combinations")
    elif len(same) > 1 and any(c != same[0] for c in same):
        check.note(step(at, "F"), f"stands in {len(same)} combinations: the last one is read")
    return question


def _kind(check: Checker, read: dict[str, Any], at: str, size: int | None, draft: bool) -> None:
    name = check.text(read, "kind", at, required=True, one_of=KINDS)
    if name is None:
        return
    if name == "pair":
        if size is not None and size != 2:
            check.error(step(at, "kind"), f"is pair, but the query has {size} options")
        if "sign" in read and (isinstance(read["sign"], bool) or read["sign"] not in (1, -1)):
            check.error(step(at, "sign"), "must be 1 or -1")
        return
    if name == "option":
        if "option" not in read:
            check.error(step(at, "option"), "is missing")
        elif size is not None:
            check.index(read["option"], step(at, "option"), size)
    if name == "set":
        _unsafe(check, read, at, size)
    if read.get("mu") is None:
        if "mu" in read and not draft:
            check.error(step(at, "mu"), "must not be null")
        elif not draft:
            check.error(step(at, "mu"), "is missing")
    elif name == "option":
        check.number(read["mu"], step(at, "mu"))
    else:
        values = check.items(read["mu"], step(at, "mu"))
        if values is not None and size is not None and len(values) != size:
            check.error(step(at, "mu"), f"has {len(values)} numbers for {size} options")
        for i, v in enumerate(values or ()):
            check.number(v, step(step(at, "mu"), i))


def _unsafe(check: Checker, read: dict[str, Any], at: str, size: int | None) -> None:
    at = step(at, "unsafe")
    if "unsafe" not in read:
        check.error(at, "is missing")
        return
    chosen = check.items(read["unsafe"], at)
    if chosen is None or size is None:
        return
    good = [check.index(v, step(at, i), size) for i, v in enumerate(chosen)]
    if None in good:
        return
    if len(set(good)) < len(good):
        check.error(at, "names an option twice")
    if len(set(good)) == size:
        check.error(at, "must leave at least one option out")


def check_categories(check: Checker, raw: Any, reads: Reads | None, draft: bool, path: str = "$.categories") -> dict[str, Any]:
    """The category table, empty when there is none."""
    table = check.table(raw, path)
    if table is None:
        return {}
    if not table:
        check.error(path, "must not be empty")
    for name, item in table.items():
        at = step(path, name)
        if not name or len(name) > LONGEST_ID:
            check.error(at, f"a category id has 1 to {LONGEST_ID} characters")
        spec = check.table(item, at, _CATEGORY)
        if reads is not None and name not in reads.fed:
            check.error(at, "no read feeds this category")
        if spec is None:
            continue
        check.text(spec, "label", at)
        check.flag(spec, "decides", at)
        check.flag(spec, "fitted", at)
        if spec.get("platt") is not None:
            pair = check.items(spec["platt"], step(at, "platt"))
            if pair is not None and len(pair) != 2:
                check.error(step(at, "platt"), f"must be two numbers, not {len(pair)}")
            for i, v in enumerate(pair or ()):
                check.number(v, step(step(at, "platt"), i))
        elif not draft:
            check.error(step(at, "platt"), "is missing")
        if spec.get("threshold") is not None:
            check.number(spec["threshold"], step(at, "threshold"), 0, 1)
        if check.text(spec, "aggregate", at, one_of=("views",)) and reads is not None and reads.fed.get(name) is False:
            check.error(step(at, "aggregate"), "is views, but no read of the category has a view")
        if spec.get("normal_quantiles") is not None:
            _quantiles(check, spec["normal_quantiles"], step(at, "normal_quantiles"))
        for i, other in enumerate(check.items(spec["requires"], step(at, "requires"), empty=True) or () if "requires" in spec else ()):
            where = step(step(at, "requires"), i)
            if not isinstance(other, str):
                check.error(where, f"must be a category id, not {kind(other)}")
            elif other == name:
                check.error(where, "a category cannot require itself")
            elif other not in table:
                check.error(where, "names no category of this pack")
    return table


def _quantiles(check: Checker, raw: Any, at: str) -> None:
    table = check.table(raw, at, ("levels", "values"))
    if table is None:
        return
    sizes = []
    for key in ("levels", "values"):
        where = step(at, key)
        if key not in table:
            check.error(where, "is missing")
            continue
        numbers = check.items(table[key], where)
        if numbers is None:
            continue
        sizes.append(len(numbers))
        before = check.errors
        for i, v in enumerate(numbers):
            check.number(v, step(where, i), *((0.0, 1.0) if key == "levels" else ()))
        if check.errors == before and any(b < a for a, b in itertools.pairwise(numbers)):
            check.error(where, "must not decrease")
    if sizes and min(sizes) < 2:
        check.error(at, "needs at least two levels and values")
    if len(sizes) == 2 and sizes[0] != sizes[1]:
        check.error(at, f"has {sizes[0]} levels and {sizes[1]} values")
