"""What the alerts' scenes stand on: a scorer and an engine whose faults are switched, traffic, and a look at Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import kafka_io
import numpy as np
import prom
import services
from conftest import EXAMPLE_PACK
from fakes import FakeScorer
from kafka_io import Rec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))
from stage import Topics

from spinf_stream.engine.floors import Floors
from spinf_stream.engine.seam import EngineFault
from spinf_stream.packs.file import from_doc
from spinf_stream.records import Answer

PACK = from_doc(json.loads(EXAMPLE_PACK.read_text("utf-8")))


class Scorer(FakeScorer):
    """Answers with one pack category; `odd` moves its scores away from the pack's own traffic."""

    def __init__(self) -> None:
        super().__init__()
        floors = Floors(np.zeros(2), np.zeros(1), 1, 4)
        self.asks = [SimpleNamespace(pack=SimpleNamespace(pack=PACK, context="wire"), floors=floors)]
        self.odd = False
        self._random = np.random.default_rng(7)

    def _answer(self, i: Any) -> Answer:
        q = PACK.categories["finance"].normal_quantiles
        assert q is not None
        score = 0.99 if self.odd else float(np.interp(self._random.random(), q.levels, q.values))
        answer = super()._answer(i)
        return Answer(**{n: getattr(answer, n) for n in Answer.__struct_fields__ if n != "packs"},
                      packs=[{"id": PACK.id, "context": "wire", "categories": {"finance": {"score": score}}}])  # fmt: skip


class Faults:
    """What the engine raises: `always` at every pass, `once` at the next ones."""

    def __init__(self) -> None:
        self.always = False
        self.once: list[Exception] = []

    def __call__(self, texts: list[str]) -> None:
        if self.always:
            raise EngineFault("a test")
        if self.once:
            raise self.once.pop()


class Live(NamedTuple):
    """What a scene has: the broker of all, a Redis and a Prometheus of its own, and the port where that one looks for a worker."""

    broker: services.Kafka
    redis: services.Redis
    url: str  # of Prometheus
    port: int

    def topics(self) -> Topics:
        """With the settings of a worker that is watched."""

        def make(partitions: int = 1, name: str = "t") -> str:
            topic = f"{name}-{self.port}-{next(_numbers)}"
            kafka_io.run(kafka_io.create(self.broker.address, {topic: partitions}))
            return topic

        limits = {"dlq_max_ratio": 1.0, "dlq_max_run": 100_000, "session_timeout_ms": 20_000}
        return Topics(self.broker.address, make, 2, redis_url=self.redis.url, port=self.port, **limits)


class Watch:
    """Which alerts of a scene have fired so far, and waiting for them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: set[str] = set()
        self.log: list[str] = []

    async def begun(self) -> None:
        """The worker has been scraped a few times: what happens from now on is an increase."""
        end = time.monotonic() + 30
        while not await asyncio.to_thread(prom.query, self.url, "count_over_time(spinf_stream_build_info[10s]) >= 3"):
            assert time.monotonic() < end, "Prometheus does not scrape the worker"
            await asyncio.sleep(0.3)
        await self.clear("WorkerDown", seconds=30)  # Prometheus was there before it

    async def fire(self, *names: str, seconds: float = 90.0) -> None:
        await self._until(lambda now: set(names) <= now, names, "fired", seconds)
        for name in set(names) - self.seen:
            assert (await asyncio.to_thread(prom.runbook, self.url, name)).startswith(f"# {name}\n")
        self.seen |= set(names)

    async def clear(self, *names: str, seconds: float = 90.0) -> None:
        await self._until(lambda now: not set(names) & now, names, "cleared", seconds)

    async def quiet(self, seconds: float) -> None:
        """Nothing fires for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert await self.now() == set(), self.log
            await asyncio.sleep(0.5)

    async def now(self) -> set[str]:
        return await asyncio.to_thread(prom.firing, self.url)

    async def _until(self, true: Callable[[set[str]], bool], names: tuple[str, ...], what: str, seconds: float) -> None:
        began = time.monotonic()
        while not true(now := await self.now()):
            assert time.monotonic() - began < seconds, f"{names} not {what} within {seconds:g} s; firing: {sorted(now)}; {self.log}"
            await asyncio.sleep(0.3)
        self.log.append(f"{' '.join(names)} {what} after {time.monotonic() - began:.0f} s")


_numbers = itertools.count()


def fresh(count: int, age_ms: int = 0) -> list[Rec]:
    """Articles that nobody has seen."""
    at = int(time.time() * 1000) - age_ms if age_ms else None
    return [Rec(json.dumps({"id": f"a{n}", "text": f"article {n}"}).encode(), f"k{n}".encode(), (), n % 2, at) for n in itertools.islice(_numbers, count)]


@contextlib.asynccontextmanager
async def traffic(t: Topics, records: Callable[[], list[Rec]], seconds: float = 0.5) -> AsyncIterator[None]:
    """`records()` is sent again and again."""

    async def send() -> None:
        while True:
            await t.fill(records())
            await asyncio.sleep(seconds)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
