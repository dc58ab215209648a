"""Chaos: real Kafka, real Redis, real worker processes with a small random model, and faults at their worst moments.

    python tests/process/chaos.py                        # short, both guarantees (make chaos)
    python tests/process/chaos.py --long                 # 20,000 records and 60 faults each (make chaos-long)
    python tests/process/chaos.py --delivery exactly_once --records 3000 --faults 12 --seed 7 --no-redis

The stage is set here; fleet.py has the workers, faults.py the schedule of faults, feed.py the records, audit.py what is
judged, chaos_report.py what is promised. Workers reach Kafka through a TCP proxy, the auditor and the feeder do not.
SIGTERMs come first: after them, before anything harder, there must be no duplicate.
One JSON line a run on standard output, then the table; exit 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))

import kafka_io
import services
from audit import Auditor, hanging, uncommitted
from chaos_report import report, table
from faults import Faults
from feed import Feeder
from fleet import Fleet
from tcp_proxy import Proxy
from tiny import make_tiny

from spinf_stream.config import Settings

SESSION_MS = 4000
IN_FLIGHT = 64
QUESTIONS = {"queries": [{"id": "q", "template": "\n\nIs this about {x}?{?}", "options": [" yes", " no"], "combinations": [{"x": "sport"}, {"x": "tech"}]}]}


class Chaos:
    def __init__(self, args: argparse.Namespace, delivery: str, redis: bool, folder: Path) -> None:
        self.args, self.delivery, self.with_redis, self.folder = args, delivery, redis, folder
        self.rng = random.Random(args.seed)

    async def run(self) -> dict[str, Any]:
        began = time.monotonic()
        async with self._stage():
            feeding = asyncio.create_task(self.feeder.run())
            try:
                await self.faults.strike_all()
                self.feeder.hurry.set()
                await feeding
                await self._settle()
            finally:
                feeding.cancel()
            for w in list(self.fleet.workers):
                await self.fleet.remove(w, signal.SIGTERM)
            sent, poison = self.feeder.sent, self.feeder.poison
            stuck = await hanging(self.direct, "scores", self.args.partitions)
            dead = [r.value for r in await kafka_io.read_all(self.direct, "dlq")]
            verdict = self.auditor.verdict(sent, poison, dead)
            lag = await uncommitted(self.direct, Settings().group, "articles")
        return report(
            self.args, self.delivery, self.with_redis, IN_FLIGHT, len(sent) + len(poison), len(poison), self.faults, verdict,
            stuck, lag, time.monotonic() - began,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _stage(self) -> AsyncIterator[None]:
        port, direct = services.free_port(), services.free_port()
        self.direct = f"{services.HOST}:{direct}"
        async with Proxy(port, self.args.seed) as self.proxy:
            self.kafka = services.Kafka(self.folder / "kafka", port)
            self.kafka.settings = {
                "listeners": f"CLIENTS://{services.HOST}:{port},DIRECT://{self.direct},CONTROLLER://{services.HOST}:{self.kafka.controller_port}",
                "advertised.listeners": f"CLIENTS://{services.HOST}:{self.proxy.port},DIRECT://{self.direct}",
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "DIRECT",
            }
            self.redis = services.Redis(self.folder / "redis")
            await asyncio.to_thread(self.kafka.start)
            await asyncio.to_thread(self.redis.start)
            parts = self.args.partitions
            await kafka_io.create(self.direct, {"articles": parts, "scores": parts, "dlq": 1})
            (self.folder / "questions.json").write_text(json.dumps(QUESTIONS))
            settings: dict[str, Any] = {
                "model": str(make_tiny(self.folder / "tiny")), "questions": str(self.folder / "questions.json"), "threads": 1,
                "cache_dir": str(self.folder / "cache"), "token_budget": 1500, "brokers": f"{services.HOST}:{self.proxy.port}",
                "dlq_topic": "dlq", "delivery": self.delivery, "session_timeout_ms": SESSION_MS, "commit_interval_ms": 200,
                "max_inflight_records": IN_FLIGHT, "max_wait_ms": 100, "drain_seconds": 20.0,
            }  # fmt: skip
            if self.with_redis:
                settings |= {"redis_url": self.redis.url, "dedup_secret": "chaos"}
            self.fleet = Fleet(settings, self.rng)
            self.auditor = Auditor(self.direct, "scores", "articles", Settings().group)
            self.feeder = Feeder(self.direct, self.rng, self.args.records, self.args.seconds, self.args.equal)
            self.faults = Faults(
                self.rng, self.args.faults, self.delivery, self.fleet, self.auditor, self.kafka,
                self.redis if self.with_redis else None, self.proxy, SESSION_MS / 1000,
            )  # fmt: skip
            await self.auditor.start(parts)
            try:
                yield
            finally:
                await self.fleet.close()
                await self.auditor.stop()
                for server in (self.kafka, self.redis):
                    server.resume()
                    await asyncio.to_thread(server.kill)

    async def _settle(self) -> None:
        """Until every record sent is there; a minute without a new one means that something is lost."""
        last, at = -1, time.monotonic()
        while len(self.auditor.ids) < len(self.feeder.sent):
            if len(self.auditor.seen) != last:
                last, at = len(self.auditor.seen), time.monotonic()
            if time.monotonic() - at > 60:
                return
            await self.fleet.keep(1, 2)
            await asyncio.sleep(0.1)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--delivery", choices=("exactly_once", "at_least_once", "both"), default="both")
    p.add_argument("--long", action="store_true", help="20,000 records, 60 faults, with and without Redis")
    p.add_argument("--records", type=int, default=1200)
    p.add_argument("--faults", type=int, default=6, help="a sixth of them SIGTERMs")
    p.add_argument("--partitions", type=int, default=4)
    p.add_argument("--seconds", type=float, help="that feeding lasts (default: 5 a fault)")
    p.add_argument("--no-redis", action="store_true")
    p.add_argument("--equal", action="store_true", help="five records share a text")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    args = p.parse_args()
    if args.long:
        args.records, args.faults, args.partitions = max(args.records, 20_000), max(args.faults, 60), 8
    args.seconds = args.seconds or 5.0 * args.faults
    print(f"seed {args.seed}", file=sys.stderr)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the auditor's and the feeder's: they see the same faults
    reports = []
    for delivery in ("exactly_once", "at_least_once") if args.delivery == "both" else (args.delivery,):
        for redis in (True, False) if args.long else (not args.no_redis,):
            with tempfile.TemporaryDirectory(prefix="spinf-chaos-") as folder:
                reports.append(asyncio.run(Chaos(args, delivery, redis, Path(folder)).run()))
            print(json.dumps(reports[-1]), flush=True)
    print(table(reports))
    return 1 if any(r["broken"] for r in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
