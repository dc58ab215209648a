"""Slots: how often they are right, and what they cost.

    python bench/slots.py accuracy --data ../shared/data/bbc_test.jsonl
    python bench/slots.py cost                                              # the demo model on this machine
    python bench/slots.py cost --shape 12b --scheme fp8-static --device cuda --tokenizer tokenizer.json --gates --bits
    python bench/slots.py cost ... --beside --passes 12 --kinds number,copied-amount    # also while passes go on

On a card first `python -m pytest --noconftest -m cuda tests/kernels/test_cuda_slots.py`: a cost means nothing where those
fail. tokenizer.json is any Gemma's; the demo model's lies in the cache folder, below models/.

accuracy: 40 articles (first 250 words) that somebody has labelled by hand in bench/data/slot_labels.jsonl: company, main
figure with its unit, one person. Searched against copy-only, each answer's p against being right. Where several amounts could
pass for the main one, the labels take any; so the figure is also judged on the articles with an amount that is wrong alone, and
beside the first amount that stands in the article. Without --data there is nothing to be right about: it stops.
accuracy also writes bench/data/slot_widths.json, how many rows each step of a slot really took; for that alone it asks for a
number as well, which nobody has labelled.
cost: see slot_cost.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from results import write_result
from slot_cost import cost
from slot_widths import Widths

ROOT = Path(__file__).resolve().parent
WORDS = 250
ASKED = {
    "company": "\n\nQuestion: Which company or organisation is this article about?\nAnswer:{*}",
    "person": "\n\nQuestion: Which person is named in this article?\nAnswer:{*}",
    "figure": "\n\nQuestion: What is the main sum of money in this article?\nAnswer:{$}",
}
UNLABELLED = {"number": "\n\nQuestion: What is the main number in this article?\nAnswer:{n}"}  # nothing but its rows is told
MODES = ("search", "copy_only")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("accuracy", "cost"))
    p.add_argument("--data", type=Path, help="JSONL of {id, text}")
    p.add_argument("--articles", type=int, default=40, help="labelled articles to read")
    p.add_argument("--model", default="demo")
    p.add_argument("--threads", type=int, default=2)
    c = p.add_argument_group("cost")
    c.add_argument("--shape", choices=("model", "270m", "12b"), default="model", help="the model itself, or random weights")
    c.add_argument("--layers", type=int, help="of a random shape, to cut it")
    c.add_argument("--scheme", default="bf16", help="of random weights: bf16, fp8-static")
    c.add_argument("--device", default="cpu")
    c.add_argument("--tokenizer", type=Path, help="a Gemma tokenizer.json, for a random shape")
    c.add_argument("--kinds", help="such as number,copied-amount,number-full-beam; all without it")
    c.add_argument("--slots", type=int, default=48)
    c.add_argument("--repeat", type=int, default=3)
    c.add_argument("--beside", action="store_true", help="also what slots cost while passes go on, --slots of them with each of --passes (not the extreme kinds)")
    c.add_argument("--passes", type=int, default=12)
    c.add_argument("--gates", action="store_true", help="the gates of decode steps first, each with its seconds")
    c.add_argument("--bits", action="store_true", help="then slots together against each by itself, bit for bit")
    args = p.parse_args()
    if args.what == "cost":
        return cost(args)
    if args.data is None:
        p.error("accuracy needs the labelled articles: --data ../shared/data/bbc_test.jsonl")
    return accuracy(args)


def accuracy(args: argparse.Namespace) -> int:
    labels = [json.loads(line) for line in (ROOT / "data" / "slot_labels.jsonl").read_text("utf-8").splitlines()][: args.articles]
    texts = {r["id"]: " ".join(r["text"].split()[:WORDS]) for r in map(json.loads, args.data.read_text("utf-8").splitlines())}
    with Widths() as widths:
        began = time.monotonic()
        slots = read([texts[x["id"]] for x in labels], args)
        seconds = time.monotonic() - began
    report: dict[str, Any] = {"articles": len(labels), "seconds": round(seconds, 1)}
    for name in ASKED:
        for mode in MODES:
            answers = [s[f"{name} {mode}"]["answers"] for s in slots]
            report[f"{name}, {mode}"] = judge([(a, x[name]) for a, x in zip(answers, labels)])
    report |= figures([texts[x["id"]] for x in labels], [x["figure"] for x in labels], slots)
    report["unit alone, search"], report["unit alone, copy_only"] = (
        share([bool(s[f"figure {m}"]["answers"]) and s[f"figure {m}"]["answers"][0]["currency"] in {f["unit"] for f in x["figure"]}
               for s, x in zip(slots, labels)]) for m in MODES
    )  # fmt: skip
    for kind, taken in widths.taken.items():
        rows, steps = [sum(t) for t in taken], [len(t) for t in taken]
        report[f"rows of a slot, {kind}"] = {"mean": round(float(np.mean(rows)), 1), "median": float(np.median(rows)), "steps": round(float(np.mean(steps)), 2)}
    widths.write()
    path = write_result("slots-accuracy", report)
    print(json.dumps(report, indent=1), f"\n{path.name}")
    return 0


def figures(texts: list[str], truths: list[list[Any]], slots: list[dict[str, Any]]) -> dict[str, Any]:
    """What is right without a model, and what is right where not every amount is."""
    from spinf_stream.slots.spans import numbers

    found = [[{"value": s.parsed.value, "currency": s.parsed.currency} for s in numbers(t, "$")] for t in texts]
    hard = [any(not correct(a, truth) for a in amounts) for amounts, truth in zip(found, truths)]
    firsts = [bool(amounts) and correct(amounts[0], truth) for amounts, truth in zip(found, truths)]
    out: dict[str, Any] = {"figure, first amount in the article": share(firsts)}
    where = f"figure where some amount is wrong ({sum(hard)} articles)"
    out[f"{where}, first amount in the article"] = share([f for f, h in zip(firsts, hard) if h])
    for mode in MODES:
        cases = [(s[f"figure {mode}"]["answers"], truth) for s, truth, h in zip(slots, truths, hard) if h]
        out[f"{where}, {mode}"] = judge(cases)
    return out


def read(texts: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Slot id -> its one combination, for each text."""
    import tempfile

    from spinf_stream.config import Settings
    from spinf_stream.engine.open import open_scorer
    from spinf_stream.records import Article

    queries = [
        {"id": f"{name} {mode}", "template": template, "mode": mode, "top_k": 20} for name, template in (ASKED | UNLABELLED).items() for mode in MODES
    ]  # fmt: skip
    out = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.json"
        path.write_text(json.dumps({"queries": queries}))
        scorer = open_scorer(Settings(questions=str(path), model=args.model, threads=args.threads, device=args.device))
        for at in range(0, len(texts), 4):
            items = [scorer.prepare(Article(text=t)) for t in texts[at : at + 4]]
            for answer in scorer.answers(items, scorer.engine.collect(scorer.engine.submit(scorer.pack(items)))):
                out.append({s["id"]: s["combinations"][0] for s in answer.slots})
            print(f"\r{len(out)} of {len(texts)}", end="", file=sys.stderr, flush=True)
    return out


def judge(cases: list[tuple[list[dict[str, Any]], list[Any]]]) -> dict[str, Any]:
    """One case: the answers, best first, and what is right."""
    right = [[correct(a, truth) for a in answers] for answers, truth in cases]
    first = [bool(r and r[0]) for r in right]
    p = np.array([a[0]["p"] if a else 0.0 for a, _ in cases])
    relative = np.array([a[0]["share"] if a else 0.0 for a, _ in cases])
    hit = np.array(first)
    return {
        "right": share(first),
        "among the first five": share([any(r[:5]) for r in right]),
        "best answer not in the article": share([bool(a) and not a[0]["grounded"] for a, _ in cases]),
        "mean p of the best answer": round(float(p.mean()), 4),
        "Brier of p": round(float(np.mean((p - hit) ** 2)), 4),
        "AUC of p": auc(p, hit),
        "mean share of the best answer": round(float(relative.mean()), 4),
        "Brier of the share": round(float(np.mean((relative - hit) ** 2)), 4),
        "AUC of the share": auc(relative, hit),
        "right by p, quarter by quarter": [share(hit[q].tolist()) for q in np.array_split(np.argsort(p), 4)],
    }


def correct(answer: dict[str, Any], truth: list[Any]) -> bool:
    from spinf_stream.slots.answers import text_key

    if "value" in answer:
        return any(answer["value"] == t["value"] and answer["currency"] == t["unit"] for t in truth)
    return text_key(answer["text"]) in {text_key(t) for t in truth}


def share(values: list[bool]) -> str:
    return f"{sum(values)}/{len(values)}"


def auc(p: np.ndarray, hit: np.ndarray) -> float | None:
    """The chance that a right answer has the larger p of a right and a wrong one; null without both."""
    if hit.all() or not hit.any():
        return None
    gap = p[hit][:, None] - p[~hit][None, :]
    return round(float(((gap > 0) + 0.5 * (gap == 0)).mean()), 3)


if __name__ == "__main__":
    sys.exit(main())
