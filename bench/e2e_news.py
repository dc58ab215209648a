"""News sections end to end: real Kafka, real Redis, the demo model, against plain `transformers`.

    python bench/e2e_news.py --data ../shared/data/bbc_test.jsonl

Produces every article (first 250 words) to a topic, runs `spinf-stream worker --burst` twice (the second time in another
group, so that all of it is read again: 0 forward passes), reads the scores and compares each with one plain forward of
`transformers` on BOS + tokens(text) + tokens(template). Without --data it writes articles of the same shape itself, which
have no sections: then everything but the accuracy is shown. Exit 1 when a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from results import write_result  # noqa: E402

TEMPLATE = "\n\nThis news article belongs in the section:{?}"
OPTIONS = [" business", " sport", " politics", " tech", " entertainment"]
WORDS = 250


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, help="JSONL of {id, text, category}")
    p.add_argument("--articles", type=int, help="only the first N")
    args = p.parse_args()
    articles = read(args.data) if args.data else made_up(40)
    articles = articles[: args.articles]

    with tempfile.TemporaryDirectory(prefix="e2e-news-") as folder:
        run = stream(articles, Path(folder))
    truth, seconds = plain(articles)
    report = compare(articles, run["records"], truth)
    report |= {k: v for k, v in run.items() if k != "records"}
    report["transformers_seconds"] = round(seconds, 1)
    write_result("e2e_news", report)
    print(json.dumps(report, indent=1))
    good = (
        report["lost"] == report["twice"] == 0
        and report["same_choice"] == len(articles)
        and report["worst_logprob_difference"] <= 1e-4
        and report["second_run_passes"] == 0
        and report["second_run_duplicates"] == len(articles)
        and report.get("accuracy_floor_corrected", 1.0) >= 0.85
    )
    print("all shown" if good else "A CHECK FAILED", file=sys.stderr)
    return 0 if good else 1


def read(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{"id": r["id"], "text": " ".join(r["text"].split()[:WORDS]), "category": r.get("category")} for r in rows]


def made_up(count: int) -> list[dict[str, Any]]:
    rng = random.Random(7)
    words = ["market", "match", "minister", "phone", "film", "shares", "goal", "vote", "chip", "song", "rose", "won", "said", "made", "new", "the", "a", "of", "in", "on", "and"]
    return [{"id": f"made-{i}", "text": " ".join(rng.choices(words, k=WORDS)), "category": None} for i in range(count)]


def stream(articles: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Produce, score twice, read back."""
    from kafka_io import create, read_all
    from services import Kafka, Redis

    kafka, redis = Kafka(folder / "kafka"), Redis(folder / "redis")
    kafka.start()
    redis.start()
    try:
        asyncio.run(create(kafka.address, {"articles": 2, "scores": 2, "articles.dlq": 1}))
        lines = [json.dumps({"id": a["id"], "text": a["text"], "source": "bench"}) for a in articles]
        (folder / "articles.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
        questions = {"queries": [{"id": "section", "template": TEMPLATE, "options": OPTIONS}], "case_insensitive": True}
        (folder / "questions.json").write_text(json.dumps(questions), "utf-8")
        env = {**os.environ, "SPINF_STREAM_BROKERS": kafka.address}
        cli = [sys.executable, "-m", "spinf_stream.cli"]
        subprocess.run([*cli, "produce", str(folder / "articles.jsonl")], env=env, check=True)
        worker = [*cli, "worker", "--burst", "--questions", str(folder / "questions.json"), "--redis-url", redis.url, "--port", "0"]
        env["SPINF_STREAM_DEDUP_SECRET"] = "bench"
        began = time.monotonic()
        first = subprocess.run([*worker, "--group", "first"], env=env, check=True, stderr=subprocess.PIPE, text=True)
        seconds = time.monotonic() - began
        records = [json.loads(r.value) for r in asyncio.run(read_all(kafka.address, "scores"))]
        second = subprocess.run([*worker, "--group", "second"], env=env, check=True, stderr=subprocess.PIPE, text=True)
        both = [json.loads(r.value) for r in asyncio.run(read_all(kafka.address, "scores"))]  # partition by partition
    finally:
        kafka.stop()
        redis.stop()
    return {
        "records": records,
        "worker_seconds": round(seconds, 1),
        "first_run_passes": passes(first.stderr),
        "second_run_passes": passes(second.stderr),
        "second_run_duplicates": duplicates(both) - duplicates(records),
    }


def duplicates(records: list[dict[str, Any]]) -> int:
    return sum(r["outcome"] == "duplicate" for r in records)


def passes(log: str) -> int:
    """From the worker's closing summary line."""
    found = re.findall(r"(\d+) passes", log)
    assert found, f"no summary in the worker's log: {log[-2000:]}"
    return int(found[-1])


def plain(articles: list[dict[str, Any]]) -> tuple[dict[str, np.ndarray], float]:
    """id -> log-probability of each option: `transformers` on the GGUF, one forward an article, its own tokenizer."""
    import torch
    from demo_transformers import demo_model

    model, tokenizer = demo_model()

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    variants: list[list[int]] = []
    for option in OPTIONS:
        word = option.strip()
        forms = dict.fromkeys([option, *(s + f for f in (word.lower(), word.capitalize(), word.upper()) for s in (" ", ""))])
        variants.append(list({t[0] for t in map(ids, forms) if len(t) == 1}))
    floor = TEMPLATE.removesuffix("{?}")
    began = time.monotonic()
    out = {}
    with torch.inference_mode():
        for name, text in [("", None), *((a["id"], a["text"]) for a in articles)]:
            prompt = [tokenizer.bos_token_id, *([] if text is None else ids(text)), *ids(floor)]
            row = model(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1].double().log_softmax(-1)
            out[name] = np.array([row[v].logsumexp(0).item() for v in variants])
    return out, time.monotonic() - began


def compare(articles: list[dict[str, Any]], records: list[dict[str, Any]], truth: dict[str, np.ndarray]) -> dict[str, Any]:
    """`records` of the first run: an article whose text another one has too is answered as a duplicate, under its own id."""
    by_id = {r["id"]: r for r in records if r["outcome"] in ("scored", "duplicate")}
    same = raw = corrected = labelled = 0
    worst = 0.0
    floor = truth[""]
    for a in articles:
        if a["id"] not in by_id:
            continue
        combination = by_id[a["id"]]["scores"][0]["combinations"][0]
        ours = np.array([o["logprob"] for o in combination["options"]])
        worst = max(worst, float(np.abs(ours - truth[a["id"]]).max()))
        lift = [o["p"] / o["floor_p"] for o in combination["options"]]
        same += int(ours.argmax() == truth[a["id"]].argmax() and np.argmax(lift) == (truth[a["id"]] - floor).argmax())
        if a["category"]:
            labelled += 1
            at = OPTIONS.index(" " + a["category"])
            raw += int(ours.argmax() == at)
            corrected += int(np.argmax(lift) == at)
    report: dict[str, Any] = {
        "articles": len(articles),
        "lost": len({a["id"] for a in articles} - set(by_id)),
        "twice": len(records) - len({r["id"] for r in records}),
        "equal_texts": sum(r["outcome"] == "duplicate" for r in records),
        "same_choice": same,
        "worst_logprob_difference": worst,
    }
    if labelled:
        report |= {"accuracy_raw": round(raw / labelled, 4), "accuracy_floor_corrected": round(corrected / labelled, 4)}
    return report


if __name__ == "__main__":
    sys.exit(main())
