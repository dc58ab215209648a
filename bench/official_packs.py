"""Calibrates the official packs for the demo model, where ../shared/data has labels, and reports on the rows held out.

    python bench/official_packs.py news triage moderation --data ../shared/data [--write] [--out FOLDER]

news: the five sections, fitted on bbc_train, tested on bbc_test. triage: the two levels of intent, on banking77,
by packs/triage/banking77.json, a third of them held out. moderation: hate and profanity, one half
of moderation.jsonl fitted and the other held out, the halves of bench/calibration.py. Every labelled row is asked what its
labels speak of; the other categories' questions go to 50 of the fitted rows, which is enough to find their zero: they rank,
never decide, and say so. --write stores packs/NAME/VERSION.json beside the draft; prompt-packs.json is edited by hand.
Scores are kept as bench/calibration.py keeps them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from calibration import HERE, MODERATION, as_draft, mapping, scored_lines, shown
from partial import part_of, put_into, sample
from results import write_result

from spinf_stream.config import Settings
from spinf_stream.packs.calibrate import Report, calibrate, plain_numbers
from spinf_stream.packs.constants import Target, fit_constants
from spinf_stream.packs.document import sealed
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import from_doc, load
from spinf_stream.packs.labels import held_out, read_rows
from spinf_stream.packs.plots import available
from spinf_stream.packs.report import write_report
from spinf_stream.packs.scored import join, read_scores

PACKS = HERE.parent / "packs"
VERSION = "0.2.0"
UNLABELLED = 50  # rows on which the questions that no label speaks of are asked
WIDTH = 140


class Plan(NamedTuple):
    fit: str
    field: str
    about: str
    fitted: str  # as the pack's description says it
    test: str | None = None
    share: float = 0.0  # held out where there is no test file


PLANS = {
    "news": Plan(
        "bbc_train", "category", "BBC News 2004-2005 (Greene and Cunningham 2006): bbc_train fitted, bbc_test held out, labels of 'category'",
        "the five sections", test="bbc_test",
    ),
    "triage": Plan(
        "banking77", "intent", "BANKING77 (PolyAI, CC BY 4.0): questions to a bank, 'intent' mapped by packs/triage/banking77.json",
        "the two levels of intent", share=1 / 3,
    ),
    "moderation": Plan(
        "moderation", "label", "Davidson et al. 2017 (MIT): posts, 'label' mapped " + ", ".join(MODERATION),
        "hate and profanity", share=0.5,
    ),
}  # fmt: skip


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("packs", nargs="+", choices=list(PLANS), metavar="PACK")
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--model", default="demo")
    p.add_argument("--tokens", type=int, default=320, help="content tokens read of a text")
    p.add_argument("--work", type=Path, default=Settings().cache() / "bench-calibration")
    p.add_argument("--out", type=Path, help="write the reports with their plots below this folder")
    p.add_argument("--write", action="store_true", help=f"store packs/NAME/{VERSION}.json")
    args = p.parse_args()
    report: dict[str, Any] = {"model": args.model, "content_tokens": args.tokens}
    for name in args.packs:
        r = calibrated(args, name)
        print("\n".join(table(r)))
        report[name] = plain_numbers(r)
        if args.out is not None:
            write_report(r, args.out / name, with_plots=available())
        if args.write:
            (PACKS / name / f"{VERSION}.json").write_text(compact(r.pack.doc) + "\n", "utf-8")
    write_result("official-packs", report)
    return 0


def calibrated(args: argparse.Namespace, name: str) -> Report:
    """The labelled categories fitted on every labelled row, the others' zero found on UNLABELLED of the fitted ones."""
    plan, means = PLANS[name], meaning(name)
    draft = as_draft(load(PACKS / name / "0.1.0.json"))
    fit_lines, test_lines = lines_of(args.data, plan)
    fit, test = read_rows(fit_lines, plan.field), read_rows(test_lines, plan.field)
    spoken = {c.removesuffix("?") for names in means.values() for c in names} or {c for r in fit for c in r.labels or ()}
    part = part_of(draft, spoken)
    asked = [*scored_lines(args, fit_lines, plan.fit, part), *scored_lines(args, test_lines, plan.test or "", part)]
    r = calibrate(
        part, fit, read_scores(asked, part), means, Target("f1"), test_rows=test or None,
        share=plan.share, version=VERSION, allow_unlabelled=True, data_name=plan.about,
    )  # fmt: skip
    lines = fit_lines if test else [line for line, out in zip(fit_lines, held_out(fit, plan.share)) if not out]
    lines = sample(lines, plan.field, UNLABELLED)
    answers = join(read_rows(lines, None), read_scores(scored_lines(args, lines, plan.fit, draft), draft))[0]
    usual = Evaluator(draft).answers(answers.p, answers.logprob)
    whole = fit_constants(draft, r.model, usual, usual, np.full((len(usual), len(draft.categories)), np.nan), Target("f1"), allow_unlabelled=True)
    doc = put_into(whole.pack.doc, r.pack.doc)
    text = draft.doc["description"].partition(" A draft: ")[0]
    text += f" Calibrated for the demo model: {plan.fitted}; the other categories had no labels, are marked so, rank and never decide."
    noted = {**r.pack.doc["calibration"], "unlabelled_categories": {"normal": len(usual)}}
    head = {"pack": draft.id, "version": VERSION, "model": r.model, "name": doc["name"], "description": text}
    return r._replace(pack=from_doc(sealed({**head, **{k: v for k, v in doc.items() if k not in head}, "calibration": noted})))


def lines_of(data: Path, plan: Plan) -> tuple[list[bytes], list[bytes]]:
    """The labelled rows, and those of the test file where there is one."""
    fit = (data / f"{plan.fit}.jsonl").read_bytes().splitlines()
    test = (data / f"{plan.test}.jsonl").read_bytes().splitlines() if plan.test else []
    return fit, test


def meaning(name: str) -> dict[str, tuple[str, ...]]:
    if name == "moderation":
        return mapping(MODERATION)
    if name != "triage":
        return {}
    labels: dict[str, str] = json.loads((PACKS / "triage" / "banking77.json").read_text("utf-8"))["labels"]
    return {label: (intent.partition(".")[0], intent) for label, intent in labels.items()}


def table(r: Report) -> list[str]:
    out = [f"\n{r.pack.label}: {len(r.pack.prompts)} prompts, fitted on {r.fitted_on}, tested on {r.tested_on} ({r.split})"]
    if r.top:
        t = r.top
        out += [
            f"  the choice among {', '.join(t.categories)}:",
            f"  accuracy {shown(t.before.accuracy)} -> {shown(t.after.accuracy)}, calibration error {t.before.ece:.3f} -> {t.after.ece:.3f}, "
            f"log loss {t.before.log_loss:.3f} -> {t.after.log_loss:.3f}, change {shown(t.log_loss_change)}",
        ]
    for c in r.categories:
        out.append(f"  {c.name:<22} {c.fit_yes:>3} yes fitted, {c.yes:>3} tested  AUC {c.after.auc:.3f}  F1 {c.before.f1:.3f} -> {c.after.f1:.3f}  "
                   f"log loss {c.before.log_loss:.3f} -> {c.after.log_loss:.3f}  calibration error {c.before.ece:.3f} -> {c.after.ece:.3f}")  # fmt: skip
    return out + [f"  note: {w}" for w in r.warnings]


def compact(value: Any, indent: int = 0) -> str:
    """JSON whose small objects and lists stand on one line, like the drafts that people wrote."""
    flat = json.dumps(value, ensure_ascii=False)
    if (len(flat) + indent <= WIDTH and indent > 1) or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(k, ensure_ascii=False)}: {compact(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(pad + x for x in parts) + "\n" + " " * indent + "}"
    if all(not isinstance(v, dict | list) for v in value):  # words and numbers run on
        lines, line = [], ""
        for item in (json.dumps(v, ensure_ascii=False) for v in value):
            if line and len(pad) + len(line) + len(item) + 2 > WIDTH:
                lines.append(line)
                line = ""
            line += (", " if line else "") + item
        return "[\n" + ",\n".join(pad + x for x in [*lines, line]) + "\n" + " " * indent + "]"
    return "[\n" + ",\n".join(pad + compact(v, indent + 1) for v in value) + "\n" + " " * indent + "]"


if __name__ == "__main__":
    sys.exit(main())
