"""Part of a pack: the questions that some of its categories read. Labels seldom speak of every category, and a question
that no label speaks of needs few texts to find its zero, so each part is scored on as many rows as it needs.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection
from typing import Any

from spinf_stream.packs.file import Pack, from_doc


def part_of(pack: Pack, categories: Collection[str]) -> Pack:
    """The pack with these categories alone; what they read, they are asked as in the whole pack.

    Its name is its own: `spinf-stream/` is the official packs' alone.
    """
    doc = copy.deepcopy({k: v for k, v in pack.doc.items() if k != "digest"})
    doc["pack"] = "bench/part-of-" + pack.id.rpartition("/")[2]
    doc["categories"] = {k: v for k, v in doc["categories"].items() if k in categories}
    doc["reads"] = [r for r in doc["reads"] if r["category"] in categories]
    asked = {(r["query"], r.get("F")) for r in doc["reads"]}
    queries = []
    for q in doc["scoring"]["queries"]:
        if "values" in q:
            q["values"]["F"] = [f for f in q["values"]["F"] if (q["id"], f) in asked]
        if any(name == q["id"] for name, _ in asked):
            queries.append(q)
    doc["scoring"]["queries"] = queries
    doc["decision"].pop("critical", None)
    return from_doc(doc)


def put_into(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The fitted document of a whole pack with the constants of a part that was fitted on more rows."""
    reads = {r["id"]: r for r in part["reads"]}
    doc = {**whole, "reads": [reads.get(r["id"], r) for r in whole["reads"]]}
    doc["categories"] = {**whole["categories"], **part["categories"]}
    return doc


def sample(lines: list[bytes], field: str, count: int) -> list[bytes]:
    """`count` rows, every label in its share: by label and digest of the id, then every so many-th."""
    raw = [(json.loads(line), line) for line in lines]
    order = sorted(raw, key=lambda r: (r[0][field], hashlib.sha256(r[0]["id"].encode()).hexdigest()))
    return [order[i * len(order) // count][1] for i in range(min(count, len(order)))]
