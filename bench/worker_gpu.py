"""The worker itself on the card: a topic of different articles on an embedded broker, dedup on, drained once.

    python bench/worker_gpu.py --job ../shared/bench/headline.json --tokenizer TOKENIZER_JSON --articles 2400

Random weights of the Gemma-4-12B shape, the headline's 56 questions, its articles made different by a number in front.
Shown: questions/s from the first score to the last, against the back-to-back rate of the engine in the same process; the
GPU's idle share by the worker's own /metrics and by device events; that every score is the bits of `score FILE`; and the
most memory. A second, shorter run (--profiled articles) is watched by torch's profiler from its first kernel to its last:
the idle share by the intervals of kernels beside that of the run's own /metrics. The command itself: worker_process.py.
`--model FOLDER` runs another model through the ordinary way instead (for trying the bench without a GPU).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import device
import gpu_engines
from job import Job, load
from results import Run, write_result

from spinf_stream import demo_broker, score_cli
from spinf_stream.config import Settings
from spinf_stream.engine.open import open_scorer
from spinf_stream.engine.runner import Runner
from spinf_stream.files import Line
from spinf_stream.metrics import Metrics
from spinf_stream.records import Article, encode
from spinf_stream.stream.kafka import topics
from spinf_stream.stream.worker import serve


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--job", type=Path)
    p.add_argument("--articles", type=int, default=2400)
    p.add_argument("--seconds", type=float, default=8, help="of the back-to-back run")
    p.add_argument("--tokenizer", type=Path)
    p.add_argument("--layers", type=int, default=48)
    p.add_argument("--model", help="a folder, instead of random 12B weights")
    p.add_argument("--partitions", type=int, default=8)
    p.add_argument("--profiled", type=int, default=600, help="articles of the run that the profiler watches; 0 = none")
    args = p.parse_args()
    args.gates, args.compact, args.questions = False, False, 56
    job = load(args.job)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(args, job, Path(folder)))
    print(json.dumps(report, indent=1))
    return 0


async def run(args: argparse.Namespace, job: Job, folder: Path) -> dict[str, Any]:
    settings = Settings(
        redis_url="embedded://", producer_idempotence=False, port=0, cache_dir=str(folder / "cache"), model=args.model or "random-12b",
        questions=str(folder / "questions.json"), log_level="warning",
    )  # fmt: skip
    (folder / "questions.json").write_text(json.dumps({**job.scoring, "case_insensitive": True}), "utf-8")
    shared: dict[str, Any] = {"folder": folder, "report": {}}
    scorer = open_scorer(settings) if args.model else gpu_engines.scorer_of(job, args, shared)
    rate = back_to_back(job, args, shared)
    device.forget_memory()
    worker, lines = await drained(args, settings, scorer, job, folder / "first", 0, args.articles)
    records = worker.pop("records")
    memory = device.memory()
    different = await compare(scorer, lines, records)
    questions = len(lines) * scorer.questions
    found = {
        **worker, "articles": len(lines), "questions": questions, "back_to_back_questions_per_s": rate and round(rate),
        "share_of_back_to_back": rate and worker["questions_per_s"] and round(worker["questions_per_s"] / rate, 4), "scores_different_from_score_file": different,
        "bit_exact": scorer.engine.bit_exact, "peak": memory, **shared["report"],
    }  # fmt: skip
    timed = Run("worker", len(lines), questions, int(worker["tokens"]), [1e3 * worker["seconds"]], 1e3 * worker["busy_seconds"])
    write_result("worker", found, [timed])  # the profiler may yet fail
    if args.profiled and not args.model:
        found["profiled"] = await profiled(args, settings, scorer, job, folder / "second")
        write_result("worker", found, [timed])
    return found


async def profiled(args: argparse.Namespace, settings: Settings, scorer: Any, job: Job, folder: Path) -> dict[str, Any]:
    """A run of articles that the first had not, from before its first pass to after its last under the profiler."""
    items = [scorer.prepare(a) for a in job.articles]
    out: dict[str, Any] = {"kernels": device.kernels(scorer, scorer.pack(items))}  # and the profiler is warm
    p = device.profiler()
    p.start()
    try:
        worker, _ = await drained(args, settings, scorer, job, folder, args.articles, args.profiled)
    finally:
        p.stop()
    worker.pop("records")
    return out | {"gpu_idle_by_profile": device.idle(p), **worker}


def back_to_back(job: Job, args: argparse.Namespace, shared: dict[str, Any]) -> float | None:
    """Questions/s of the engine alone, jobs of 24 articles one after another; None without the 12B."""
    if args.model:
        return None
    *_, period_ms = gpu_engines.stream(job, args, shared)()
    return 1e3 * len(job.articles) * len(job.scoring["queries"]) / period_ms


async def drained(
    args: argparse.Namespace, settings: Settings, scorer: Any, job: Job, folder: Path, first: int, count: int
) -> tuple[dict[str, Any], list[bytes]]:
    """A broker in `folder`, its topic filled with articles first .. first + count - 1, a worker that drains it: (what was
    seen and its records, the articles)."""
    lines = [encode(Article(id=f"{n}", text=f"{n} {a.text}")) for n, a in zip(range(first, first + count), itertools.cycle(job.articles))]
    folder.mkdir()
    broker, address = await demo_broker.start(folder)
    try:
        return await watched(args, settings, scorer, address, lines, first), lines
    finally:
        await broker.stop()


async def watched(args: argparse.Namespace, settings: Settings, scorer: Any, address: str, lines: list[bytes], first: int) -> dict[str, Any]:
    import msgspec
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    from spinf_stream.topics_cli import plans

    settings = msgspec.structs.replace(settings, brokers=address)
    await topics.create(settings, plans(settings, args.partitions), None)
    producer = AIOKafkaProducer(bootstrap_servers=address, linger_ms=5)
    await producer.start()
    for n, line in enumerate(lines, first):
        await producer.send("articles", line, str(n).encode())
    await producer.stop()

    runner, metrics, stop = Runner(scorer.engine), Metrics(scorer.engine.budget), asyncio.Event()
    began = time.time()
    working = asyncio.create_task(serve(settings, scorer, runner, stop=stop, metrics=metrics))
    marks: list[tuple[float, float]] = []  # (time, articles scored)
    while not marks or marks[-1][1] < len(lines):
        await asyncio.sleep(0.1)
        if working.done():
            raise SystemExit(f"the worker left with {working.result()}")
        marks.append((time.time(), sample(metrics, "records_total", outcome="scored")))
        if time.time() - began > 150:
            raise SystemExit(f"{marks[-1][1]:.0f} of {len(lines)} articles in 150 s")
    page = metrics.text().decode()
    busy, wall, passes = runner.busy_seconds, runner.wall_seconds, runner.passes
    stop.set()
    code = await working
    reader = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False)
    await reader.start()
    parts = [TopicPartition("scores", n) for n in range(args.partitions)]
    reader.assign(parts)
    records: dict[str, bytes] = {}
    while len(records) < len(lines):
        for found in (await reader.getmany(timeout_ms=500)).values():
            records |= {r.key.decode(): r.value for r in found}
    await reader.stop()
    # from the first tenth to the last: start-up and the last, half-full window are no steady state
    low, high = (next(m for m in marks if m[1] >= share * len(lines)) for share in (0.1, 0.95))
    return {
        "records": records, "exit": code, "seconds": round(wall, 3), "busy_seconds": round(busy, 3), "passes": passes,
        "tokens": sample(metrics, "tokens_total", kind="real"),
        "questions_per_s": round(scorer.questions * (high[1] - low[1]) / max(high[0] - low[0], 1e-9), 1) if high[1] > low[1] else None,
        "questions_per_s_whole_run": round(scorer.questions * len(lines) / wall, 1),
        "gpu_idle_by_events": round(1 - busy / wall, 4),
        "gpu_idle_by_metrics": {m[1]: float(m[2]) for m in re.finditer(r"^(spinf_stream_\w*(?:busy|idle|device)\w*) ([0-9.e+-]+)$", page, re.M)},
        "stage_seconds_mean": stages(page),
    }  # fmt: skip


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    return sum(
        s.value for m in metrics.registry.collect() for s in m.samples
        if s.name == f"spinf_stream_{name}" and labels.items() <= s.labels.items()
    )  # fmt: skip


def stages(page: str) -> dict[str, float]:
    total = {m[1]: float(m[2]) for m in re.finditer(r'^spinf_stream_stage_seconds_sum\{stage="(\w+)"\} (\S+)$', page, re.M)}
    count = {m[1]: float(m[2]) for m in re.finditer(r'^spinf_stream_stage_seconds_count\{stage="(\w+)"\} (\S+)$', page, re.M)}
    return {k: round(v / count[k], 5) for k, v in total.items() if count.get(k)}


async def compare(scorer: Any, lines: list[bytes], records: dict[str, bytes]) -> int:
    """Articles whose scores are other bits than those of `score FILE`."""
    out = io.BytesIO()
    await score_cli.score((Line(n, line, 0) for n, line in enumerate(lines, 1)), 0, scorer, out, "articles.jsonl", quiet=True)
    mine = {r["id"]: r["scores"] for r in map(json.loads, out.getvalue().splitlines())}
    return sum(json.loads(records[k])["scores"] != v for k, v in mine.items())


if __name__ == "__main__":
    sys.exit(main())
