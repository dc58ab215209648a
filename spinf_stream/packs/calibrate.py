"""Calibration: labelled data and stored scores in, a calibrated pack and honest figures out.

The figures come from rows that took no part in the fit. "Before" is what one had without calibration: for a draft the
model's own probabilities (read_plan.raw), for a calibrated pack its old scores and thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.packs.constants import Target, exclusive, fit_constants
from spinf_stream.packs.document import sealed
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.figures import Bin, Binary, Interval, Top, binary, bins, paired_bootstrap, top
from spinf_stream.packs.file import Pack, from_doc
from spinf_stream.packs.labels import LabelError, Row, held_out, label_matrix, leakage
from spinf_stream.packs.scored import Scores, join, together
from spinf_stream.questions.plan import F64


class CategoryReport(NamedTuple):
    name: str
    yes: int  # held out
    no: int
    fit_yes: int
    fit_no: int
    threshold: float | None
    before: Binary
    after: Binary
    bins_before: list[Bin]
    bins_after: list[Bin]
    scores_yes: F64  # after, held out
    scores_no: F64


class TopReport(NamedTuple):
    """Where every held-out row has exactly one category."""

    categories: list[str]
    before: Top
    after: Top
    log_loss_change: Interval  # after - before, paired bootstrap


class Report(NamedTuple):
    pack: Pack  # calibrated
    old: Pack
    context: str
    model: str
    fingerprints: list[str]
    target: Target
    fitted_on: int
    tested_on: int
    normal: int
    normal_is_fit: bool
    split: str
    warnings: list[str]
    categories: list[CategoryReport]
    top: TopReport | None


def calibrate(
    pack: Pack, rows: list[Row], scores: Scores, mapping: Mapping[str, tuple[str, ...]], target: Target, *,
    test_rows: list[Row] | None = None, normal_rows: list[Row] | None = None, test_scores: Scores | None = None,
    normal_scores: Scores | None = None, context: str | None = None, share: float = 0.25, seed: int = 0, name: str | None = None,
    version: str | None = None, allow_unlabelled: bool = False, data_name: str = "",
) -> Report:  # fmt: skip
    """Fit on a part, report on the rest (or on `test_rows`). Test and normal rows have scores of their own where ids of
    different files may be the same. `name`: the calibrated pack's id. `data_name` tells its readers what the data was.
    Raises LabelError, StoredError."""
    warnings: list[str] = []
    every = together([s for s in (scores, test_scores, normal_scores) if s is not None])
    data, missing = join([r for r in rows if r.labels is not None], scores)
    if missing:
        warnings.append(f"{missing} labelled rows have no scores and are left out")
    if every.bad:
        warnings.append(f"{every.bad} lines of the scores could not be used (the first {every.why})")
    if test_rows is not None:
        fit, (test, gone) = data, join([r for r in test_rows if r.labels is not None], test_scores or scores, copies=True)
        split = "a file of its own"
        if gone:
            warnings.append(f"{gone} test rows have no scores and are left out")
    else:
        mask = held_out(data.rows, share, seed)
        fit, test = data.take(~mask), data.take(mask)
        split = f"{share:.0%} by the digest of the text, seed {seed}"
    if not fit.rows or not test.rows:
        raise LabelError("nothing to fit on or nothing to test on: give more rows, or another --hold-out")
    leak = leakage(fit.rows, test.rows)
    if leak.copies:
        warnings.append(f"leakage: {leak.copies} test rows are copies of fitted ones, so their figures flatter")
    if leak.near:
        warnings.append(f"leakage: {leak.near} test rows share over half their wording with a fitted one, so their figures flatter")
    normal, normal_is_fit = fit, normal_rows is None
    if normal_rows is not None:
        normal, gone = join(normal_rows, normal_scores or scores)
        if gone:
            warnings.append(f"{gone} rows of normal traffic have no scores and are left out")
    else:
        warnings.append("no unlabelled traffic given: mean, sd, mu and quantiles describe the labelled rows, whose mix may not be your traffic's")
    if len(every.fingerprints) > 1:
        warnings.append(f"the scores were made under {len(every.fingerprints)} fingerprints: their numbers may differ in the last digits")

    y_fit, y_test = (label_matrix(d.rows, pack.categories, mapping) for d in (fit, test))
    plain = Evaluator(pack, context)
    as_read = [plain.answers(d.p, d.logprob) for d in (normal, fit, test)]
    fitted = fit_constants(pack, scores.model, as_read[0], as_read[1], y_fit, target, allow_unlabelled=allow_unlabelled)
    doc = _stamped(fitted.pack.doc, name, version)
    noted: dict[str, Any] = {
        "context": plain.context, "system_fingerprint": sorted(every.fingerprints), "scored_on": every.day, "data": data_name, "split": split,
        "fitted_on": len(fit.rows), "tested_on": len(test.rows), "normal": 0 if normal_is_fit else len(normal.rows),
        "target": target.kind if target.kind == "f1" else f"{target.kind}={target.value:g}",
    }  # fmt: skip
    new = from_doc({**doc, "calibration": noted})
    before = plain.figures(as_read[2]).scores if pack.calibrated else plain.raw(as_read[2])
    after = Evaluator(new, context).figures(as_read[2]).scores
    categories = []
    for c, name in enumerate(new.categories):
        known = ~np.isnan(y_test[:, c])
        y = y_test[known, c] == 1
        if not len(y) or np.isnan(y_fit[:, c]).all():
            continue
        if y.all() or not y.any():
            warnings.append(f"{name}: the test rows are all of one kind, so most of its figures mean nothing")
        t = new.categories[name].threshold
        old_t = pack.categories[name].threshold if pack.calibrated else None
        categories.append(CategoryReport(
            name, int(y.sum()), int((~y).sum()), int((y_fit[:, c] == 1).sum()), int((y_fit[:, c] == 0).sum()), t,
            binary(before[known, c], y, old_t), binary(after[known, c], y, t),
            bins(before[known, c], y), bins(after[known, c], y), after[known, c][y], after[known, c][~y],
        ))  # fmt: skip
    choice = _top(list(new.categories), y_test, before, after)
    new = from_doc(sealed({**doc, "calibration": {**noted, "held_out": _held_out(categories, choice)}}))
    return Report(
        new, pack, plain.context, scores.model, sorted(every.fingerprints), target, len(fit.rows), len(test.rows), len(normal.rows),
        normal_is_fit, split, warnings + fitted.warnings, categories, choice,
    )  # fmt: skip


def _top(names: list[str], y: F64, before: F64, after: F64) -> TopReport | None:
    """Only where the labels are exclusive: exactly one yes and no silence among the labelled categories."""
    labelled = [c for c in range(len(names)) if not np.isnan(y[:, c]).any()]
    truth = exclusive(y[:, labelled])
    if truth is None:
        return None
    one, two = top(before[:, labelled], truth), top(after[:, labelled], truth)
    return TopReport([names[c] for c in labelled], one, two, paired_bootstrap(one.losses, two.losses))


def _held_out(categories: list[CategoryReport], choice: TopReport | None) -> dict[str, Any]:
    """The figures that travel with the pack, so that nobody sets a threshold on a category without seeing how good it is."""

    def rounded(x: float) -> float | None:
        return None if math.isnan(x) else round(x, 4)

    out: dict[str, Any] = {
        c.name: {"yes": c.yes, "no": c.no} | {k: rounded(getattr(c.after, k)) for k in ("auc", "precision", "recall", "brier", "log_loss", "ece")}
        for c in categories
    }  # fmt: skip
    if choice is None:
        return {"categories": out}
    t = choice.after
    accuracy = [rounded(x) for x in t.accuracy]
    return {"choice": {"accuracy": accuracy, "log_loss": rounded(t.log_loss), "ece": rounded(t.ece)}, "categories": out}


def _stamped(doc: dict[str, Any], name: str | None, version: str | None) -> dict[str, Any]:
    """Id, version, and the model that the constants belong to, at the head of the file where people look for them."""
    head = {"pack": name or doc["pack"], "version": version or doc["version"], "model": doc["model"]}
    if isinstance(said := doc.get("description"), str):
        doc = {**doc, "description": said.partition(" A draft: ")[0]}  # how the official drafts end, and no longer true
    return {**head, **{k: v for k, v in doc.items() if k not in head}}


def plain_numbers(report: Report) -> dict[str, Any]:
    """The report's figures as JSON; NaN becomes null."""

    def clean(x: Any) -> Any:
        if isinstance(x, float):
            return None if math.isnan(x) else round(x, 6)
        if isinstance(x, tuple) and hasattr(x, "_asdict"):
            return {k: clean(v) for k, v in x._asdict().items() if not isinstance(v, np.ndarray)}
        if isinstance(x, list | tuple):
            return [clean(v) for v in x]
        return x

    kept = {k: v for k, v in report._asdict().items() if k not in ("pack", "old")}
    return {"pack": report.pack.label, "digest": report.pack.digest, "before": report.old.label, **{k: clean(v) for k, v in kept.items()}}
