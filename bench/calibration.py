"""Calibration on real labels: news sections and moderation, scored with the real model through `spinf-stream score`.

    python bench/calibration.py --data ../shared/data

Sections: fitted on bbc_train, reported on all of bbc_test. Moderation: moderation.jsonl split in two by the digest of the
text, against two baselines on the same halves: always the majority class, and TF-IDF with logistic regression
(scikit-learn: `pip install "spinf-stream[bench]"`). Scores are kept under --work, by data, pack and model, so a second run
takes seconds. Without --data it makes up labelled texts itself, which show that the bench runs and nothing about the
model. Exit 1 when a bar of the sections is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from baseline import majority, tfidf
from results import write_result

from spinf_stream import cli
from spinf_stream.config import Settings
from spinf_stream.packs.calibrate import Report, TopReport, calibrate, plain_numbers, read_scores
from spinf_stream.packs.constants import Target
from spinf_stream.packs.figures import Interval, bins, ece, wilson
from spinf_stream.packs.file import Pack, from_doc, load
from spinf_stream.packs.labels import Row, held_out, read_rows
from spinf_stream.packs.plots import available
from spinf_stream.packs.report import write_report

HERE = Path(__file__).resolve().parent
BAR_ACCURACY = 0.88
BAR_ECE = 0.07


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, help="folder with bbc_train, bbc_test and moderation.jsonl")
    p.add_argument("--news-pack", type=Path, default=HERE / "calibration_packs" / "sections.json")
    p.add_argument("--moderation-pack", type=Path, default=HERE / "calibration_packs" / "moderation.json")
    p.add_argument("--moderation-context", help="default: the pack's first")
    p.add_argument("--news-map", action="append", default=[], metavar="LABEL=CATEGORY", help="where the pack's categories have other names")
    p.add_argument("--moderation-map", action="append", default=[], metavar="LABEL=CATEGORY")
    p.add_argument("--model", default="demo")
    p.add_argument("--tokens", type=int, default=320, help="content tokens read of an article")
    p.add_argument("--work", type=Path, default=Settings().cache() / "bench-calibration")
    p.add_argument("--out", type=Path, help="write the two reports with their plots below this folder")
    args = p.parse_args()
    data = args.data or made_up(args.work / "made-up")

    report: dict[str, Any] = {"model": args.model, "content_tokens": args.tokens, "data": "given" if args.data else "made up"}
    news, good = sections(args, data)
    report["sections"] = news
    report["moderation"] = moderation(args, data)
    write_result("calibration", report)
    return 0 if good or args.data is None else 1


def sections(args: argparse.Namespace, data: Path) -> tuple[dict[str, Any], bool]:
    pack = as_draft(load(args.news_pack))
    train, test = (rows(data / f"bbc_{part}.jsonl", "category") for part in ("train", "test"))
    scores = read_scores([*scored(args, data / "bbc_train.jsonl", pack), *scored(args, data / "bbc_test.jsonl", pack)], pack)
    r = calibrate(pack, train, scores, mapping(args.news_map), Target("f1"), test_rows=test, allow_unlabelled=True)
    keep(args, r, "sections")
    t = r.top
    assert t is not None, "the sections exclude each other"
    error = ece_interval(t)
    bars = {
        f"section accuracy >= {BAR_ACCURACY}": (t.after.accuracy, t.after.accuracy.value >= BAR_ACCURACY),
        f"calibration error of the choice <= {BAR_ECE}": (error, error.value <= BAR_ECE),
        "log loss after - before < 0": (t.log_loss_change, t.log_loss_change.high < 0),
    }
    print(f"\nsections: {pack.label}, fitted on {r.fitted_on}, tested on {r.tested_on}, {len(pack.prompts)} prompts")
    for name, (figure, met) in bars.items():
        print(f"  {name:<44} {shown(figure)}  {'met' if met else 'MISSED'}")
    print(f"  accuracy before {shown(t.before.accuracy)}, calibration error before {t.before.ece:.3f}")
    print(f"  log loss {t.before.log_loss:.3f} -> {t.after.log_loss:.3f}")
    for w in r.warnings:
        print(f"  note: {w}")
    numbers = {**plain_numbers(r), "ece_interval": error._asdict(), "bars": {k: m for k, (_, m) in bars.items()}}
    return numbers, all(m for _, m in bars.values())


def moderation(args: argparse.Namespace, data: Path) -> dict[str, Any]:
    pack = as_draft(load(args.moderation_pack))
    labelled = rows(data / "moderation.jsonl", "label")
    mask = held_out(labelled, 0.5)
    fit, test = ([r for r, m in zip(labelled, mask) if m is want] for want in (np.False_, np.True_))
    scores = read_scores(scored(args, data / "moderation.jsonl", pack, args.moderation_context), pack, args.moderation_context)
    r = calibrate(
        pack, fit, scores, mapping(args.moderation_map), Target("f1"), test_rows=test, context=args.moderation_context, allow_unlabelled=True
    )  # fmt: skip
    keep(args, r, "moderation")
    texts = {row["id"]: row["text"] for row in map(json.loads, (data / "moderation.jsonl").read_text("utf-8").splitlines())}
    parts = [([texts[x.id] for x in part], [label(x) for x in part]) for part in (fit, test)]
    table = {"majority class": majority(*parts[0], *parts[1]), "TF-IDF + logistic regression": tfidf(*parts[0], *parts[1])}
    print(f"\nmoderation: {pack.label}, fitted on {r.fitted_on}, tested on {r.tested_on}, {len(pack.prompts)} prompts")
    if r.top:
        print(f"  {'the choice, accuracy: pack, uncalibrated':<44} {shown(r.top.before.accuracy)}")
        print(f"  {'pack, calibrated':<44} {shown(r.top.after.accuracy)}  calibration error {r.top.after.ece:.3f}, log loss {r.top.after.log_loss:.3f}")
    for name, b in table.items():
        if b is not None:
            print(f"  {name:<44} {shown(wilson(b.right, len(parts[1][0])))}  log loss {b.log_loss:.3f}")
    for c in r.categories:
        beside = "" if (b := table["TF-IDF + logistic regression"]) is None or c.name not in b.auc else f", TF-IDF {b.auc[c.name]:.3f}"
        print(f"  {c.name:<12} AUC {c.before.auc:.3f} -> {c.after.auc:.3f}{beside}; F1 {c.before.f1:.3f} -> {c.after.f1:.3f}; "
              f"calibration error {c.before.ece:.3f} -> {c.after.ece:.3f}; Brier {c.before.brier:.3f} -> {c.after.brier:.3f}")  # fmt: skip
    for w in r.warnings:
        print(f"  note: {w}")
    return {**plain_numbers(r), "baselines": {k: None if b is None else b._asdict() for k, b in table.items()}}


def as_draft(pack: Pack) -> Pack:
    """A calibrated pack loses its constants first: "before" is always the model's own probabilities."""
    return from_doc({**{k: v for k, v in pack.doc.items() if k != "digest"}, "calibrated": False})


def label(row: Row) -> str:
    assert isinstance(row.labels, tuple)
    return row.labels[0]


def rows(path: Path, field: str) -> list[Row]:
    with open(path, "rb") as f:
        return read_rows(f, field, path.name)


def scored(args: argparse.Namespace, data: Path, pack: Pack, context: str | None = None) -> list[bytes]:
    """The lines of the file's scores records, made once for the same data, pack, model and length."""
    key = hashlib.sha256(data.read_bytes() + f"{pack.digest} {args.model} {args.tokens} {context}".encode()).hexdigest()[:16]
    out = args.work / f"{data.stem}-{key}.jsonl"
    if not out.exists():
        args.work.mkdir(parents=True, exist_ok=True)
        source = args.work / f"pack-{key}.json"
        source.write_text(json.dumps(pack.doc), "utf-8")
        entry = json.dumps([{"id": pack.id, "version": pack.version, "context": context or pack.default_context}])
        code = cli.main([
            "score", str(data), "--questions", "none", "--packs", entry, "--pack-sources", str(source), "--out", str(out),
            "--model", args.model, "--max-content-tokens", str(args.tokens),
        ])  # fmt: skip
        if code:
            raise SystemExit(f"{data}: scoring failed with exit code {code}")
    return out.read_bytes().splitlines()


def keep(args: argparse.Namespace, report: Report, name: str) -> None:
    if args.out is not None:
        write_report(report, args.out / name, with_plots=available())


def ece_interval(t: TopReport, draws: int = 2_000) -> Interval:
    """The calibration error of the choice with a bootstrap interval over articles."""
    share, right = t.after.confidence, t.after.right
    rng = np.random.default_rng(0)
    n = len(share)
    errors = [ece(bins(share[i], right[i])) for i in (rng.integers(0, n, n) for _ in range(draws))]
    low, high = np.quantile(errors, [0.025, 0.975])
    return Interval(t.after.ece, float(low), float(high))


def mapping(given: list[str]) -> dict[str, tuple[str, ...]]:
    pairs = [g.partition("=") for g in given]
    return {a: tuple(x for x in b.split(",") if x) for a, _, b in pairs}


def shown(i: Interval) -> str:
    return f"{i.value:.3f} [{i.low:.3f}, {i.high:.3f}]"


def made_up(folder: Path) -> Path:
    """Labelled texts of the same shape, a bag of words each; no author's prose and no offence in them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(5)
    common = "the a of in on and said new year people time with for was has by after first two will".split()  # noqa: SIM905
    own = {
        "business": "profit shares market bank sales prices firm", "sport": "match goal team coach injury season win",
        "politics": "minister vote party election parliament policy", "tech": "software phone internet computer users chip",
        "entertainment": "film album actor singer award show festival",
    }  # fmt: skip
    for part, count in (("bbc_train", 60), ("bbc_test", 40)):
        lines = []
        for i in range(count):
            section = list(own)[i % 5]
            text = " ".join(rng.choices(common + 2 * own[section].split(), k=60))
            lines.append(json.dumps({"id": f"{part}-{i}", "text": text, "category": section}))
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    words = {"hate": "hate despise vermin", "offensive": "idiot damn stupid", "neither": "nice lunch thanks"}
    lines = []
    for i in range(90):
        kind = list(words)[i % 3]
        lines.append(json.dumps({"id": f"m{i}", "text": " ".join(rng.choices(common + 4 * words[kind].split(), k=14)), "label": kind}))
    (folder / "moderation.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


if __name__ == "__main__":
    sys.exit(main())
