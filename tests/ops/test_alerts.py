"""Every alert fires by its own fault on a live stack, and clears when the fault is gone.

The rules are those that ship, with their times divided by 60 (faster.py); the true times are in rules_test.yml. One
worker with the fake engine, own Kafka, Redis and Prometheus; faults one after the other, those that do not disturb each
other at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import kafka_io
import numpy as np
import prom
import pytest
import services
from aiokafka.admin import AIOKafkaAdminClient
from conftest import SHARED
from fakes import FakeScorer
from faster import faster
from kafka_io import Rec
from ops_files import RULES, alerts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))
from stack import prometheus
from stage import Stage, Topics

from spinf_stream.engine.floors import Floors
from spinf_stream.engine.seam import EngineFault, NonFinite, OutOfMemory
from spinf_stream.packs.file import from_doc
from spinf_stream.records import Answer

pytestmark = pytest.mark.kafka

PACK = from_doc(json.loads((SHARED / "reference" / "example-pack.json").read_text("utf-8")))
HOUR_MS = 3_600_000


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
    broker: services.Kafka
    redis: services.Redis
    url: str  # of Prometheus
    port: int  # of the worker


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with contextlib.ExitStack() as stack:
        port = services.free_port()
        broker, redis = services.Kafka(tmp_path / "kafka"), services.Redis(tmp_path / "redis")
        watcher = prometheus(tmp_path / "prometheus", [f"127.0.0.1:{port}"], faster(RULES.read_text("utf-8")), "1s")
        for service in (broker, redis, watcher):
            service.start()
            stack.callback(service.stop)
        yield Live(broker, redis, watcher.url, port)


class Watch:
    """Which alerts have fired so far, and waiting for them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: set[str] = set()
        self.log: list[str] = []

    async def fire(self, *names: str, seconds: float = 90.0) -> None:
        await self._until(lambda now: set(names) <= now, names, "fired", seconds)
        self.seen |= set(names)

    async def clear(self, *names: str, seconds: float = 90.0) -> None:
        await self._until(lambda now: not set(names) & now, names, "cleared", seconds)

    async def now(self) -> set[str]:
        return await asyncio.to_thread(prom.firing, self.url)

    async def _until(self, true: Any, names: tuple[str, ...], what: str, seconds: float) -> None:
        began = time.monotonic()
        while not true(now := await self.now()):
            assert time.monotonic() - began < seconds, f"{names} not {what} within {seconds:g} s; firing: {sorted(now)}; {self.log}"
            await asyncio.sleep(0.3)
        self.log.append(f"{' '.join(names)} {what} after {time.monotonic() - began:.0f} s")


_numbers = itertools.count()


def fresh(count: int, age_ms: int = 0) -> list[Rec]:
    at = int(time.time() * 1000) - age_ms if age_ms else None
    return [Rec(json.dumps({"id": f"a{n}", "text": f"article {n}"}).encode(), f"k{n}".encode(), (), n % 2, at) for n in itertools.islice(_numbers, count)]


@contextlib.asynccontextmanager
async def traffic(t: Topics, records: Any, seconds: float = 0.5) -> AsyncIterator[None]:
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


def test_each_alert_fires_and_clears(live: Live) -> None:
    asyncio.run(scenario(live))


async def scenario(live: Live) -> None:
    count = itertools.count()

    def make(partitions: int = 1, name: str = "t") -> str:
        topic = f"{name}-{next(count)}"
        kafka_io.run(kafka_io.create(live.broker.address, {topic: partitions}))
        return topic

    t = Topics(live.broker.address, make, 2, redis_url=live.redis.url, port=live.port, dlq_max_ratio=1.0, dlq_max_run=100_000, session_timeout_ms=20_000)
    see, faults, scorer = Watch(live.url), Faults(), Scorer()
    async with Stage(t.settings(), scorer=scorer, fault=faults) as w:
        await healthy(t, see)
        await redis_away(live, t, see)
        await engine_stands(t, see, faults)
        scorer.odd = True  # it takes half a minute to show: meanwhile the next fault
        await t.fill(fresh(1_500))
        await bad_articles(t, see, faults, w)
        await drift_shows(t, see, scorer)
        await loop_stalls(t, see, w)
    await away_and_back(t, see)
    await storm(t, see)
    await topic_gone_and_broker_away(live, t, see)
    print("\n".join(see.log))
    assert see.seen == {a["alert"] for a in alerts()}


async def healthy(t: Topics, see: Watch) -> None:
    async with traffic(t, lambda: fresh(10)):
        await asyncio.sleep(4)  # Prometheus was there before the worker
        await see.clear("WorkerDown", seconds=30)
        end = time.monotonic() + 12
        while time.monotonic() < end:
            assert await see.now() == set()
            await asyncio.sleep(0.5)


async def redis_away(live: Live, t: Topics, see: Watch) -> None:
    async with traffic(t, lambda: fresh(10)):
        live.redis.kill()
        await see.fire("DependencyDown", "DedupDown")
        live.redis.start()
        await see.clear("DependencyDown", "DedupDown")


async def engine_stands(t: Topics, see: Watch, faults: Faults) -> None:
    faults.always = True
    await t.fill(fresh(2_000, HOUR_MS))
    await see.fire("EngineFault", "StuckPartition", "NothingScored", "LagGrowing", "LagHigh")
    faults.always = False
    await see.clear("EngineFault", "StuckPartition", "NothingScored", "LagGrowing", "LagHigh")


async def bad_articles(t: Topics, see: Watch, faults: Faults, w: Stage) -> None:
    scorer = w.scorer
    async with traffic(t, lambda: [*fresh(8), Rec(b"{", b"k", (), 0)]):
        faults.once = [OutOfMemory("a test"), NonFinite(0, "a test's number")]
        scorer.pad = 1_200_000
        await w.until(lambda: w.value("dead_letters_total", reason="publish_too_large") > 0, 30)
        scorer.pad = 0
        await see.fire("DeadLetterRatio", "ScoresTooLarge", "EngineOutOfMemory", "NonFiniteScores")
    async with traffic(t, lambda: fresh(10)):
        await see.clear("DeadLetterRatio", "ScoresTooLarge", "EngineOutOfMemory", "NonFiniteScores")


async def drift_shows(t: Topics, see: Watch, scorer: Scorer) -> None:
    await see.fire("ScoreDrift")
    scorer.odd = False
    await t.fill(fresh(2_100))
    await see.clear("ScoreDrift", seconds=60)


async def loop_stalls(t: Topics, see: Watch, w: Stage) -> None:
    w.runner.block = 6.0
    await t.fill(fresh(1))
    await see.fire("LoopStall")
    await see.clear("LoopStall", "WorkerDown")


async def away_and_back(t: Topics, see: Watch) -> None:
    await see.fire("WorkerDown")
    back = {n: max(0, (offset or 0) - 400) for n, offset in (await t.committed()).items()}
    await t.rewind(back)
    await t.fill(fresh(900))
    slow = t.settings(max_inflight_records=4)
    async with Stage(slow, scorer=Scorer(), seconds=0.4):
        await see.fire("OffsetWentBack")
        await see.fire("LowFill")
        await see.clear("WorkerDown", "OffsetWentBack")


async def storm(t: Topics, see: Watch) -> None:
    """Members come and go; short sessions, because a member learns of it by its heartbeat."""
    quick = {"session_timeout_ms": 3000}
    async with Stage(t.settings(**quick), scorer=Scorer()) as w:
        await see.clear("LowFill", "WorkerDown")
        for _ in range(20):
            async with Stage(t.settings(port=0, **quick), scorer=Scorer(), ready=False):
                await w.until(lambda: w.value("assigned_partitions") == 1, 30)
            await w.until(lambda: w.value("assigned_partitions") == 2, 30)
            if "RebalanceStorm" in await see.now():
                break
        await see.fire("RebalanceStorm", seconds=5)
        await see.clear("RebalanceStorm")


async def topic_gone_and_broker_away(live: Live, t: Topics, see: Watch) -> None:
    async with Stage(t.settings(), scorer=Scorer()):
        await see.clear("WorkerDown", "LagGrowing")
        await _delete(live, t.dlq)
        await t.fill([Rec(b"{", b"k", (), 0)])
        await see.fire("PublishBlocked")
        await kafka_io.create(live.broker.address, {t.dlq: 1})
        await see.clear("PublishBlocked")
        live.broker.pause()
        try:
            await see.fire("DependencyDown")
            down = await asyncio.to_thread(prom.query, live.url, "spinf_stream_dependency_up == 0")
            assert [r["metric"]["dependency"] for r in down] == ["kafka"]
        finally:
            live.broker.resume()
        await see.clear("DependencyDown")


async def _delete(live: Live, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=live.broker.address)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()


def test_faster_rules_differ_in_times_alone() -> None:
    text = faster(RULES.read_text("utf-8"))
    assert not re.search(r"\[\d+[smh]\]|for: \d+[smh]\b", text)
    assert text.count("alert: ") == len(alerts()) and "> 0.25" in text and "> 10 and deriv" in text
