"""Chaos: real Kafka, real Redis, real worker processes with a small random model, and faults at their worst moments.

    python tests/process/chaos.py                        # short, both guarantees (make chaos)
    python tests/process/chaos.py --long                 # 20,000 records and 60 faults each (make chaos-long)
    python tests/process/chaos.py --delivery exactly_once --records 3000 --faults 12 --seed 7 --no-redis

Workers reach Kafka through a TCP proxy; the auditor (audit.py) and the feeder do not. A fault counts only when it struck
a worker with records in flight. SIGTERMs come first: after them, before anything harder, there must be no duplicate.
One JSON line a run on standard output, then the table; exit 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))

import kafka_io
import services
from aiokafka import AIOKafkaProducer
from audit import Auditor, Verdict
from stage import Process
from tcp_proxy import Proxy
from tiny import make_tiny

from spinf_stream.config import Settings

KINDS = ("kill", "zombie", "broker", "redis", "network")  # and sigterm, which goes first
POINTS = ("before_pass", "after_pass", "before_send", "before_offsets", "before_commit", "after_commit")
SESSION_MS = 4000
IN_FLIGHT = 64
KEYS = 200
QUESTIONS = {"queries": [{"id": "q", "template": "\n\nIs this about {x}?{?}", "options": [" yes", " no"], "combinations": [{"x": "sport"}, {"x": "tech"}]}]}


class Fleet:
    """The workers: started, struck and replaced."""

    def __init__(self, settings: dict[str, Any], rng: random.Random) -> None:
        self.settings, self.rng = settings, rng
        self.workers: list[Worker] = []
        self.codes: Counter[int] = Counter()

    async def add(self) -> Worker:
        w = Worker(self.settings, self.rng.choice(POINTS if self.settings["delivery"] == "exactly_once" else POINTS[:3]))
        await w.process.__aenter__()
        self.workers.append(w)
        return w

    async def remove(self, w: Worker, signal_: int) -> int:
        self.workers.remove(w)
        if signal_ == signal.SIGTERM:  # before that it has no handler and nothing to drain
            await w.process.said("metrics and health", 60)
        w.process.signal(signal_)
        code = await w.process.ended(60)
        self.codes[code] += 1
        await w.process.__aexit__()
        if signal_ == signal.SIGTERM and code != 0:
            raise AssertionError(f"a worker left with {code} after SIGTERM:\n{w.process.output[-3000:]}")
        return code

    async def keep(self, least: int, most: int) -> None:
        """Join and leave: between `least` and `most` of them, at random."""
        for w in [w for w in self.workers if w.process.gone]:
            self.workers.remove(w)
            raise AssertionError(f"a worker left by itself:\n{w.process.output[-3000:]}")
        while len(self.workers) < self.rng.randint(least, most):
            await self.add()

    async def busy(self, seconds: float = 30.0) -> Worker:
        """A worker with records in flight at this moment."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for w in self.rng.sample(self.workers, len(self.workers)):
                if await w.in_flight() > 0:
                    return w
            await asyncio.sleep(0.01)
        raise TimeoutError(f"no worker had records in flight within {seconds:g} s")

    async def close(self) -> None:
        for w in list(self.workers):
            await w.process.__aexit__()


class Worker:
    def __init__(self, settings: dict[str, Any], point: str) -> None:
        self.port = services.free_port()
        self.point = point
        self.process = Process(Settings(**settings, port=self.port), stop={"at": point})

    async def in_flight(self) -> float:
        def scrape() -> float:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=1) as page:
                    found = re.search(rb"^spinf_stream_inflight_records ([0-9.e+]+)", page.read(), re.M)
                    return float(found[1]) if found else 0.0
            except OSError:
                return 0.0

        return await asyncio.to_thread(scrape)


class Chaos:
    def __init__(self, args: argparse.Namespace, delivery: str, redis: bool, folder: Path) -> None:
        self.args, self.delivery, self.with_redis, self.folder = args, delivery, redis, folder
        self.rng = random.Random(args.seed)
        self.struck: Counter[str] = Counter()
        self.recoveries: list[float] = []
        self.sent: list[tuple[str, bytes]] = []
        self.poison: list[bytes] = []
        self.after_sigterm = 0

    async def run(self) -> dict[str, Any]:
        began = time.monotonic()
        async with self._stage():
            feeding = asyncio.create_task(self._feed())
            try:
                await self._strike_all()
                self.hurry.set()
                await feeding
                await self._settle()
            finally:
                feeding.cancel()
            for w in list(self.fleet.workers):
                await self.fleet.remove(w, signal.SIGTERM)
            hanging = await self._hanging()
            dead = [r.value for r in await kafka_io.read_all(self.direct, "dlq")]
            verdict = self.auditor.verdict(self.sent, self.poison, dead)
            lag = await self._lag()
        return self._report(verdict, hanging, lag, time.monotonic() - began)

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
            self.hurry = asyncio.Event()
            await self.auditor.start(parts)
            try:
                yield
            finally:
                await self.fleet.close()
                await self.auditor.stop()
                for server in (self.kafka, self.redis):
                    server.resume()
                    await asyncio.to_thread(server.kill)

    async def _feed(self) -> None:
        """Records at an even pace for as long as there are faults, at least `records` of them. Every hundredth is poison."""
        producer = AIOKafkaProducer(bootstrap_servers=self.direct, acks="all", enable_idempotence=True, request_timeout_ms=40_000)
        await producer.start()
        pace = self.args.seconds / max(1, self.args.records)
        began = time.monotonic()
        try:
            n = -1
            while (n := n + 1) < self.args.records or not self.hurry.is_set():
                key = b"k%d" % self.rng.randrange(KEYS)
                if n % 100 == 99:
                    value = b'{"text": "cut off %d' % n
                    self.poison.append(value)
                else:
                    text = f"article {n // 5 if self.args.equal else n} " + "word " * self.rng.randint(3, 12)
                    value = json.dumps({"id": f"a{n}", "text": text}).encode()
                    self.sent.append((f"a{n}", key))
                await producer.send_and_wait("articles", value, key) if n % 20 == 19 else await producer.send("articles", value, key)
                ahead = began + n * pace - time.monotonic()
                if ahead > 0.02 and not self.hurry.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.hurry.wait(), ahead)
        finally:
            await producer.stop()

    async def _strike_all(self) -> None:
        kinds = [k for k in KINDS if k != "redis" or self.with_redis]
        gentle = max(1, self.args.faults // 6)
        plan = [kinds[i % len(kinds)] for i in range(self.args.faults - gentle)]
        self.rng.shuffle(plan)
        await self.fleet.keep(2, 2)
        for n, kind in enumerate([*["sigterm"] * gentle, *plan]):
            if n == gentle:
                self.after_sigterm = self.auditor.duplicates
            await self.fleet.keep(1, 3)
            await self._struck(kind)
            print(f"[{self.delivery}] {n + 1}/{self.args.faults} {kind}: {self.recoveries[-1]:.2f} s, {len(self.auditor.ids)} scored", file=sys.stderr, flush=True)
            await asyncio.sleep(self.rng.uniform(0.1, 0.8))

    async def _struck(self, kind: str) -> None:
        victim = await self.fleet.busy()
        moment = time.monotonic()
        await getattr(self, f"_{kind}")(victim)
        self.recoveries.append(await self.auditor.all_moving_after(moment, 90))
        self.struck[kind] += 1

    async def _kill(self, victim: Worker) -> None:
        await self.fleet.remove(victim, signal.SIGKILL)
        await self.fleet.keep(1, 2)

    async def _sigterm(self, victim: Worker) -> None:
        await self.fleet.remove(victim, signal.SIGTERM)
        await self.fleet.keep(1, 2)

    async def _zombie(self, victim: Worker) -> None:
        """Frozen at its point for longer than its session; by then another one has its partitions."""
        before = victim.process.output.count("stopped ")
        victim.process.signal(signal.SIGUSR1)
        end = time.monotonic() + 20
        while victim.process.output.count("stopped ") == before:
            if time.monotonic() > end:
                raise TimeoutError(f"a worker never came to {victim.point}")
            await asyncio.sleep(0.01)
        if len(self.fleet.workers) < 2:
            await self.fleet.add()
        await asyncio.sleep(SESSION_MS / 1000 + self.rng.uniform(0.5, 2.5))
        victim.process.signal(signal.SIGCONT)

    async def _broker(self, victim: Worker) -> None:
        await asyncio.to_thread(self.kafka.kill)
        await asyncio.sleep(self.rng.uniform(0.2, 2))
        await asyncio.to_thread(self.kafka.start)

    async def _redis(self, victim: Worker) -> None:
        await asyncio.to_thread(self.redis.kill)
        await asyncio.sleep(self.rng.uniform(0.5, 2))
        await asyncio.to_thread(self.redis.start)

    async def _network(self, victim: Worker) -> None:
        """All workers lose the broker: refused and reset, or answers swallowed."""
        if self.rng.random() < 0.5:
            self.proxy.refusing = True
            self.proxy.cut()
        else:
            self.proxy.silent = True
        await asyncio.sleep(self.rng.uniform(0.5, 4))
        self.proxy.refusing = self.proxy.silent = False
        self.proxy.cut()

    async def _settle(self) -> None:
        """Until every record sent is there; a minute without a new one means that something is lost."""
        last, at = -1, time.monotonic()
        while len(self.auditor.ids) < len(self.sent):
            if len(self.auditor.seen) != last:
                last, at = len(self.auditor.seen), time.monotonic()
            if time.monotonic() - at > 60:
                return
            await self.fleet.keep(1, 2)
            await asyncio.sleep(0.1)

    async def _hanging(self) -> int:
        """Partitions whose last record a read_committed reader cannot reach: an open transaction holds it back."""
        ends = [kafka_io.Rec(b"", None, (), n) for n in range(self.args.partitions)]
        await kafka_io.produce(self.direct, "scores", ends)
        try:
            read = await kafka_io.read_all(self.direct, "scores", seconds=20)
        except TimeoutError:
            return self.args.partitions
        return self.args.partitions - sum(r.value == b"" for r in read)

    async def _lag(self) -> int:
        """Records of the input that the group has not committed."""
        points = await kafka_io.committed(self.direct, Settings().group, "articles")
        ends: Counter[int] = Counter()
        for r in await kafka_io.read_all(self.direct, "articles"):
            ends[r.partition] = max(ends[r.partition], r.offset + 1)
        return sum(max(0, end - (points.get(n) or 0)) for n, end in ends.items())

    def _report(self, v: Verdict, hanging: int, lag: int, seconds: float) -> dict[str, Any]:
        bound = 0 if self.delivery == "exactly_once" else IN_FLIGHT * sum(self.struck[k] for k in ("kill", "zombie", "network"))
        times = sorted(self.recoveries)
        broken = [
            name
            for name, bad in (
                ("lost", v.lost), ("duplicates", v.duplicates > bound), ("duplicates after SIGTERM", self.after_sigterm),
                ("order", v.order_breaks), ("offsets backwards", v.backwards), ("hanging transactions", hanging), ("lag", lag),
                ("dead letters lost", v.dead_lost), ("dead letters wrong", v.dead_wrong), ("dead letters twice", v.dead_duplicates > bound),
            )
            if bad
        ]  # fmt: skip
        return {
            "delivery": self.delivery, "redis": self.with_redis, "equal_texts": self.args.equal, "seed": self.args.seed,
            "records": len(self.sent) + len(self.poison), "faults": dict(sorted(self.struck.items())),
            "duplicates_allowed": bound, "duplicates_after_sigterm": self.after_sigterm, **v._asdict(), "hanging_transactions": hanging,
            "lag": lag, "poison": len(self.poison), "recovery_p50_s": round(statistics.median(times), 2),
            "recovery_p95_s": round(times[min(len(times) - 1, int(0.95 * len(times)))], 2), "seconds": round(seconds), "broken": broken,
        }  # fmt: skip


def table(reports: list[dict[str, Any]]) -> str:
    rows = [
        ("records", lambda r: r["records"]),
        ("faults struck", lambda r: f"{sum(r['faults'].values())} ({', '.join(f'{k} {n}' for k, n in r['faults'].items())})"),
        ("lost", lambda r: r["lost"]),
        ("duplicates, read_committed", lambda r: f"{r['duplicates']} (allowed {r['duplicates_allowed']}; after SIGTERM {r['duplicates_after_sigterm']})"),
        ("order breaks / offsets backwards / hanging transactions", lambda r: f"{r['order_breaks']} / {r['backwards']} / {r['hanging_transactions']}"),
        ("dead letters: sent / lost / twice / wrong", lambda r: f"{r['poison']} / {r['dead_lost']} / {r['dead_duplicates']} / {r['dead_wrong']}"),
        ("fault to the next score of every partition, p50 / p95", lambda r: f"{r['recovery_p50_s']} / {r['recovery_p95_s']} s"),
    ]
    head = [f"{r['delivery'].replace('_', ' ')}{'' if r['redis'] else ', no Redis'}{', equal texts' if r['equal_texts'] else ''}" for r in reports]
    lines = ["| | " + " | ".join(head) + " |", "|---" * (1 + len(reports)) + "|"]
    return "\n".join(lines + [f"| {name} | " + " | ".join(str(of(r)) for r in reports) + " |" for name, of in rows])


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
