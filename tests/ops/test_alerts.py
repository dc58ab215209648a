"""Every alert fires by its own fault on a live stack, and clears when the fault is gone.

The rules are those that ship, with their times divided by 60 (faster.py); the true times are in rules_test.yml. Four
scenes at once, each with a worker on the fake engine, a Redis and a Prometheus of its own, so that no fault is another
scene's; all on one Kafka, which is stopped when they are over.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kafka_io
import prom
import pytest
import services
from aiokafka.admin import AIOKafkaAdminClient
from alert_stage import Faults, Live, Scorer, Watch, fresh, traffic
from faster import faster
from kafka_io import Rec
from ops_files import RULES, alerts
from stack import prometheus
from stage import Stage

from spinf_stream.engine.seam import NonFinite, OutOfMemory
from spinf_stream.stream import passes, publisher

HOUR_MS = 3_600_000


async def redis_away_and_the_loop_stalls(live: Live, see: Watch) -> None:
    t = live.topics()
    async with Stage(t.settings(), scorer=Scorer()) as w:
        async with traffic(t, lambda: fresh(10)):
            await see.begun()
            await see.quiet(12)
            live.redis.kill()
            await see.fire("DependencyDown", "DedupDown")
            live.redis.start()
            await see.clear("DependencyDown", "DedupDown")
        w.runner.block = 6.0
        await t.fill(fresh(1))
        await see.fire("LoopStall")
        await see.clear("LoopStall", "WorkerDown")


async def the_engine_stands_and_the_worker_is_away(live: Live, see: Watch) -> None:
    t, faults = live.topics(), Faults()
    async with Stage(t.settings(), scorer=Scorer(), fault=faults):
        await see.begun()
        faults.always = True
        await t.fill(fresh(2_000, HOUR_MS))
        await see.fire("EngineFault", "StuckPartition", "NothingScored", "LagGrowing", "LagHigh")
        faults.always = False
        await see.clear("EngineFault", "StuckPartition", "NothingScored", "LagGrowing", "LagHigh")
    await see.fire("WorkerDown")
    await t.rewind({n: max(0, (offset or 0) - 400) for n, offset in (await t.committed()).items()})
    await t.fill(fresh(900))
    async with Stage(t.settings(max_inflight_records=4), scorer=Scorer(), seconds=0.4) as w:
        await see.fire("OffsetWentBack")
        await see.fire("LowFill")
        w.runner.seconds = 0.0
        await see.clear("WorkerDown", "OffsetWentBack", "LowFill")


async def bad_articles_and_a_storm(live: Live, see: Watch) -> None:
    """Members come and go with short sessions, because a member learns of it by its heartbeat."""
    t, faults, scorer, quick = live.topics(), Faults(), Scorer(), {"session_timeout_ms": 3000}
    bad = ("DeadLetterRatio", "ScoresTooLarge", "EngineOutOfMemory", "NonFiniteScores")
    async with Stage(t.settings(**quick), scorer=scorer, fault=faults) as w:
        await see.begun()
        async with traffic(t, lambda: [*fresh(8), Rec(b"{", b"k", (), 0)]):
            faults.once = [OutOfMemory("a test"), NonFinite(0, "a test's number")]
            scorer.pad = 1_200_000
            await w.until(lambda: w.value("dead_letters_total", reason="publish_too_large") > 0, 30)
            scorer.pad = 0
            await see.fire(*bad)
        async with traffic(t, lambda: fresh(10)):
            await see.clear(*bad)
        for _ in range(20):
            async with Stage(t.settings(port=0, **quick), scorer=Scorer(), ready=False):
                await w.until(lambda: w.value("assigned_partitions") == 1, 30)
            await w.until(lambda: w.value("assigned_partitions") == 2, 30)
            if "RebalanceStorm" in await see.now():
                break
        await see.fire("RebalanceStorm", seconds=5)
        await see.clear("RebalanceStorm")


async def scores_drift_and_a_topic_is_gone(live: Live, see: Watch) -> None:
    t, scorer = live.topics(), Scorer()
    async with Stage(t.settings(), scorer=scorer):
        await see.begun()
        scorer.odd = True
        await t.fill(fresh(1_500))
        await see.fire("ScoreDrift")
        scorer.odd = False
        await t.fill(fresh(2_100))
        await see.clear("ScoreDrift", seconds=60)
        await _delete(live, t.dlq)
        await t.fill([Rec(b"{", b"k", (), 0)])
        await see.fire("PublishBlocked")
        await kafka_io.create(live.broker.address, {t.dlq: 1})
        await see.clear("PublishBlocked")


async def the_broker_is_silent_and_then_gone(live: Live, see: Watch) -> None:
    """Alone: it is everybody's. What is under way when it falls silent is late; a port where nobody listens is another fault."""
    t = live.topics()
    async with Stage(t.settings(), scorer=Scorer(), seconds=0.3) as w:
        await see.begun()
        await t.fill(fresh(1_500))
        await w.until(lambda: w.value("records_total", outcome="scored") > 0)
        live.broker.pause()
        try:
            await see.fire("DependencyDown", "PublishBlocked")
            down = await asyncio.to_thread(prom.query, live.url, "spinf_stream_dependency_up == 0")
            assert [r["metric"]["dependency"] for r in down] == ["kafka"]
        finally:
            live.broker.resume()
        await see.clear("DependencyDown", "PublishBlocked")
        live.broker.kill()
        await see.fire("DependencyDown")
        await asyncio.to_thread(live.broker.start)
        await see.clear("DependencyDown", "PublishBlocked")
        before = w.value("records_total", outcome="scored")
        await t.fill(fresh(10))
        await w.until(lambda: w.value("records_total", outcome="scored") >= before + 10, 30)


async def _delete(live: Live, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=live.broker.address)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()


SCENES = (
    redis_away_and_the_loop_stalls, the_engine_stands_and_the_worker_is_away, bad_articles_and_a_storm, scores_drift_and_a_topic_is_gone,
)  # fmt: skip


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[list[Live]]:
    """One for each scene."""
    with contextlib.ExitStack() as stack:

        def started(service: services.Service) -> services.Service:
            service.start()
            stack.callback(service.stop)
            return service

        broker = services.Kafka(tmp_path / "kafka")
        started(broker)
        rules, out = faster(RULES.read_text("utf-8")), []
        for i in range(len(SCENES)):
            port, redis = services.free_port(), services.Redis(tmp_path / f"redis{i}")
            watcher = prometheus(tmp_path / f"prometheus{i}", [f"127.0.0.1:{port}"], rules, "1s")
            started(redis)
            started(watcher)
            out.append(Live(broker, redis, watcher.url, port))
        yield out


@pytest.mark.kafka
def test_each_alert_fires_and_clears(lives: list[Live], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "BACKOFF", (0.25, 1.0))  # an engine that is well again is noticed within a second
    monkeypatch.setattr(publisher, "LATE_SECONDS", 1.0)
    watches = [Watch(live.url) for live in lives]

    def play(scene: Callable[[Live, Watch], Awaitable[None]], live: Live, see: Watch) -> float:
        """In a thread and a loop of its own: one scene stalls its loop."""
        began = time.monotonic()

        async def main() -> None:
            await scene(live, see)

        asyncio.run(main())
        return time.monotonic() - began

    with ThreadPoolExecutor(len(SCENES)) as threads:
        took = list(threads.map(play, SCENES, lives, watches))
    took.append(play(the_broker_is_silent_and_then_gone, lives[0], watches[0]))
    for scene, seconds in zip((*SCENES, the_broker_is_silent_and_then_gone), took, strict=True):
        print(f"{scene.__name__}: {seconds:.0f} s")
    print(*(line for see in watches for line in see.log), sep="\n")
    assert set().union(*(see.seen for see in watches)) == {a["alert"] for a in alerts()}


def test_faster_rules_differ_in_times_alone() -> None:
    text = faster(RULES.read_text("utf-8"))
    assert not re.search(r"\[\d+[smh]\]|for: \d+[smh]\b", text)
    assert text.count("alert: ") == len(alerts()) and "> 0.25" in text and "> 10 and deriv" in text
