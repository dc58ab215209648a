"""Chooses the questions of bench/calibration_packs/sections.json by cross-validation within bbc_train.

    python bench/calibration_choose.py --data ../shared/data [--write]

It never opens bbc_test. The rule, written down before its first run: the candidates are every subset of QUESTIONS, read
from the rounded p and from the log-probabilities; each is fitted as `spinf-stream calibrate` fits, in ten repeats of
five-fold cross-validation, stratified by section, the folds drawn from the repeat's number; the lowest mean log loss of
the choice among the five sections wins, compared at three decimals; ties go to the lower calibration error (ten groups of
equal mass over the out-of-fold articles of a repeat, mean over the repeats), then to fewer questions. --write stores the
winner. Every question is scored once; the scores are kept where bench/calibration.py keeps its own.
"""

from __future__ import annotations

import argparse
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from calibration import HERE, rows, scored
from results import write_result

from spinf_stream.config import Settings
from spinf_stream.packs.constants import Target, fit_constants
from spinf_stream.packs.document import text_of
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.figures import top
from spinf_stream.packs.file import Pack, from_doc
from spinf_stream.packs.labels import label_matrix
from spinf_stream.packs.scored import Answered, join, read_scores
from spinf_stream.questions.plan import F64, I64

SECTIONS = ("business", "sport", "politics", "tech", "entertainment")
_WORDS = (" business", " sports", " politics", " technology", " entertainment")
# The first three were the bench's, the other three are the official news pack's; options in the order of SECTIONS.
QUESTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "section": ("\n\nThis news article belongs in the section:{?}", (" business", " sport", " politics", " tech", " entertainment")),
    "filed": ("\n\nFiled under:{?}", _WORDS),
    "desk": ("\n\nThis story was written by the{?}", _WORDS),
    "category": ("\n\nCategory:{?}", (" Business", " Sports", " Politics", " Technology", " Entertainment")),
    "subject": ("\n\nThe main subject of this text is{?}", (" money", " sport", " government", " computers", " film")),
    "tags": ("\n\nTags:{?}", (" business", " sport", " politics", " tech", " entertainment")),
}
ANSWERS = ("p", "logprob")
REPEATS, FOLDS = 10, 5


class Outcome(NamedTuple):
    questions: tuple[str, ...]
    answers: str
    log_loss: float  # means over the repeats
    ece: float
    accuracy: float

    def rank(self) -> tuple[float, float, int]:
        return round(self.log_loss, 3), self.ece, len(self.questions)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, help="folder with bbc_train.jsonl")
    p.add_argument("--model", default="demo")
    p.add_argument("--tokens", type=int, default=320, help="content tokens read of an article")
    p.add_argument("--work", type=Path, default=Settings().cache() / "bench-calibration")
    p.add_argument("--write", action="store_true", help="store the winner in bench/calibration_packs/sections.json")
    args = p.parse_args()

    whole = pack_of(tuple(QUESTIONS), "p")
    data = args.data / "bbc_train.jsonl"
    train, _ = join(rows(data, "category"), read_scores(scored(args, data, whole), whole))
    truth = label_matrix(train.rows, SECTIONS, {}).argmax(1).astype(np.int64)
    names = list(QUESTIONS)
    subsets = [s for n in range(1, len(names) + 1) for s in combinations(names, n)]
    table = sorted((cross_validated(train, truth, s, a) for s in subsets for a in ANSWERS), key=Outcome.rank)

    print(f"{len(table)} candidates on {len(train.rows)} articles of bbc_train, {REPEATS} x {FOLDS}-fold, model {args.model}")
    print(f"  {'questions':<48} {'answers':<8} log loss  error  accuracy")
    for o in table:
        print(f"  {'+'.join(o.questions):<48} {o.answers:<8} {o.log_loss:.4f}    {o.ece:.3f}  {o.accuracy:.3f}")
    best = table[0]
    print(f"chosen: {'+'.join(best.questions)}, answers {best.answers}")
    write_result("calibration-choose", {"model": args.model, "content_tokens": args.tokens, "articles": len(train.rows),
                                        "chosen": best._asdict(), "candidates": [o._asdict() for o in table]})  # fmt: skip
    if args.write:
        (HERE / "calibration_packs" / "sections.json").write_text(text_of(pack_of(best.questions, best.answers).doc), "utf-8")
    return 0


def pack_of(questions: tuple[str, ...], answers: str) -> Pack:
    queries = [{"id": q, "template": QUESTIONS[q][0], "options": list(QUESTIONS[q][1])} for q in questions]
    reads: list[dict[str, Any]] = [
        {"id": f"{q}:{c}", "query": q, "kind": "option", "option": i, "category": c} for q in questions for i, c in enumerate(SECTIONS)
    ]  # fmt: skip
    return from_doc({
        "pack": "bench/sections", "version": "0.2.0", "calibrated": False, "answers": answers, "contexts": {"plain": "{X}"},
        "scoring": {"empty_floor": True, "case_insensitive": True, "queries": queries},
        "reads": reads, "categories": {c: {"label": c} for c in SECTIONS}, "decision": {"mode": "per_category", "per_category": {}},
    })  # fmt: skip


def cross_validated(train: Answered, truth: I64, questions: tuple[str, ...], answers: str) -> Outcome:
    pack = pack_of(questions, answers)
    n = len(SECTIONS)
    columns = np.concatenate([np.arange(n) + n * list(QUESTIONS).index(q) for q in questions])
    seen = Evaluator(pack).answers(train.p[:, columns], train.logprob[:, columns])
    figures = [top(out_of_fold(pack, seen, truth, repeat), truth) for repeat in range(REPEATS)]
    mean = [float(np.mean(x)) for x in zip(*((t.log_loss, t.ece, t.accuracy.value) for t in figures))]
    return Outcome(questions, answers, *mean)


def out_of_fold(pack: Pack, seen: F64, truth: I64, repeat: int) -> F64:
    """[articles, sections]: each article's scores from constants that were fitted without its fold."""
    y = (truth[:, None] == np.arange(len(SECTIONS))).astype(np.float64)
    fold = folds(truth, repeat)
    out = np.empty_like(y)
    for k in range(FOLDS):
        fit = fold != k
        fitted = fit_constants(pack, "demo", seen[fit], seen[fit], y[fit], Target("f1"))
        out[~fit] = Evaluator(fitted.pack).figures(seen[~fit]).scores
    return out


def folds(truth: I64, repeat: int) -> I64:
    """Every section spread evenly; the order within it drawn from the repeat's number."""
    rng = np.random.default_rng(repeat)
    out = np.empty(len(truth), np.int64)
    order = np.argsort(truth + rng.random(len(truth)), kind="stable")
    out[order] = np.arange(len(truth)) % FOLDS
    return out


if __name__ == "__main__":
    sys.exit(main())
