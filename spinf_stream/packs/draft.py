"""A first draft of a pack, to be edited: two questions that offer all categories, and neutral wording."""

from __future__ import annotations

from typing import Any

from spinf_stream.packs.document import text_of

WORDINGS = {"about": "\n\nThis text is about{?}", "topic": "\n\nThe topic of the text above:{?}"}


def draft(pack: str, categories: list[str], version: str = "0.1.0") -> dict[str, Any]:
    """A choice has no yes to lean to, and small models answer it where they hardly answer yes or no (packs/README.md). Its
    options are the categories' own names, to be put into the words that an author would use."""
    options = [" " + name.replace("_", " ") for name in categories] + [" other"]
    queries = [{"id": id, "template": template, "options": options} for id, template in WORDINGS.items()]
    reads = [
        {"id": f"{query}:{name}", "query": query, "kind": "option", "option": at, "category": name, "view": query}
        for at, name in enumerate(categories)
        for query in WORDINGS
    ]
    return {
        "pack": pack,
        "version": version,
        "calibrated": False,
        "answers": "p",
        "contexts": {"plain": "{X}"},
        "scoring": {"empty_floor": True, "case_insensitive": True, "queries": queries},
        "reads": reads,
        "categories": {name: {"label": name.capitalize(), "aggregate": "views"} for name in categories},
        "decision": {"mode": "per_category", "per_category": {}},
    }


def draft_text(pack: str, categories: list[str]) -> str:
    return text_of(draft(pack, categories))
