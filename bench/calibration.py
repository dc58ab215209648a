"""Calibration on real labels: news sections and moderation, scored with the real model through `spinf-stream score`.

    python bench/calibration.py --data ../shared/data

Sections: fitted on bbc_train, reported on all of bbc_test, beside what chance alone does to a calibration error of so few
articles. Their questions are those that bench/calibration_choose.py picks by cross-validation within bbc_train. bbc_test is
not fresh all the same: an earlier session had looked at it for several variants of the pack, among them one that asks
"section", "filed" and "desk" (accuracy 0.894, calibration error 0.073) and one without "filed" (0.918 and 0.045).

Moderation: the official pack on moderation.jsonl, split in two by the digest of the text, against two baselines on the same
halves: always the majority class, and TF-IDF with logistic regression (scikit-learn: `pip install scikit-learn`).

Scores are kept under --work, by rows, questions and model, so a second run takes seconds. Without --data it makes up
labelled texts itself, which show that the bench runs and nothing about the model. Exit 1 when a bar of the sections is
missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from baseline import majority, tfidf
from partial import part_of
from results import write_result

from spinf_stream import cli
from spinf_stream.config import Settings
from spinf_stream.packs.calibrate import Report, TopReport, calibrate, plain_numbers
from spinf_stream.packs.constants import Target
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.figures import Interval, binary, bins, ece, log_loss, paired_bootstrap
from spinf_stream.packs.file import Pack, from_doc, load
from spinf_stream.packs.labels import Row, held_out, label_matrix, leakage, read_rows
from spinf_stream.packs.plots import available
from spinf_stream.packs.report import write_report
from spinf_stream.packs.scored import join, read_scores

HERE = Path(__file__).resolve().parent
BAR_ACCURACY = 0.88
BAR_ECE = 0.07
PART = 50  # rows scored in one go
# Whether a hateful text swears as well, its label does not say; hate and neither are said of every text.
MODERATION = ["hate=hate,profanity?", "offensive=profanity", "neither="]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, help="folder with bbc_train, bbc_test and moderation.jsonl")
    p.add_argument("--news-pack", type=Path, default=HERE / "calibration_packs" / "sections.json")
    p.add_argument("--moderation-pack", type=Path, default=HERE.parent / "packs" / "moderation" / "0.1.0.json")
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
    means, fresh = mapping(args.news_map), [row for row in test if not any(leakage(train, [row]))]
    r, s = (calibrate(pack, train, scores, means, Target("f1"), test_rows=part, allow_unlabelled=True) for part in (test, fresh))
    keep(args, r, "sections")
    t, u = r.top, s.top
    assert t is not None and u is not None, "the sections exclude each other"
    error, chance = ece_interval(t), ece_by_chance(t)
    bars = {
        f"section accuracy >= {BAR_ACCURACY}": (t.after.accuracy, t.after.accuracy.value >= BAR_ACCURACY),
        f"calibration error of the choice <= {BAR_ECE}": (error, error.value <= BAR_ECE),
        "log loss after - before < 0": (t.log_loss_change, t.log_loss_change.high < 0),
    }
    print(f"\nsections: {pack.label}, fitted on {r.fitted_on}, tested on {r.tested_on}, {len(pack.prompts)} prompts")
    for name, (figure, met) in bars.items():
        print(f"  {name:<44} {shown(figure)}  {'met' if met else 'MISSED'}")
    print(f"  a perfectly calibrated choice of these confidences would show {chance.value:.3f} on average over as many articles, "
          f"95 % of the time {chance.low:.3f} to {chance.high:.3f}")  # fmt: skip
    print(f"  on the {s.tested_on} articles that share no text with bbc_train: accuracy {shown(u.after.accuracy)}, calibration error {u.after.ece:.3f}")
    print(f"  accuracy before {shown(t.before.accuracy)}, calibration error before {t.before.ece:.3f}")
    print(f"  log loss {t.before.log_loss:.3f} -> {t.after.log_loss:.3f}")
    for w in r.warnings:
        print(f"  note: {w}")
    numbers = {**plain_numbers(r), "ece_interval": error._asdict(), "ece_by_chance": chance._asdict(), "bars": {k: m for k, (_, m) in bars.items()}}
    numbers["fresh"] = {"tested_on": s.tested_on, "accuracy": u.after.accuracy._asdict(), "ece": u.after.ece, "log_loss": u.after.log_loss}
    return numbers, all(m for _, m in bars.values())


def moderation(args: argparse.Namespace, data: Path) -> dict[str, Any]:
    """The official pack on one half, against two baselines on the same rows and the same yes and no.

    Asked is what its labelled categories read: all 106 questions would take six times as long and change no answer.
    """
    means = mapping(args.moderation_map or MODERATION)
    pack = part_of(as_draft(load(args.moderation_pack)), {c.removesuffix("?") for names in means.values() for c in names})
    labelled = rows(data / "moderation.jsonl", "label")
    mask = held_out(labelled, 0.5)
    fit, test = ([r for r, m in zip(labelled, mask) if m is want] for want in (np.False_, np.True_))
    scores = read_scores(scored(args, data / "moderation.jsonl", pack, args.moderation_context), pack, args.moderation_context)
    r = calibrate(pack, fit, scores, means, Target("f1"), test_rows=test, context=args.moderation_context, allow_unlabelled=True)
    keep(args, r, "moderation")
    answered = {"fit": join(fit, scores)[0], "test": join(test, scores, copies=True)[0]}
    y = {part: label_matrix(a.rows, pack.categories, means) for part, a in answered.items()}
    plain = Evaluator(pack, args.moderation_context)
    after = Evaluator(r.pack, args.moderation_context).figures(plain.answers(answered["test"].p, answered["test"].logprob)).scores
    texts = {row["id"]: row["text"] for row in map(json.loads, (data / "moderation.jsonl").read_text("utf-8").splitlines())}
    print(f"\nmoderation: {pack.label}, fitted on {r.fitted_on}, tested on {r.tested_on}, {len(pack.prompts)} prompts")
    table: dict[str, Any] = {}
    for c in r.categories:
        at = list(pack.categories).index(c.name)
        known = {part: ~np.isnan(y[part][:, at]) for part in y}
        truth = {part: y[part][known[part], at] == 1 for part in y}
        words = {part: [texts[row.id] for row in a.take(known[part]).rows] for part, a in answered.items()}
        linear = tfidf(words["fit"], truth["fit"], words["test"])
        base = majority(truth["fit"], len(truth["test"]))
        found = {"pack, uncalibrated": c.before, "pack, calibrated": c.after, "always the majority class": binary(base[0], truth["test"], base[1])}
        print(f"  {c.name}: {c.fit_yes} yes and {c.fit_no} no fitted, {c.yes} and {c.no} tested")
        if linear is not None:
            found["TF-IDF + logistic regression"] = binary(linear[0], truth["test"], linear[1])
        for name, b in found.items():
            print(f"    {name:<30} AUC {b.auc:.3f}  F1 {b.f1:.3f}  accuracy {b.accuracy:.3f}  log loss {b.log_loss:.3f}  "
                  f"Brier {b.brier:.3f}  calibration error {b.ece:.3f}")  # fmt: skip
        table[c.name] = {name: {k: None if math.isnan(v) else round(v, 6) for k, v in b._asdict().items()} for name, b in found.items()}
        if linear is not None:
            change = paired_bootstrap(log_loss(linear[0], truth["test"]), log_loss(after[known["test"], at], truth["test"]))
            print(f"    log loss, calibrated pack less TF-IDF: {shown(change)}")
            table[c.name]["log loss, pack less TF-IDF"] = change._asdict()
    for w in r.warnings:
        print(f"  note: {w}")
    return {**plain_numbers(r), "beside": table}


def as_draft(pack: Pack) -> Pack:
    """A calibrated pack loses its constants first: "before" is always the model's own probabilities."""
    return from_doc({**{k: v for k, v in pack.doc.items() if k != "digest"}, "calibrated": False})


def rows(path: Path, field: str) -> list[Row]:
    with open(path, "rb") as f:
        return read_rows(f, field, path.name)


def scored(args: argparse.Namespace, data: Path, pack: Pack, context: str | None = None) -> list[bytes]:
    """The lines of the file's scores records, made once for the same rows, pack, model and length.

    In parts, so that a run of half an hour that was stopped goes on where it was.
    """
    return scored_lines(args, data.read_bytes().splitlines(), data.stem, pack, context)


def scored_lines(args: argparse.Namespace, lines: list[bytes], name: str, pack: Pack, context: str | None = None) -> list[bytes]:
    parts = [lines[i : i + PART] for i in range(0, len(lines), PART)]
    return [line for part in parts for line in scored_part(args, part, name, pack, context)]


def scored_part(args: argparse.Namespace, lines: list[bytes], name: str, pack: Pack, context: str | None) -> list[bytes]:
    text = b"\n".join(lines) + b"\n"
    asked = json.dumps([pack.id, pack.doc["contexts"], pack.doc["scoring"], args.model, args.tokens, context])
    key = hashlib.sha256(text + asked.encode()).hexdigest()[:16]
    out = args.work / f"{name}-{key}.jsonl"
    if not out.exists():
        args.work.mkdir(parents=True, exist_ok=True)
        source, given = args.work / f"pack-{key}.json", args.work / f"rows-{key}.jsonl"
        source.write_text(json.dumps(pack.doc), "utf-8")
        given.write_bytes(text)
        entry = json.dumps([{"id": pack.id, "version": pack.version, "context": context or pack.default_context}])
        code = cli.main([
            "score", str(given), "--questions", "none", "--packs", entry, "--pack-sources", str(source), "--out", str(out),
            "--model", args.model, "--max-content-tokens", str(args.tokens),
        ])  # fmt: skip
        given.unlink()
        if code:
            raise SystemExit(f"{name}: scoring failed with exit code {code}")
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


def ece_by_chance(t: TopReport, draws: int = 10_000) -> Interval:
    """The error that a perfectly calibrated choice of the same confidences shows in a test of this size: mean, 95 % of draws."""
    share = t.after.confidence
    rng = np.random.default_rng(0)
    errors = [ece(bins(share, rng.random(len(share)) < share)) for _ in range(draws)]
    low, high = np.quantile(errors, [0.025, 0.975])
    return Interval(float(np.mean(errors)), float(low), float(high))


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
