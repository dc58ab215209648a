"""A pack of yes-and-no questions with a contrast each, as many packs are, for tests; such packs as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spinf_stream.packs.draft import draft


def pairs(pack: str, categories: list[str], version: str = "0.1.0") -> dict[str, Any]:
    """Each category is asked twice, once so that yes speaks for it and once so that yes speaks against it: a model that
    likes to say yes moves the two reads apart and their mean not at all."""
    queries = [
        {
            "id": "is", "template": "\n\nQuestion: Is this text about {F}?\nAnswer:{?}", "options": [" Yes", " No"],
            "combinations": "all", "values": {"F": categories},
        },
        {
            "id": "is_not", "template": "\n\nQuestion: Is this text about something else than {F}?\nAnswer:{?}", "options": [" Yes", " No"],
            "combinations": "all", "values": {"F": categories},
        },
    ]  # fmt: skip
    reads: list[dict[str, Any]] = []
    for name in categories:
        for query, sign, view in (("is", 1, "direct"), ("is_not", -1, "contrast")):
            reads.append({"id": f"{query}:{name}", "query": query, "F": name, "kind": "pair", "sign": sign, "category": name, "view": view})
    scoring = {"empty_floor": True, "case_insensitive": True, "queries": queries}
    return draft(pack, categories, version) | {"scoring": scoring, "reads": reads}


def pack_file(name: str, version: str = "1") -> bytes:
    return json.dumps(pairs(name, ["oil"], version)).encode()


def folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root
