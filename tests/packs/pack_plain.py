"""The evaluator as the format's text reads, one number at a time: what the compiled one must equal to the last bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Answers = dict[tuple[str, str | None], list[float]]


def logsumexp(xs: list[float]) -> float:
    top = max(xs)
    total = 0.0
    for x in xs:
        total += math.exp(x - top)
    return top + math.log(total)


def mean(xs: list[float]) -> float:
    total = 0.0
    for x in xs:
        total += x
    return total / len(xs)


def read_value(read: dict[str, Any], answer: list[float]) -> float:
    p = [max(x, 1e-9) for x in answer]
    if read["kind"] == "pair":
        a = min(max(p[0] / (p[0] + p[1]), 1e-6), 1 - 1e-6)
        return read.get("sign", 1) * math.log(a / (1 - a))
    total = 0.0
    for x in p:
        total += x
    l = [math.log(x / total) for x in p]
    if read["kind"] == "option":
        return l[read["option"]] - read["mu"]
    a = [x - mu for x, mu in zip(l, read["mu"])]
    if read["kind"] == "any":
        return logsumexp(a[1:]) - a[0]
    upper = sorted(read["unsafe"])
    return logsumexp([a[i] for i in upper]) - logsumexp([x for i, x in enumerate(a) if i not in upper])


def figures(doc: dict[str, Any], answers: Answers) -> tuple[list[float], list[float], dict[str, float], dict[str, float]]:
    """Values and z by read, macro and score by category."""
    values = [read_value(r, answers[r["query"], r.get("F")]) for r in doc["reads"]]
    z = [(v - r["mean"]) / r["sd"] for v, r in zip(values, doc["reads"])]
    macros, scores = {}, {}
    for name, spec in doc["categories"].items():
        mine = [(r, v) for r, v in zip(doc["reads"], z) if r["category"] == name]
        if spec.get("aggregate") == "views":
            views: dict[str, list[float]] = {}
            for r, v in mine:
                if r.get("view") is not None:
                    views.setdefault(r["view"], []).append(v)
            macros[name] = mean([mean(v) for v in views.values()])
        else:
            macros[name] = mean([v for _, v in mine])
        a, b = spec["platt"]
        x = a * macros[name] + b
        scores[name] = 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
    return values, z, macros, scores


def entry(doc: dict[str, Any], answers: Answers) -> dict[str, Any]:
    """Categories and decision with the pack's own thresholds, lock taken as good."""
    _, z, macros, scores = figures(doc, answers)
    flagged: dict[str, bool | None] = {}
    for name, spec in doc["categories"].items():
        flagged[name] = None if spec.get("threshold") is None else scores[name] >= spec["threshold"]
    for name, spec in doc["categories"].items():
        for other in spec.get("requires", []):
            if flagged[name] and not flagged[other]:
                flagged[name] = False
    categories = {}
    for name, spec in doc["categories"].items():
        q = spec.get("normal_quantiles")
        percentile = None if q is None else round(float(np.interp(scores[name], q["values"], q["levels"])), 6)
        categories[name] = {"score": round(scores[name], 6), "percentile": percentile, "flagged": flagged[name]}
    deciding = [n for n, s in doc["categories"].items() if s.get("threshold") is not None and s.get("decides", True)]
    how = doc["decision"]
    out: dict[str, Any]
    if how["mode"] == "max":
        best = None
        for n in deciding:
            if best is None or scores[n] > scores[best]:
                best = n
        score, t = 0.0 if best is None else scores[best], how["max"]["threshold"]
        out = {"unsafe": best is not None and score >= t, "mode": "max", "score": round(score, 6), "threshold": round(t, 6), "category": best}
    elif how["mode"] == "micro_layer":
        value, t = micro(how["micro_layer"], doc, macros, z)
        out = {"unsafe": value >= t, "mode": "micro_layer", "score": round(value, 6), "threshold": round(t, 6)}
    else:
        hit = [n for n in deciding if flagged[n]]
        out = {"unsafe": bool(hit), "mode": "per_category", "categories": hit}
    critical = [n for n in how.get("critical", []) if flagged[n]]
    if critical:
        out["critical"] = critical
        if not out["unsafe"]:
            out |= {"unsafe": True, "by": "critical"}
    return {"categories": categories, "decision": out}


def micro(layer: dict[str, Any], doc: dict[str, Any], macros: dict[str, float], z: list[float]) -> tuple[float, float]:
    import base64
    import struct

    raw = base64.b64decode(layer["weights"])
    w = list(struct.unpack(f"<{len(raw) // 4}f", raw))
    by_read = {r["id"]: v for r, v in zip(doc["reads"], z)}
    x = [macros[i[2:]] if i[0] == "c" else by_read[i[2:]] for i in layer["inputs"]]
    n, h = len(x), layer.get("hidden", 0)
    total = 0.0
    if not h:
        for a, b in zip(w, x):
            total += a * b
        return total + w[n], w[n + 1]
    for j in range(h):
        inner = 0.0
        for i in range(n):
            inner += x[i] * w[i * h + j]
        total += w[n * h + h + j] * math.tanh(inner + w[n * h + j])
    return total + w[-2], w[-1]
