"""Fitting a pack's constants, in the order in which the evaluator uses them, each rounded before the next is fitted.

    normal answers -> mu -> read values -> mean, sd -> z, macros -> platt -> scores -> quantiles, thresholds -> decision

mu, mean, sd and the quantiles come from normal traffic, labels not needed: a read's zero is what the model says of an
ordinary article, which is where its biases live. platt and thresholds come from labels.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Literal, NamedTuple

import numpy as np

from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import Pack, from_doc
from spinf_stream.packs.fit import (
    NoThreshold,
    logistic,
    platt,
    platt_joint,
    threshold_f1,
    threshold_precision,
    threshold_rate,
)
from spinf_stream.packs.labels import LabelError
from spinf_stream.packs.micro import encode_weights, lock
from spinf_stream.packs.read_plan import FLOOR, answer_places
from spinf_stream.questions.plan import F64, I64, Bool

DIGITS = 6
LEVELS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
FEW = 50  # labels of one kind below which a fit is told to be shaky
_MICRO_RIDGE = 1.0


class Target(NamedTuple):
    """What a threshold is chosen for."""

    kind: Literal["f1", "precision", "flag-rate"]
    value: float = 0.0


class Fitted(NamedTuple):
    pack: Pack
    warnings: list[str]


def fit_constants(
    pack: Pack, model: str, normal: F64, labelled: F64, y: F64, target: Target, *, allow_unlabelled: bool = False
) -> Fitted:  # fmt: skip
    """normal [M, options] and labelled [N, options]: answers as the reads see them; y [N, categories] 1, 0 or NaN.

    Raises LabelError where a category cannot be fitted and `allow_unlabelled` is false, or the pack has nothing to fit.
    """
    if not pack.categories or pack.decision is None:
        raise LabelError(f"{pack.label} is a question set alone: give it reads, categories and a decision first")
    warnings: list[str] = []
    doc = _without_constants(pack.doc, model)
    _fit_mu(doc, pack, normal)
    _fit_reads(doc, normal, warnings)
    neutral = Evaluator(from_doc(doc))
    macros = neutral.figures(labelled).macros
    unfitted: list[str] = []
    for c, (name, spec) in enumerate(doc["categories"].items()):
        known = ~np.isnan(y[:, c])
        yes, no = int((y[known, c] == 1).sum()), int((y[known, c] == 0).sum())
        if not yes or not no:
            unfitted.append(name)
            spec.update(platt=_neutral(pack, name), threshold=None, decides=False, fitted=False)
            continue
        if min(yes, no) < FEW:
            warnings.append(f"{name}: few labels, {yes} yes and {no} no; below {FEW} of each its constants are shaky")
        a, b = platt(macros[known, c], y[known, c] == 1)
        if a <= 0:
            warnings.append(f"{name}: its reads point the wrong way or nowhere (platt a = {a:.3f}); look at their signs and wording")
        spec["platt"] = [_round(a), _round(b)]
        if spec.pop("fitted", True) is False:
            spec.pop("decides", None)  # it was an earlier fit without labels that took the decision away
    _fit_choice(doc, macros, y, unfitted)
    if unfitted and not allow_unlabelled:
        raise LabelError(
            f"no labels of both kinds for {', '.join(unfitted)}: label some, remove the category, or allow categories without labels, "
            "which then only rank and never decide"
        )
    if unfitted:
        warnings.append(f"not fitted, for want of labels of both kinds: {', '.join(unfitted)}; their scores rank and do not decide")
    _fit_thresholds(doc, unfitted, normal, labelled, y, target, warnings)
    _fit_decision(doc, normal, labelled, y, target, warnings)
    return Fitted(from_doc(doc), warnings)


def _fit_choice(doc: dict[str, Any], macros: F64, y: F64, unfitted: list[str]) -> None:
    """Where the labels exclude each other, fit the categories together, so that the choice among them is calibrated too."""
    names = [n for n in doc["categories"] if n not in unfitted]
    columns = [c for c, n in enumerate(doc["categories"]) if n not in unfitted]
    truth = exclusive(y[:, columns])
    if truth is None:
        return
    a, b = platt_joint(macros[:, columns], truth)
    for name, one, two in zip(names, a, b):
        doc["categories"][name]["platt"] = [_round(one), _round(two)]


def exclusive(y: F64) -> I64 | None:
    """[N] the one category of each row, or None where some row has none, several, or a silence."""
    if y.shape[1] < 2 or np.isnan(y).any() or not (y.sum(1) == 1).all():
        return None
    return y.argmax(1).astype(np.int64)


def _without_constants(doc: dict[str, Any], model: str) -> dict[str, Any]:
    """A copy whose constants are neutral and whose decision needs none, so that it can be evaluated while it is fitted."""
    doc = copy.deepcopy(doc)
    for field in ("calibrated", "digest"):
        doc.pop(field, None)
    doc["model"] = model
    for read in doc["reads"]:
        read.update(mean=0.0, sd=1.0)
    for spec in doc["categories"].values():
        spec["platt"] = [1.0, 0.0]
    return doc


def _fit_mu(doc: dict[str, Any], pack: Pack, normal: F64) -> None:
    """mu_i = the mean of l_i = ln of option i's share: an option that is always likely says nothing by being likely."""
    where = answer_places(pack)
    for read, spec in zip(pack.reads, doc["reads"]):
        if read.kind == "pair":
            continue
        first, n = where[read.query, read.F]
        p = np.maximum(normal[:, first : first + n], FLOOR)
        mu = np.log(p / p.sum(1, keepdims=True)).mean(0)
        spec["mu"] = _round(mu[read.option]) if read.option is not None else [_round(m) for m in mu]


def _fit_reads(doc: dict[str, Any], normal: F64, warnings: list[str]) -> None:
    decision = doc["decision"]
    doc["decision"] = {"mode": "per_category"}
    values = Evaluator(from_doc(doc)).figures(normal).values
    for read, column in zip(doc["reads"], values.T):
        sd = float(column.std(ddof=1)) if len(column) > 1 else 0.0
        if sd < 1e-4:
            warnings.append(f"read {read['id']}: the same on all normal traffic; its sd is set to 1 and it says nothing")
            sd = 1.0
        read["mean"], read["sd"] = _round(float(column.mean())), _round(sd)
    doc["decision"] = _fittable(decision)


def _fittable(decision: dict[str, Any]) -> dict[str, Any]:
    """The decision with stand-ins for what is fitted last."""
    decision = copy.deepcopy(decision)
    if "max" in decision or "max" in (decision["mode"], decision.get("fallback")):
        decision["max"] = {"threshold": 0.5}
    layer = decision.get("micro_layer")
    if layer is not None:
        if layer.get("hidden"):
            raise LabelError("$.decision.micro_layer.hidden: a linear layer (0) is fitted here, no hidden one")
        layer.update(hidden=0, dtype="float32", weights=encode_weights(np.zeros(len(layer["inputs"]) + 2)), lock="sha256:" + "0" * 64)
    return decision


def _fit_thresholds(
    doc: dict[str, Any], unfitted: list[str], normal: F64, labelled: F64, y: F64, target: Target, warnings: list[str]
) -> None:
    ev = Evaluator(from_doc(doc))
    usual, scores = ev.figures(normal).scores, ev.figures(labelled).scores
    for c, (name, spec) in enumerate(doc["categories"].items()):
        values = np.quantile(usual[:, c], LEVELS)
        spec["normal_quantiles"] = {"levels": list(LEVELS), "values": [_round(v) for v in values]}
        if name in unfitted:
            continue
        known = ~np.isnan(y[:, c])
        try:
            spec["threshold"] = _round(_cut(scores[known, c], y[known, c] == 1, usual[:, c], target))
        except NoThreshold as e:
            warnings.append(f"{name}: {e}; it is reported only")
            spec["threshold"] = None


def _cut(score: F64, y: Bool, normal: F64, target: Target) -> float:
    if target.kind == "f1":
        return threshold_f1(score, y)
    if target.kind == "precision":
        return threshold_precision(score, y, target.value)
    return threshold_rate(normal, target.value)


def _fit_decision(doc: dict[str, Any], normal: F64, labelled: F64, y: F64, target: Target, warnings: list[str]) -> None:
    """The threshold of `max`, and a linear micro layer, against: some deciding category is labelled yes."""
    decision = doc["decision"]
    deciding = [
        c for c, spec in enumerate(doc["categories"].values()) if spec.get("threshold") is not None and spec.get("decides") is not False
    ]  # fmt: skip
    said = y[:, deciding]
    known = (said == 1).any(1) | (~np.isnan(said)).all(1)
    unsafe = (said == 1).any(1)[known]
    wants = [k for k in ("max", "micro_layer") if k in decision]
    if wants and (not deciding or unsafe.all() or not unsafe.any()):
        warnings.append(f"decision: articles of one kind alone, {' and '.join(wants)} cannot be fitted; per_category is used")
        decision.update(mode="per_category", fallback="per_category")
        for key in wants:
            del decision[key]
        return
    ev = Evaluator(from_doc(doc))
    usual, mine = ev.figures(normal), ev.figures(labelled[known])
    if "max" in decision:
        try:
            cut = _cut(mine.scores[:, deciding].max(1), unsafe, usual.scores[:, deciding].max(1), target)
        except NoThreshold as e:
            warnings.append(f"decision max: {e}; its threshold is set to 1")
            cut = 1.0
        decision["max"]["threshold"] = _round(cut)
    if "micro_layer" in decision:
        layer = decision["micro_layer"]
        columns = [_input(doc, name) for name in layer["inputs"]]
        x, usual_x = (np.stack([getattr(f, part)[:, i] for part, i in columns], 1) for f in (mine, usual))
        w, b = logistic(x, unsafe.astype(np.float64), _MICRO_RIDGE)
        w, b = w.astype(np.float32).astype(np.float64), float(np.float32(b))
        try:
            cut = _cut(x @ w + b, unsafe, usual_x @ w + b, target)
        except NoThreshold as e:
            warnings.append(f"decision micro_layer: {e}; its threshold is set to the highest value seen")
            cut = float((x @ w + b).max())
        layer["weights"] = encode_weights(np.array([*w, b, cut]))
        layer["lock"] = lock(doc)


def _input(doc: dict[str, Any], name: str) -> tuple[str, int]:
    if name[0] == "c":
        return "macros", list(doc["categories"]).index(name[2:])
    return "z", [r["id"] for r in doc["reads"]].index(name[2:])


def _neutral(pack: Pack, name: str) -> list[float]:
    kept = pack.categories[name].platt if pack.calibrated else None
    return list(kept) if kept else [1.0, 0.0]


def _round(x: float) -> float:
    x = round(float(x), DIGITS)
    assert math.isfinite(x)
    return x
