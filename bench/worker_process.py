"""The worker by its own command on a card: `spinf-stream worker --burst`, different articles in an embedded broker.

    python bench/worker_process.py --model FOLDER --job JOB --articles 2400

FOLDER: a checkpoint, as bench/random_checkpoint.py or `spinf-stream model quantize` writes them. Another process than
worker_gpu.py's in everything: it loads, proves and warms up by itself, and is watched from outside: rates by the times in
its records, the GPU's idle share and the memory by /metrics, --compare articles' scores against
`spinf-stream score`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import device
from job import Job, load
from results import Run, write_result

from spinf_stream import demo_broker
from spinf_stream.config import Settings
from spinf_stream.records import Article, encode
from spinf_stream.stream.kafka import topics

COMMAND = [sys.executable, "-m", "spinf_stream.cli"]
SHOWN = re.compile(r"^(spinf_stream_(?:engine_busy|device_memory|warnings|token_budget|engine_oom)\S*) (\S+)$", re.M)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--job", type=Path)
    p.add_argument("--articles", type=int, default=2400)
    p.add_argument("--compare", type=int, default=240)
    p.add_argument("--partitions", type=int, default=8)
    p.add_argument("--cache", type=Path, help="the model cache, kept; a temporary one without")
    p.add_argument("--timeout", type=float, default=400, help="seconds for the worker")
    args = p.parse_args()
    job = load(args.job)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(args, job, Path(folder)))
    print(json.dumps(report, indent=1))
    return 0 if report["exit"] == 0 and report["scores_different_from_score_file"] == 0 else 1


async def run(args: argparse.Namespace, job: Job, folder: Path) -> dict[str, Any]:
    (folder / "questions.json").write_text(json.dumps({**job.scoring, "case_insensitive": True}), "utf-8")
    lines = [encode(Article(id=f"{n}", text=f"{n} {a.text}")) for n, a in zip(range(args.articles), itertools.cycle(job.articles))]
    (folder / "articles.jsonl").write_bytes(b"".join(line + b"\n" for line in lines[: args.compare]))
    broker, address = await demo_broker.start(folder)
    env = {
        **os.environ, "SPINF_STREAM_BROKERS": address, "SPINF_STREAM_REDIS_URL": "embedded://", "SPINF_STREAM_PRODUCER_IDEMPOTENCE": "false",
        "SPINF_STREAM_MODEL": args.model, "SPINF_STREAM_QUESTIONS": str(folder / "questions.json"), "SPINF_STREAM_PORT": "19464",
        "SPINF_STREAM_CACHE_DIR": str(args.cache or folder / "cache"),
    }  # fmt: skip
    try:
        await fill(args, address, lines)
        report = await asyncio.to_thread(worker, args, env, folder)
        times, records = await scores(args, address, len(lines) if report["exit"] == 0 else 0)
    finally:
        await broker.stop()
    questions = len(job.scoring["queries"])
    if times:
        low, high = times[len(times) // 10], times[len(times) * 95 // 100]  # ends of passes
        between = sum(low < t <= high for t in times)
        report["questions_per_s"] = round(questions * between / (high - low), 1) if high > low else None
        report["seconds_first_to_last_score"] = round(times[-1] - times[0], 2)
    report["compared"], report["scores_different_from_score_file"] = compare(env, folder, records)
    report["bit_exact"] = sorted({bool(r["bit_exact"]) for r in records.values()})
    write_result("worker-process", report, [Run("worker process", len(lines), questions * len(lines), 0, [1e3 * report["seconds"]], None)])
    return report


async def fill(args: argparse.Namespace, address: str, lines: list[bytes]) -> None:
    from aiokafka import AIOKafkaProducer

    from spinf_stream.topics_cli import plans

    settings = Settings(brokers=address, producer_idempotence=False)
    await topics.create(settings, plans(settings, args.partitions), None)
    producer = AIOKafkaProducer(bootstrap_servers=address, linger_ms=5)
    await producer.start()
    for n, line in enumerate(lines):
        await producer.send("articles", line, str(n).encode())
    await producer.stop()


def worker(args: argparse.Namespace, env: dict[str, str], folder: Path) -> dict[str, Any]:
    """Runs it to its end; its last page of metrics, and the clocks meanwhile."""
    page, ready, began = "", None, time.monotonic()
    log = folder / "worker.log"
    with log.open("wb") as out, device.Clocks() as clocks:
        child = subprocess.Popen([*COMMAND, "worker", "--burst"], env=env, stdout=out, stderr=out)
        while child.poll() is None:
            if time.monotonic() - began > args.timeout:
                child.kill()
            try:
                with urllib.request.urlopen("http://127.0.0.1:19464/metrics", timeout=2) as answer:
                    page = answer.read().decode()
                ready = ready or time.monotonic() - began
            except OSError:
                pass
            time.sleep(0.2)
    tail = log.read_text("utf-8", "replace").splitlines()[-12:]
    metrics = {m[1]: float(m[2]) for m in SHOWN.finditer(page)}
    busy = metrics.get("spinf_stream_engine_busy_ratio")
    return {
        "exit": child.returncode, "seconds": round(time.monotonic() - began, 1), "seconds_to_first_metrics": ready and round(ready, 1),
        "gpu_idle_by_metrics": None if busy is None else round(1 - busy, 5), "metrics": metrics, "clocks": clocks.told(), "log": tail,
    }  # fmt: skip


async def scores(args: argparse.Namespace, address: str, count: int) -> tuple[list[float], dict[str, Any]]:
    """(seconds at which each was scored, ascending; the records by id)."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    reader = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False)
    await reader.start()
    reader.assign([TopicPartition("scores", n) for n in range(args.partitions)])
    records: dict[str, Any] = {}
    patience = time.monotonic() + 60
    while len(records) < count and time.monotonic() < patience:
        for found in (await reader.getmany(timeout_ms=500)).values():
            records |= {r.key.decode(): json.loads(r.value) for r in found}
    await reader.stop()
    times = [datetime.fromisoformat(r["scored_at"]).timestamp() for r in records.values()]
    return sorted(times), records


def compare(env: dict[str, str], folder: Path, records: dict[str, Any]) -> tuple[int, int]:
    """(articles that `spinf-stream score` scored, those whose scores are other bits)."""
    out = folder / "scores.jsonl"
    done = subprocess.run([*COMMAND, "score", str(folder / "articles.jsonl"), "--out", str(out)], env=env, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-1500:], file=sys.stderr)
        return 0, -1
    mine = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    return len(mine), sum(records.get(r["id"], {}).get("scores") != r["scores"] for r in mine)


if __name__ == "__main__":
    sys.exit(main())
