"""Random packs: valid ones of every shape the format allows, and ways to break one, each with the path of the fault."""

from __future__ import annotations

import base64
import copy
import random
import struct
from collections.abc import Callable
from typing import Any

from pack_plain import Answers

from spinf_stream.packs.micro import lock

WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty", "knoll", "ledge", "moor", "notch", "ocean", "ridge"]


def random_pack(rng: random.Random) -> dict[str, Any]:
    queries = [_query(rng, i) for i in range(rng.randint(1, 6))]
    categories = [f"c{i}" for i in range(rng.randint(1, 5))]
    reads = []
    for i in range(len(categories) + rng.randint(0, 14)):
        reads.append(_read(rng, i, rng.choice(queries), categories[i] if i < len(categories) else rng.choice(categories)))
    doc: dict[str, Any] = {
        "pack": f"{rng.choice(WORDS)}/{rng.choice(WORDS)}-{rng.randint(0, 99)}",
        "version": rng.choice(["1", "0.1.0", "2.0-rc1", "1.0+b"]),
        "model": "demo",
        "answers": rng.choice(["p", "logprob"]),
        "contexts": {"plain": "{X}", "post": "Post on {site}:\n{X}\nEnd."} if rng.random() < 0.5 else {"plain": "{X}"},
        "scoring": {"queries": queries, "empty_floor": rng.random() < 0.5},
        "reads": reads,
        "categories": {c: _category(rng, c, categories, reads) for c in categories},
    }
    if "post" in doc["contexts"]:
        doc["parameters"] = {"site": {"required": False, "default": rng.choice(["here", 3, True])}}
    doc["decision"] = _decision(rng, categories, reads)
    if "micro_layer" in doc["decision"]:
        doc["decision"]["micro_layer"]["lock"] = lock(doc)
    return doc


def random_answers(rng: random.Random, doc: dict[str, Any]) -> tuple[list[float], Answers]:
    """Option probabilities in pack order, and by (query, F)."""
    flat: list[float] = []
    by_place: Answers = {}
    for q in doc["scoring"]["queries"]:
        for values in combinations(q):
            w = [rng.choice([rng.random(), rng.random() ** 8, 0.0]) + 1e-12 for _ in q["options"]]
            p = [x / sum(w) for x in w]
            flat += p
            by_place[q["id"], values.get("F")] = p
    return flat, by_place


def combinations(query: dict[str, Any]) -> list[dict[str, str]]:
    c = query.get("combinations")
    if c is None:
        return [{}]
    return [{"F": v} for v in query["values"]["F"]] if c == "all" else c


def _query(rng: random.Random, i: int) -> dict[str, Any]:
    n = rng.choice([2, 2, 2, 3, 5, 12, 20])
    options = [f" {w}" for w in rng.sample(WORDS, min(n, len(WORDS)))]
    options += [f" {WORDS[0]}{k}" for k in range(n - len(options))]
    query: dict[str, Any] = {"id": f"q{i}", "options": options, "template": f"\nQuestion {i}:{{?}}"}
    if rng.random() < 0.4:
        values = rng.sample(WORDS, rng.randint(1, 5))
        query["template"] = f"\nQuestion {i} on {{F}}:{{?}}"
        if rng.random() < 0.5:
            query |= {"combinations": "all", "values": {"F": values}}
        else:
            query["combinations"] = [{"F": v} for v in values]
    return query


def _read(rng: random.Random, i: int, query: dict[str, Any], category: str) -> dict[str, Any]:
    n = len(query["options"])
    kind = rng.choice(["option", "any", "set"] + (["pair"] * 3 if n == 2 else []))
    read: dict[str, Any] = {
        "id": f"r{i}", "query": query["id"], "kind": kind, "category": category,
        "mean": round(rng.uniform(-3, 3), 3), "sd": round(rng.uniform(0.1, 3), 3),
    }  # fmt: skip
    if "combinations" in query:
        read["F"] = rng.choice(combinations(query))["F"]
    if kind == "pair" and rng.random() < 0.7:
        read["sign"] = rng.choice([1, -1])
    if kind == "option":
        read |= {"option": rng.randrange(n), "mu": round(rng.uniform(-4, 0), 3)}
    if kind in ("any", "set"):
        read["mu"] = [round(rng.uniform(-4, 0), 3) for _ in range(n)]
    if kind == "set":
        read["unsafe"] = rng.sample(range(n), rng.randint(1, n - 1))
    if rng.random() < 0.6:
        read["view"] = rng.choice(["direct", "contrast", "third"])
    return read


def _category(rng: random.Random, name: str, names: list[str], reads: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = {"platt": [round(rng.uniform(-2, 3), 3), round(rng.uniform(-2, 2), 3)]}
    spec["threshold"] = rng.choice([None, round(rng.random(), 3), 0, 1])
    if rng.random() < 0.5 and any(r["category"] == name and "view" in r for r in reads):
        spec["aggregate"] = "views"
    if rng.random() < 0.5:
        k = rng.randint(2, 8)
        spec["normal_quantiles"] = {"levels": sorted(rng.random() for _ in range(k)), "values": sorted(rng.random() for _ in range(k))}
    if rng.random() < 0.3 and len(names) > 1:
        spec["requires"] = rng.sample([n for n in names if n != name], 1)
    if rng.random() < 0.3:
        spec["decides"] = rng.random() < 0.5
    return spec


def _decision(rng: random.Random, categories: list[str], reads: list[dict[str, Any]]) -> dict[str, Any]:
    mode = rng.choice(["max", "per_category", "micro_layer"])
    out: dict[str, Any] = {"mode": mode, "max": {"threshold": round(rng.random(), 3)}, "per_category": {}}
    if rng.random() < 0.5:
        out["fallback"] = rng.choice(["max", "per_category"])
    if rng.random() < 0.5:
        out["critical"] = rng.sample(categories, 1)
    if mode == "micro_layer":
        inputs = ["c:" + c for c in categories] + ["r:" + r["id"] for r in rng.sample(reads, rng.randint(0, len(reads)))]
        h, n = rng.choice([0, 0, 1, 7]), len(inputs)
        size = n * h + 2 * h + 2 if h else n + 2
        weights = struct.pack(f"<{size}f", *(rng.uniform(-1, 1) for _ in range(size)))
        out["micro_layer"] = {"inputs": inputs, "hidden": h, "dtype": "float32", "weights": base64.b64encode(weights).decode(), "lock": ""}
    return out


Break = Callable[[random.Random, dict[str, Any]], str]


def broken(rng: random.Random, doc: dict[str, Any], how: Break) -> tuple[dict[str, Any], str]:
    """A broken copy and the path that must be named."""
    doc = copy.deepcopy(doc)
    return doc, how(rng, doc)


def _any_read(rng: random.Random, doc: dict[str, Any]) -> tuple[dict[str, Any], str]:
    i = rng.randrange(len(doc["reads"]))
    return doc["reads"][i], f"$.reads[{i}]"


def _any_query(rng: random.Random, doc: dict[str, Any]) -> tuple[dict[str, Any], str]:
    i = rng.randrange(len(doc["scoring"]["queries"]))
    return doc["scoring"]["queries"][i], f"$.scoring.queries[{i}]"


def _any_category(rng: random.Random, doc: dict[str, Any]) -> tuple[dict[str, Any], str]:
    name = rng.choice(list(doc["categories"]))
    return doc["categories"][name], f"$.categories.{name}"


WRONG: list[Any] = [None, True, 7, -1.5, "text", [], {}, [1], {"a": 1}, float("nan"), float("inf"), 10**400]


def of_another_type(value: Any, rng: random.Random) -> Any:
    return rng.choice([w for w in WRONG if type(w) is not type(value) and not (isinstance(value, int | float) and isinstance(w, int | float))])


def drop_top(rng: random.Random, doc: dict[str, Any]) -> str:
    key = rng.choice(["pack", "version", "model", "contexts", "scoring", "reads", "categories", "decision"])
    del doc[key]
    return f"$.{key}"


def wrong_top(rng: random.Random, doc: dict[str, Any]) -> str:
    key = rng.choice(["pack", "version", "model", "answers", "contexts", "scoring", "reads", "categories", "decision"])
    doc[key] = rng.choice([w for w in WRONG if w is not None and type(w) is not type(doc[key]) and w != {"a": 1}])
    return f"$.{key}"


def drop_in_read(rng: random.Random, doc: dict[str, Any]) -> str:
    read, at = _any_read(rng, doc)
    key = rng.choice([k for k in read if k not in ("sign", "view")])
    del read[key]
    return f"{at}.{key}"


def wrong_in_read(rng: random.Random, doc: dict[str, Any]) -> str:
    read, at = _any_read(rng, doc)
    key = rng.choice([k for k in read if k != "view"])
    read[key] = of_another_type(read[key], rng)
    if key == "mu" and isinstance(read[key], list | dict):
        read[key] = "text"
    if key == "unsafe" and read[key] == [1]:
        read[key] = []
    return f"{at}.{key}"


def zero_sd(rng: random.Random, doc: dict[str, Any]) -> str:
    read, at = _any_read(rng, doc)
    read["sd"] = rng.choice([0, -1, 1e-300, float("nan")])
    return f"{at}.sd"


def unknown_query(rng: random.Random, doc: dict[str, Any]) -> str:
    read, at = _any_read(rng, doc)
    read["query"] = "none such"
    return f"{at}.query"


def unknown_category(rng: random.Random, doc: dict[str, Any]) -> str:
    read, at = _any_read(rng, doc)
    read["category"] = "none such"
    return f"{at}.category"


def drop_in_query(rng: random.Random, doc: dict[str, Any]) -> str:
    query, at = _any_query(rng, doc)
    key = rng.choice(["id", "template", "options"])
    del query[key]
    return f"{at}.{key}"


def wrong_in_query(rng: random.Random, doc: dict[str, Any]) -> str:
    query, at = _any_query(rng, doc)
    key = rng.choice(["id", "template", "options"])
    query[key] = rng.choice([w for w in WRONG if w is not None and type(w) is not type(query[key])])
    return f"{at}.{key}"


def extraction(rng: random.Random, doc: dict[str, Any]) -> str:
    query, at = _any_query(rng, doc)
    query["template"] = query["template"].replace("{?}", "{n}")
    return f"{at}"


def slot_inside(rng: random.Random, doc: dict[str, Any]) -> str:
    query, at = _any_query(rng, doc)
    query["template"] += " ?"
    return f"{at}.template"


def twin_options(rng: random.Random, doc: dict[str, Any]) -> str:
    query, at = _any_query(rng, doc)
    query["options"][1] = query["options"][0]
    return f"{at}.options[1]"


def bad_context(rng: random.Random, doc: dict[str, Any]) -> str:
    name = rng.choice(list(doc["contexts"]))
    doc["contexts"][name] = rng.choice(["no place", "{X} {X}", "{X} {undeclared}", 5, None])
    return f"$.contexts.{name}"


def drop_platt(rng: random.Random, doc: dict[str, Any]) -> str:
    spec, at = _any_category(rng, doc)
    del spec["platt"]
    return f"{at}.platt"


def wrong_in_category(rng: random.Random, doc: dict[str, Any]) -> str:
    spec, at = _any_category(rng, doc)
    key, value = rng.choice([
        ("platt", [1]), ("platt", "x"), ("platt", [1, None]), ("threshold", 1.5), ("threshold", "x"), ("requires", ["none such"]),
        ("requires", 4), ("normal_quantiles", {"levels": [0, 1], "values": [1, 0]}), ("normal_quantiles", []), ("aggregate", "sum"),
        ("decides", "yes"), ("fitted", 0),
    ])  # fmt: skip
    spec[key] = value
    return f"{at}.{key}"


def wrong_in_decision(rng: random.Random, doc: dict[str, Any]) -> str:
    key, value = rng.choice([
        ("mode", "least"), ("mode", 3), ("fallback", "micro_layer"), ("max", {}), ("max", {"threshold": 2}), ("max", "x"),
        ("micro_layer", "x"), ("micro_layer", {"inputs": []}), ("critical", ["none such"]), ("critical", "c0"),
    ])  # fmt: skip
    doc["decision"][key] = value
    return f"$.decision.{key}"


def spoilt_weights(rng: random.Random, doc: dict[str, Any]) -> str:
    layer = {"inputs": ["c:c0"], "hidden": 0, "weights": rng.choice(["AAAA", "!", "AAAAPw==", "", 5]), "lock": "sha256:" + "0" * 64}
    doc["decision"]["micro_layer"] = layer
    return "$.decision.micro_layer.weights"


BREAKS: list[Break] = [
    drop_top, wrong_top, drop_in_read, wrong_in_read, zero_sd, unknown_query, unknown_category, drop_in_query, wrong_in_query,
    extraction, slot_inside, twin_options, bad_context, drop_platt, wrong_in_category, wrong_in_decision, spoilt_weights,
]  # fmt: skip
