"""Chaos: real Kafka, real Redis, real worker processes with a small random model, and faults at their worst moments.

    python tests/process/chaos.py                        # short, both guarantees (make chaos)
    python tests/process/chaos.py --long                 # 20,000 records and 60 faults each (make chaos-long)
    python tests/process/chaos.py --delivery exactly_once --records 3000 --faults 12 --seed 7 --no-redis

The stage is set here; fleet.py has the workers, faults.py the schedule of faults, feed.py the records, audit.py and
commits.py what is judged, chaos_report.py what is promised. Workers reach Kafka through a TCP proxy, the auditor and the
feeder do not. SIGTERMs come first, with members that come and go: after them, before anything harder, there must be no
duplicate. One JSON line a run on standard output, then the table; exit 1 when a promise is broken. --long also writes
bench/results/chaos-MACHINE.json.
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
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import kafka_io
import services
from audit import Auditor, hanging, letter, uncommitted
from chaos_report import Ending, Least, Spec, report, table, write
from faults import Faults
from feed import Feeder
from fleet import Fleet
from load import Load
from tcp_proxy import Proxy
from tiny import make_tiny

from spinf_stream.config import Settings

SESSION_MS = 4000
IN_FLIGHT = 64
SHORT = (1200, 6)  # records, faults
SHORT_SECONDS = 90  # each of the two short runs: make chaos stays under 3 minutes on a machine of its own
LONG, EQUAL = Least(20_000, 60, 5), Least(5_000, 16, 1)
QUESTIONS = {"queries": [{"id": "q", "template": "\n\nIs this about {x}?{?}", "options": [" yes", " no"], "combinations": [{"x": "sport"}, {"x": "tech"}]}]}


class Chaos:
    def __init__(self, spec: Spec, folder: Path, logs: Path | None = None) -> None:
        self.spec, self.folder, self.logs = spec, folder, logs
        self.rng = random.Random(spec.seed)

    async def run(self) -> dict[str, Any]:
        began, load = time.monotonic(), Load()
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
            stuck = await hanging(self.direct, "scores", self.spec.partitions)
            dead = [letter(r) for r in await kafka_io.read_all(self.direct, "dlq")]
            verdict = await self.auditor.verdict(sent, poison, dead)
            lag = await uncommitted(self.direct, Settings().group, "articles")
        return report(
            self.spec, IN_FLIGHT, self.faults,
            Ending(len(sent) + len(poison), len(poison), verdict, stuck, lag, time.monotonic() - began, load.others()),
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _stage(self) -> AsyncIterator[None]:
        port, direct = services.free_port(), services.free_port()
        self.direct = f"{services.HOST}:{direct}"
        async with Proxy(port, self.spec.seed) as self.proxy:
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
            parts = self.spec.partitions
            await kafka_io.create(self.direct, {"articles": parts, "scores": parts, "dlq": 1})
            (self.folder / "questions.json").write_text(json.dumps(QUESTIONS))
            settings: dict[str, Any] = {
                "model": str(make_tiny(self.folder / "tiny")), "questions": str(self.folder / "questions.json"), "threads": 1,
                "cache_dir": str(self.folder / "cache"), "token_budget": 1500, "brokers": f"{services.HOST}:{self.proxy.port}",
                "dlq_topic": "dlq", "delivery": self.spec.delivery, "session_timeout_ms": SESSION_MS, "commit_interval_ms": 200,
                "max_inflight_records": IN_FLIGHT, "max_wait_ms": 100, "drain_seconds": 20.0,
            }  # fmt: skip
            if self.spec.redis:
                settings |= {"redis_url": self.redis.url, "dedup_secret": "chaos"}
            self.fleet = Fleet(settings, self.rng, self.logs)
            self.auditor = Auditor(self.direct, "scores", "articles", Settings().group)
            self.feeder = Feeder(self.direct, self.rng, self.spec.records, self.spec.feeding, self.spec.equal)
            self.faults = Faults(
                self.rng, self.spec.faults, self.spec.delivery, self.fleet, self.feeder, self.auditor, self.kafka,
                self.redis if self.spec.redis else None, self.proxy, SESSION_MS / 1000,
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


def specs(args: argparse.Namespace) -> list[Spec]:
    deliveries = ("exactly_once", "at_least_once") if args.delivery == "both" else (args.delivery,)
    if args.long:
        whole = [(d, redis, False, 20_000, 60, 8, LONG) for d in deliveries for redis in (True, False)]
        whole += [(d, True, True, 6_000, 18, 4, EQUAL) for d in deliveries if d == "exactly_once"]
    else:
        records, faults = args.records or SHORT[0], args.faults or SHORT[1]
        whole = [(d, not args.no_redis, args.equal, records, faults, args.partitions, Least(records, faults, 1)) for d in deliveries]
    seconds = SHORT_SECONDS if (args.records, args.faults, args.long) == (None, None, False) else None
    return [
        Spec(d, redis, equal, records, faults, parts, args.seconds or 5.0 * faults, args.seed + n, least, seconds)
        for n, (d, redis, equal, records, faults, parts, least) in enumerate(whole)
    ]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--delivery", choices=("exactly_once", "at_least_once", "both"), default="both")
    p.add_argument("--long", action="store_true", help="20,000 records, 60 faults, with and without Redis; and one run with equal texts")
    p.add_argument("--records", type=int, help=f"default {SHORT[0]}")
    p.add_argument("--faults", type=int, help=f"default {SHORT[1]}")
    p.add_argument("--partitions", type=int, default=4)
    p.add_argument("--seconds", type=float, help="that feeding lasts (default: 5 a fault)")
    p.add_argument("--no-redis", action="store_true")
    p.add_argument("--equal", action="store_true", help="five records share a text")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the first run; the next one has the next")
    p.add_argument("--logs", type=Path, help="folder in which the workers' logs are kept")
    args = p.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the auditor's and the feeder's: they see the same faults
    reports = []
    for spec in specs(args):
        print(f"seed {spec.seed}", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="spinf-chaos-") as folder:
            logs = args.logs and args.logs / str(spec.seed)
            if logs:
                logs.mkdir(parents=True, exist_ok=True)
            reports.append(asyncio.run(Chaos(spec, Path(folder), logs).run()))
        print(json.dumps(reports[-1]), flush=True)
    print(table(reports))
    if args.long:
        write("chaos", " ".join(["python tests/process/chaos.py", *sys.argv[1:]]), reports)
    return 1 if any(r["broken"] for r in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
