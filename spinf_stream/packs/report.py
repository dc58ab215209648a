"""A calibration report for people: a Markdown page, its figures as JSON, and the plots beside it."""

from __future__ import annotations

import json
import math
from pathlib import Path

from spinf_stream.packs import plots
from spinf_stream.packs.calibrate import Report, plain_numbers
from spinf_stream.packs.document import text_of
from spinf_stream.packs.figures import Interval


def write_report(report: Report, folder: Path, *, with_plots: bool) -> list[Path]:
    """Write pack, page, figures and plots into `folder`. The files written, the pack first."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "pack.json", folder / "report.md", folder / "report.json"]
    written[0].write_text(text_of(report.pack.doc), "utf-8")
    drawn = with_plots and bool(report.categories)
    written[1].write_text("\n".join(page(report, drawn)) + "\n", "utf-8")
    written[2].write_text(json.dumps(plain_numbers(report), indent=1) + "\n", "utf-8")
    if drawn:
        panels = [(c.name, c.bins_before, c.bins_after) for c in report.categories]
        if report.top:
            panels.insert(0, ("choice (normalised)", report.top.before.groups, report.top.after.groups))
        written += [folder / "reliability.png", folder / "scores.png"]
        plots.reliability(panels, written[-2])
        plots.histograms([(c.name, c.scores_yes, c.scores_no, c.threshold) for c in report.categories], written[-1])
    return written


def page(r: Report, drawn: bool) -> list[str]:
    was = "the model's own probabilities, mean over a category's reads" if not r.old.calibrated else f"the scores of {r.old.label}"
    origin = f" --from {r.old.label}" if r.old.id != r.pack.id else ""  # the records know it by its old name
    goal = {"f1": "the best F1", "precision": f"precision {r.target.value:g}", "flag-rate": f"a flag rate of {r.target.value:g}"}[r.target.kind]
    normal = "the fitted rows themselves" if r.normal_is_fit else f"{r.normal} rows of normal traffic"
    out = [
        f"# Calibration of {r.pack.label}",
        "",
        f"- model {r.model}, context `{r.context}`, fingerprint {', '.join(r.fingerprints)}",
        f"- digest {r.pack.digest}",
        f"- fitted on {r.fitted_on} labelled rows, tested on {r.tested_on} others ({r.split}); mean, sd, mu and quantiles from {normal}",
        f"- thresholds chosen for {goal} on the fitted rows; every figure below is from the test rows",
        f"- before: {was}; calibration errors over {10} groups of equal mass",
        "",
    ]
    if r.warnings:
        out += ["## Look at these first", "", *(f"- {w}" for w in r.warnings), ""]
    if r.top:
        t = r.top
        out += [
            f"## The choice among {', '.join(t.categories)}",
            "",
            "The labels exclude each other, so the categories' platt constants were fitted together: each score for itself, and their shares.",
            "",
            "| | before | after |",
            "|---|---|---|",
            f"| accuracy (95 %) | {_interval(t.before.accuracy)} | {_interval(t.after.accuracy)} |",
            f"| calibration error of the choice | {t.before.ece:.3f} | {t.after.ece:.3f} |",
            f"| log loss | {t.before.log_loss:.3f} | {t.after.log_loss:.3f} |",
            "",
            f"Log loss after - before: {_interval(t.log_loss_change)}, 95 % interval of a paired bootstrap"
            + (", clear of 0." if t.log_loss_change.low > 0 or t.log_loss_change.high < 0 else ", which includes 0."),
            "",
        ]
    if r.categories:
        head = ("category", "yes / no (test)", "threshold", "accuracy", "precision", "recall", "F1", "AUC", "Brier", "log loss", "calibration error")
        out += ["## Each category, before -> after", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for c in r.categories:
            cells = [c.name, f"{c.yes} / {c.no}", "-" if c.threshold is None else f"{c.threshold:.3f}"]
            for name in ("accuracy", "precision", "recall", "f1", "auc", "brier", "log_loss", "ece"):
                cells.append(f"{_number(getattr(c.before, name))} -> {_number(getattr(c.after, name))}")
            out.append("| " + " | ".join(cells) + " |")
        cut = "0.5" if not r.old.calibrated else "the old threshold"
        out += ["", f"Accuracy, precision, recall and F1 before are at {cut}.", ""]
    if drawn:
        out += ["![reliability](reliability.png)", "", "![scores](scores.png)", ""]
    out += [
        "## Use it",
        "",
        "`pack.json` beside this page is the calibrated pack:",
        "",
        f"    spinf-stream worker --pack-sources pack.json --packs {r.pack.id}",
        "",
        "It is sealed: after an edit `spinf-stream packs seal pack.json` makes it usable again. Try other thresholds over stored scores without a forward pass:",
        "",
        f"    spinf-stream packs evaluate pack.json scores-data.jsonl --set {next(iter(r.pack.categories))}=0.8{origin} --out again.jsonl",
    ]
    return out


def _interval(i: Interval) -> str:
    return f"{i.value:.3f} [{i.low:.3f}, {i.high:.3f}]"


def _number(x: float) -> str:
    return "-" if math.isnan(x) else f"{x:.3f}"
