"""The faults of a chaos run: which, when, and how each is done. One counts only if a worker had records in flight."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter

import services
from audit import Auditor
from fleet import Fleet, Worker
from tcp_proxy import Proxy

KINDS = ("kill", "zombie", "broker", "redis", "network")  # and sigterm, which goes first


class Faults:
    """`session` is the workers' session timeout in seconds; without `redis` it is never struck."""

    def __init__(
        self, rng: random.Random, count: int, name: str, fleet: Fleet, auditor: Auditor, kafka: services.Kafka,
        redis: services.Redis | None, proxy: Proxy, session: float,
    ) -> None:  # fmt: skip
        self.rng, self.count, self.name, self.session = rng, count, name, session
        self.fleet, self.auditor, self.kafka, self.redis, self.proxy = fleet, auditor, kafka, redis, proxy
        self.struck: Counter[str] = Counter()
        self.recoveries: list[float] = []  # seconds
        self.after_sigterm = 0  # duplicates, before anything harder than SIGTERM

    async def strike_all(self) -> None:
        kinds = [k for k in KINDS if k != "redis" or self.redis]
        gentle = max(1, self.count // 6)
        plan = [kinds[i % len(kinds)] for i in range(self.count - gentle)]
        self.rng.shuffle(plan)
        await self.fleet.keep(2, 2)
        for n, kind in enumerate([*["sigterm"] * gentle, *plan]):
            if n == gentle:
                self.after_sigterm = self.auditor.duplicates
            await self.fleet.keep(1, 3)
            await self._struck(kind)
            print(f"[{self.name}] {n + 1}/{self.count} {kind}: {self.recoveries[-1]:.2f} s, {len(self.auditor.ids)} scored", file=sys.stderr, flush=True)
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
        await asyncio.sleep(self.session + self.rng.uniform(0.5, 2.5))
        victim.process.signal(signal.SIGCONT)

    async def _broker(self, victim: Worker) -> None:
        await asyncio.to_thread(self.kafka.kill)
        await asyncio.sleep(self.rng.uniform(0.2, 2))
        await asyncio.to_thread(self.kafka.start)

    async def _redis(self, victim: Worker) -> None:
        assert self.redis is not None
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
