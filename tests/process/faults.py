"""The faults of a chaos run: which, when, and how each is done. Each strikes a worker with records in its hands: one that
stopped itself at its point of the way, just before a pass, a send or a commit, or just after."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter

import kafka_io
import services
from audit import Auditor
from feed import Feeder
from fleet import IN_HAND, Fleet, Worker
from tcp_proxy import Proxy

HARD = ("kill", "zombie", "broker", "redis", "network")
FOREVER_MS = 60_000  # a window that stands open until something else closes it


class Faults:
    """`session` is the workers' session timeout in seconds; without `redis` it is never struck."""

    def __init__(
        self, rng: random.Random, count: int, name: str, fleet: Fleet, feeder: Feeder, auditor: Auditor, kafka: services.Kafka,
        redis: services.Redis | None, proxy: Proxy, session: float,
    ) -> None:  # fmt: skip
        self.rng, self.count, self.name, self.session = rng, count, name, session
        self.fleet, self.feeder, self.auditor, self.kafka, self.redis, self.proxy = fleet, feeder, auditor, kafka, redis, proxy
        self.struck: Counter[str] = Counter()  # by kind; of a rolling restart each of its SIGTERMs
        self.held: list[float] = []  # records in flight, asked just before each strike
        self.recoveries: list[float] = []  # seconds
        self.after_sigterm = 0  # duplicates, before anything harder than SIGTERM

    def plan(self) -> tuple[list[str], list[str]]:
        """Gentle ones first: after them there must be no duplicate. Then everything, the gentle ones too."""
        kinds = [k for k in HARD if k != "redis" or self.redis]
        hard = [kinds[i % len(kinds)] for i in range(max(len(kinds), self.count - max(1, self.count * 7 // 30)))]
        extra = ["rolling", "window"] if self.count >= 12 else ["window" if self.name.startswith("exactly") else "rolling"]
        gentle = ["sigterm"] * (self.count // 12) + extra * max(1, self.count // 30)
        hard += ["sigterm"] * (self.count // 20) + extra * (self.count // 60)
        self.rng.shuffle(gentle)
        self.rng.shuffle(hard)
        return gentle, hard

    async def strike_all(self) -> None:
        gentle, hard = self.plan()
        await self.fleet.keep(2, 2)
        for n, kind in enumerate([*gentle, *hard], 1):
            await self.fleet.come_and_go(1, 3)
            await self._strike(kind)
            print(f"[{self.name}] {n}/{len(gentle) + len(hard)} {kind}: {self.recoveries[-1]:.2f} s, {len(self.auditor.ids)} scored", file=sys.stderr, flush=True)
            if n == len(gentle):
                await self._judge_the_gentle()
            await asyncio.sleep(self.rng.uniform(0.1, 0.8))
        await self.fleet.parted()

    async def _strike(self, kind: str) -> None:
        if kind in ("rolling", "window"):
            recovering = await getattr(self, f"_{kind}")()
        else:
            victim, held = await self.fleet.busy()
            await victim.freeze()
            self._counts(kind, held)
            struck = time.monotonic()
            await getattr(self, f"_{kind}")(victim)
            recovering = self._recovering(struck)
        self.recoveries.append(await recovering)

    def _recovering(self, struck: float) -> asyncio.Task[float]:
        """Seconds from the strike until every partition has brought a score that was read after its end, which is now."""

        async def seconds(over: float) -> float:
            return over - struck + await self.auditor.all_moving_after(over, 120)

        return asyncio.create_task(seconds(time.monotonic()))

    def _counts(self, kind: str, held: float) -> None:
        self.struck[kind] += 1
        self.held.append(held)

    async def _judge_the_gentle(self) -> None:
        await self.fleet.parted()
        await self.auditor.all_moving_after(time.monotonic(), 90)
        dead = [r.key for r in await kafka_io.read_all(self.auditor.address, "dlq")]
        self.after_sigterm = self.auditor.duplicates + len(dead) - len(set(dead))
        self.fleet.harsh = True

    async def _kill(self, victim: Worker) -> None:
        await self.fleet.remove(victim, signal.SIGKILL)
        await self.fleet.keep(1, 2)

    async def _sigterm(self, victim: Worker) -> None:
        await self.fleet.remove(victim, signal.SIGTERM)
        await self.fleet.keep(1, 2)

    async def _rolling(self) -> asyncio.Task[float]:
        """One after the other, as a deployment does: the next one leaves once the new one has partitions."""
        await self.fleet.keep(2, 2)
        recovering: list[asyncio.Task[float]] = []
        for old in list(self.fleet.workers):
            held = await old.until("inflight_records", IN_HAND)
            await old.freeze()
            self._counts("sigterm", held)
            struck = time.monotonic()
            await self.fleet.remove(old, signal.SIGTERM)
            recovering.append(self._recovering(struck))
            await (await self.fleet.add()).until("assigned_partitions", 1)
        self.fleet.moves["rolling restarts"] += 1
        self.recoveries += [await r for r in recovering[:-1]]
        return recovering[-1]

    async def _window(self) -> asyncio.Task[float]:
        """Records that wait in a window which nothing but its size would close: first a member joins, then SIGTERM."""
        patient = await self.fleet.add(max_wait_ms=FOREVER_MS)
        await patient.until("assigned_partitions", 1)
        self.feeder.trickle = True
        await asyncio.gather(*(self.fleet.remove(w, signal.SIGTERM) for w in self.fleet.workers if w is not patient))
        await patient.until("inflight_records", IN_HAND)
        joins = await self.fleet.add()
        await patient.until("batch_closed_total", 1, 'cause="revoke"')
        await joins.until("assigned_partitions", 1)
        self._counts("sigterm", await patient.until("inflight_records", IN_HAND))
        struck = time.monotonic()
        await self.fleet.remove(patient, signal.SIGTERM)
        recovering = self._recovering(struck)
        self.feeder.trickle = False
        self.fleet.moves["windows open at revoke"] += 1
        return recovering

    async def _zombie(self, victim: Worker) -> None:
        """Frozen at its point for longer than its session; by then another one has its partitions."""
        if len(self.fleet.workers) < 2:
            await self.fleet.add()
        await asyncio.sleep(self.session + self.rng.uniform(0.5, 2.5))
        victim.thaw()

    async def _broker(self, victim: Worker) -> None:
        await asyncio.to_thread(self.kafka.kill)
        victim.thaw()
        await asyncio.sleep(self.rng.uniform(0.2, 2))
        await asyncio.to_thread(self.kafka.start)

    async def _redis(self, victim: Worker) -> None:
        assert self.redis is not None
        await asyncio.to_thread(self.redis.kill)
        victim.thaw()
        await asyncio.sleep(self.rng.uniform(0.5, 2))
        await asyncio.to_thread(self.redis.start)

    async def _network(self, victim: Worker) -> None:
        """All workers lose the broker: refused and reset, or answers swallowed."""
        if self.rng.random() < 0.5:
            self.proxy.refusing = True
            self.proxy.cut()
        else:
            self.proxy.silent = True
        victim.thaw()
        await asyncio.sleep(self.rng.uniform(0.5, 4))
        self.proxy.refusing = self.proxy.silent = False
        self.proxy.cut()
