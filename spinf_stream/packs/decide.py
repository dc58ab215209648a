"""From category scores to flags and a decision, with a caller's overrides.

Order, as the format fixes it: thresholds -> flags -> `requires` in file order, in place -> the mode's decision -> critical.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spinf_stream.packs.check_decision import MODES
from spinf_stream.packs.file import Pack
from spinf_stream.packs.micro import LOCK_WARNING
from spinf_stream.packs.problems import Checker, PackError, kind, step

DIGITS = 6


class Overrides(NamedTuple):
    """A caller's `decision` object. `thresholds` may set a category to null: reported only."""

    mode: str | None = None
    threshold: float | None = None
    thresholds: Mapping[str, float | None] = {}
    critical: tuple[str, ...] | None = None


def overrides(pack: Pack, raw: Any, path: str = "$.decision") -> Overrides:
    """Check a caller's `decision` object against a pack. Raises PackError with every fault."""
    check = Checker()
    table = check.table({} if raw is None else raw, path) or {}
    for key in table:
        if key not in Overrides._fields:
            check.error(step(path, key), "unknown field")
    allowed = modes(pack)
    mode = check.text(table, "mode", path, one_of=allowed)
    used = mode or (pack.decision.mode if pack.decision else None)
    threshold = None
    if table.get("threshold") is not None:
        at = step(path, "threshold")
        if used == "per_category":
            check.error(at, "goes with the modes max and micro_layer; set thresholds for categories")
        else:
            threshold = check.number(table["threshold"], at, *((0, 1) if used == "max" else ()))
    thresholds: dict[str, float | None] = {}
    if table.get("thresholds") is not None:
        at = step(path, "thresholds")
        for name, value in (check.table(table["thresholds"], at) or {}).items():
            if name not in pack.categories:
                check.error(step(at, name), "names no category of this pack")
            thresholds[name] = None if value is None else check.number(value, step(at, name), 0, 1)
    critical = None
    if table.get("critical") is not None:
        at = step(path, "critical")
        names = check.items(table["critical"], at, empty=True) or []
        for i, name in enumerate(names):
            if not isinstance(name, str):
                check.error(step(at, i), f"must be a category id, not {kind(name)}")
            elif name not in pack.categories:
                check.error(step(at, i), "names no category of this pack")
        critical = tuple(names)
    if check.errors:
        raise PackError(pack.label, check.problems)
    return Overrides(mode, threshold, thresholds, critical)


def modes(pack: Pack) -> tuple[str, ...]:
    """The modes a caller may ask this pack for."""
    if pack.decision is None:
        return ()
    has = {"per_category": True, "max": pack.decision.max_threshold is not None, "micro_layer": pack.micro is not None}
    return tuple(m for m in MODES if has[m])


def sigmoid(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(x)
    return e / (1.0 + e)


class Judged(NamedTuple):
    categories: dict[str, dict[str, Any]]  # {score, percentile, flagged}, rounded; `fitted: false` where no labels were
    decision: dict[str, Any]


def judge(pack: Pack, scores: list[float], macros: list[float], z: list[float], change: Overrides | None = None) -> Judged:
    """One article: scores and macros by category, z by read, all in file order."""
    change = change or Overrides()
    score = dict(zip(pack.categories, scores))
    flagged: dict[str, bool | None] = {}
    thresholds: dict[str, float | None] = {}
    for name, spec in pack.categories.items():
        t = change.thresholds.get(name, spec.threshold)
        thresholds[name] = t
        flagged[name] = None if t is None else score[name] >= t
    for name, spec in pack.categories.items():
        if flagged[name] and not all(flagged[other] for other in spec.requires):
            flagged[name] = False
    deciding = [n for n, spec in pack.categories.items() if thresholds[n] is not None and spec.decides]
    return Judged(
        {n: _category(pack, n, score[n], flagged[n]) for n in pack.categories},
        _decision(pack, change, score, flagged, deciding, macros, z),
    )


def _category(pack: Pack, name: str, score: float, flagged: bool | None) -> dict[str, Any]:
    out: dict[str, Any] = {"score": round(score, DIGITS), "percentile": percentile(pack, name, score), "flagged": flagged}
    if not pack.categories[name].fitted:
        out["fitted"] = False  # the score ranks articles and is no probability
    return out


def percentile(pack: Pack, category: str, score: float) -> float | None:
    """Where the score lies among the category's scores on normal traffic, in [0, 1]."""
    quantiles = pack.categories[category].normal_quantiles
    return None if quantiles is None else round(interpolate(score, quantiles.values, quantiles.levels), DIGITS)


def interpolate(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """np.interp of one number, by the same arithmetic: a call of the array function costs more than all else here."""
    if x < xs[0]:
        return ys[0]
    i = bisect_right(xs, x) - 1
    if i == len(xs) - 1:
        return ys[-1]
    return (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i]) * (x - xs[i]) + ys[i]


def _decision(
    pack: Pack, change: Overrides, score: dict[str, float], flagged: dict[str, bool | None], deciding: list[str],
    macros: list[float], z: list[float],
) -> dict[str, Any]:  # fmt: skip
    spec = pack.decision
    assert spec is not None
    wanted = mode = change.mode or spec.mode
    warning = None
    if mode == "micro_layer" and (pack.micro is None or not pack.micro.locked):
        mode, warning = spec.fallback, LOCK_WARNING
    out: dict[str, Any]
    if mode == "max":
        top = max(deciding, key=lambda n: score[n], default=None)
        # a threshold asked for another mode says nothing about this one
        threshold = change.threshold if wanted == "max" and change.threshold is not None else spec.max_threshold
        assert threshold is not None
        best = 0.0 if top is None else score[top]
        unsafe = top is not None and best >= threshold
        out = {"unsafe": unsafe, "mode": "max", "score": round(best, DIGITS), "threshold": round(threshold, DIGITS), "category": top}
    elif mode == "micro_layer":
        assert pack.micro is not None
        value = pack.micro.value(micro_inputs(pack, macros, z))
        threshold = pack.micro.threshold if change.threshold is None else change.threshold
        out = {"unsafe": value >= threshold, "mode": "micro_layer", "score": round(value, DIGITS), "threshold": round(threshold, DIGITS)}
    else:
        hit = [n for n in deciding if flagged[n]]
        out = {"unsafe": bool(hit), "mode": "per_category", "categories": hit}
    critical = [n for n in (spec.critical if change.critical is None else change.critical) if flagged[n]]
    if critical:
        out["critical"] = critical
        if not out["unsafe"]:
            out["unsafe"], out["by"] = True, "critical"
    if warning:
        out["warning"] = warning
    return out


def micro_inputs(pack: Pack, macros: list[float], z: list[float]) -> list[float]:
    assert pack.micro is not None
    by_category = dict(zip(pack.categories, macros))
    by_read = {read.id: v for read, v in zip(pack.reads, z)}
    return [by_category[i[2:]] if i[0] == "c" else by_read[i[2:]] for i in pack.micro.inputs]
