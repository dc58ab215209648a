"""Soak: one worker process for 20 minutes on real Kafka and Redis; memory, descriptors and threads stay flat.

    python tests/process/soak.py [--minutes 20] [--rate 40] [--delivery exactly_once]     (make soak)

Records of varied length at an even rate, one in a hundred poison, one in ten an equal text; Redis restarts every third
minute, the broker every seventh. Sampled every 5 s from /proc; the second quarter is compared with the last one.
One JSON line, also in bench/results/soak-MACHINE.json; exit 1 when something grew or a record is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import kafka_io
import services
from aiokafka import AIOKafkaProducer
from chaos import QUESTIONS
from chaos_report import write
from stage import Process
from tiny import make_tiny

from spinf_stream.config import Settings


class Sample(NamedTuple):
    rss_mib: float
    descriptors: int
    threads: int


def sample(pid: int) -> Sample:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Sample(int(status["VmRSS"].split()[0]) / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())), int(status["Threads"]))


async def feed(address: str, rate: float, end: float, seed: int = 5) -> int:
    rng = random.Random(seed)
    producer = AIOKafkaProducer(bootstrap_servers=address, acks="all", enable_idempotence=True, request_timeout_ms=60_000)
    await producer.start()
    began, n = time.monotonic(), 0
    try:
        while time.monotonic() < end:
            text = f"article {n - n % 10} " + "word " * (0 if n % 10 == 1 else rng.randint(3, 60))
            value = b"{" if n % 100 == 50 else json.dumps({"id": f"s{n}", "text": text}).encode()
            await producer.send("articles", value, b"k%d" % rng.randrange(100))
            n += 1
            await asyncio.sleep(max(0.0, began + n / rate - time.monotonic()))
        await producer.flush()
    finally:
        await producer.stop()
    return n


async def restarts(kafka: services.Kafka, redis: services.Redis, end: float) -> dict[str, int]:
    done = {"redis": 0, "broker": 0}
    for minute in range(1, 10_000):
        await asyncio.sleep(60)
        if time.monotonic() > end - 60:
            return done
        for name, server, every in (("redis", redis, 3), ("broker", kafka, 7)):
            if minute % every == 0:
                await asyncio.to_thread(server.restart, True)
                done[name] += 1
    return done


async def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    kafka, redis = services.Kafka(folder / "kafka"), services.Redis(folder / "redis")
    kafka.start()
    redis.start()
    try:
        await kafka_io.create(kafka.address, {"articles": 4, "scores": 4, "articles.dlq": 1})
        (folder / "questions.json").write_text(json.dumps(QUESTIONS))
        settings = Settings(
            model=str(make_tiny(folder / "tiny")), questions=str(folder / "questions.json"), threads=1, cache_dir=str(folder / "cache"),
            brokers=kafka.address, delivery=args.delivery, redis_url=redis.url, dedup_secret="soak", port=services.free_port(),
        )  # fmt: skip
        samples: list[Sample] = []
        async with Process(settings) as worker:
            await worker.said("metrics and health", 60)
            end = time.monotonic() + 60 * args.minutes
            feeding = asyncio.create_task(feed(kafka.address, args.rate, end))
            restarting = asyncio.create_task(restarts(kafka, redis, end))
            while time.monotonic() < end:
                await asyncio.sleep(5)
                samples.append(sample(worker.pid))
            sent = await feeding
            seen = len(await kafka_io.wait_for(kafka.address, "scores", sent - len(range(50, sent, 100)), seconds=120))
            worker.signal(15)
            code = await worker.ended(60)
        restarted = await restarting
    finally:
        kafka.stop()
        redis.stop()
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    report: dict[str, Any] = {"minutes": args.minutes, "delivery": args.delivery, "records": sent, "scores": seen, "restarts": restarted, "exit": code}
    report["seconds"] = round(time.monotonic() - began, 1)
    grew = []
    for name, room in (("rss_mib", 1.05), ("descriptors", 1.10), ("threads", 1.0)):
        before, after = (statistics.median(getattr(s, name) for s in part) for part in (early, late))
        report[name] = {"second_quarter": round(before, 1), "last_quarter": round(after, 1), "most": round(max(getattr(s, name) for s in samples), 1)}
        if after > before * room:
            grew.append(name)
    return {**report, "grew": grew}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=20)
    p.add_argument("--rate", type=float, default=40, help="records a second")
    p.add_argument("--delivery", choices=("exactly_once", "at_least_once"), default="exactly_once")
    args = p.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="spinf-soak-") as folder:
        report = asyncio.run(run(args, Path(folder)))
    print(json.dumps(report))
    write("soak", " ".join(["python tests/process/soak.py", *sys.argv[1:]]), [report])
    return 1 if report["grew"] or report["exit"] else 0


if __name__ == "__main__":
    sys.exit(main())
