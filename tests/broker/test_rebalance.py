"""Members come and go while windows are open: nothing is lost, and with a drain nothing is done twice."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
from fakes import FakeScorer
from stage import Stage, Topics, articles, burst, ids, scores

pytestmark = pytest.mark.kafka


def test_an_open_window_at_revoke_is_flushed_published_and_committed(kafka: str, topics: Any) -> None:
    """Redpanda Connect 4009: the window that was open when its partition was revoked must not vanish."""

    async def main() -> None:
        t = Topics(kafka, topics, 4, max_wait_ms=60_000)
        big = lambda: FakeScorer(10**6)  # noqa: E731  # windows stay open for ever
        names = [f"w{i}" for i in range(80)]
        await t.fill(articles(names, partitions=4))
        async with Stage(t.settings(), scorer=big(), seconds=0.2) as first:
            await first.until(lambda: first.value("inflight_records") == 80)
            assert first.runner.passes == []
            async with Stage(t.settings(), scorer=big(), seconds=0.2) as second:
                await first.until(lambda: first.value("rebalances_total", result="drained") == 1)
                assert first.value("batch_closed_total", cause="revoke") == 1
                await first.until(lambda: first.value("assigned_partitions") == 2)
                out = await t.out(80)
                assert sorted(ids(out)) == sorted(names), "each once"
                assert sum((await t.committed()).values()) == 80  # type: ignore[arg-type]
                assert second.runner.passes == [], "and none is done again by the new owner"
                await t.fill(articles(["x0", "x1", "x2", "x3"], partitions=4))
                await second.until(lambda: second.value("inflight_records") == 2)
        assert first.code == second.code == 0
        assert sorted(ids(await t.out())) == sorted([*names, "x0", "x1", "x2", "x3"])
        assert first.value("records_discarded_scored_total") == second.value("records_discarded_scored_total") == 0

    asyncio.run(main())


def test_members_joining_and_leaving_under_load_repeat_nothing(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 6, max_wait_ms=100)
        names = [f"m{i:04d}" for i in range(1500)]
        filling = asyncio.create_task(t.fill(articles(names, partitions=6)))
        async with Stage(t.settings(), scorer=FakeScorer(300), seconds=0.02) as first:
            for _ in range(2):
                async with Stage(t.settings(), scorer=FakeScorer(300), seconds=0.02):
                    await asyncio.sleep(0.7)
                await asyncio.sleep(0.3)
            await filling
            await first.until(lambda: first.value("assigned_partitions") == 6)
            out = await t.out(1500)
            await asyncio.sleep(0.3)
            assert sum((await t.committed()).values()) == 1500  # type: ignore[arg-type]
        assert sorted(ids(out)) == names
        assert first.value("rebalances_total", result="drained") >= 2 and first.value("rebalances_total", result="lost") == 0

    asyncio.run(main())


def test_a_stop_finishes_what_is_in_flight_and_reads_no_more(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2, max_wait_ms=60_000)
        names = [f"s{i:05d}" for i in range(5000)]
        await t.fill(articles(names, partitions=2))
        async with Stage(t.settings(), scorer=FakeScorer(400), seconds=0.3) as w:
            await w.until(lambda: w.runner.finished >= 1)
            consumed = w.value("records_consumed_total")
            began = time.monotonic()
            assert await w.leave() == 0
            assert time.monotonic() - began < 4
            assert w.value("records_consumed_total") - consumed <= 64, "nothing is fetched after the signal"
        out = await t.out()
        assert len(out) == len(set(ids(out))) == sum((await t.committed()).values())  # type: ignore[arg-type]
        assert w.runner.finished == len(w.runner.passes), "no pass was thrown away"
        assert w.value("records_discarded_scored_total") == 0
        rest = await burst(t.settings(max_wait_ms=20), scorer=FakeScorer(8000))
        assert sorted(ids(await t.out())) == names and rest.value("records_total", outcome="duplicate") == 0

    asyncio.run(main())


def test_a_drain_deadline_ends_with_75_and_loses_nothing(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        names = [f"s{i}" for i in range(10)]
        await t.fill(articles(names))
        async with Stage(t.settings(drain_seconds=1.0), seconds=30) as w:
            await w.until(lambda: w.runner.running > 0)
            began = time.monotonic()
            assert await w.leave() == 75
            assert time.monotonic() - began < 4
        assert await t.out() == [] and await t.committed() == {0: 0} and await t.dead() == []
        await burst(t.settings())
        assert ids(await t.out()) == names

    asyncio.run(main())


def test_a_long_pass_keeps_the_membership(kafka: str, topics: Any) -> None:
    """A pass longer than the session and the poll interval: reading is paused, the polls go on."""

    async def main() -> None:
        t = Topics(kafka, topics, 2, session_timeout_ms=1500, max_poll_interval_ms=2000)
        names = [f"l{i}" for i in range(40)]
        await t.fill(articles(names, words=60, partitions=2))
        async with Stage(t.settings(), scorer=FakeScorer(400), seconds=2.3) as w:
            await w.until(lambda: w.runner.finished >= 2, 30)
            assert w.value("paused") == 1 and w.value("paused_seconds_total") > 0
            assert w.value("rebalances_total") == 0
            w.runner.seconds = 0.0
            await w.until(lambda: w.value("records_total", outcome="scored") == 40)
        assert sorted(ids(await t.out())) == sorted(names)

    asyncio.run(main())


def test_a_loop_that_stands_still_loses_the_session_and_nothing_else(kafka: str, topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2, session_timeout_ms=1500)
        names = [f"b{i}" for i in range(60)]
        await t.fill(articles(names, partitions=2))
        async with Stage(t.settings(), scorer=FakeScorer(200), seconds=0.01, block=3.0) as w:
            await w.until(lambda: w.value("rebalances_total", result="lost") >= 1, 30)
            await w.until(lambda: w.value("committed_offset") == 60, 30)
            assert w.value("event_loop_stall_seconds_count") > 0
        out = ids(await t.out())
        assert set(out) == set(names) and len(out) - len(names) <= 60
        stalls = {s.labels["le"]: s.value for m in w.metrics.registry.collect() for s in m.samples
                  if s.name == "spinf_stream_event_loop_stall_seconds_bucket"}  # fmt: skip
        assert stalls["2.5"] < stalls["+Inf"]

    asyncio.run(main())
    assert re.search(r"the event loop stood still for [2-9]\.\d s", caplog.text)


def test_one_fat_partition_does_not_starve_the_others(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 3)
        await t.fill(articles([f"fat{i}" for i in range(3000)], partitions=1))
        await t.fill([r._replace(partition=1 + i % 2) for i, r in enumerate(articles([f"thin{i}" for i in range(20)]))])
        async with Stage(t.settings(max_inflight_records=64), scorer=FakeScorer(700), seconds=0.05) as w:
            await w.until(lambda: w.value("committed_offset", partition="1") == 10 and w.value("committed_offset", partition="2") == 10)
            assert w.value("committed_offset", partition="0") < 1500

    asyncio.run(main())


def test_reading_pauses_at_the_limit_of_bytes(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        names = [f"y{i:03d}" for i in range(100)]
        await t.fill(articles(names, words=4000))
        async with Stage(t.settings(max_inflight_bytes=200_000, max_wait_ms=60_000), scorer=FakeScorer(10**6), seconds=0.05) as w:
            await w.until(lambda: w.value("records_total") == 100, 30)
            assert w.value("batch_closed_total", cause="bytes") > 3
            assert max(len(p) for p in w.runner.passes) <= 10 + 32, "20 kB each: ten, and what one poll brings along"
        assert ids(await t.out()) == names
        assert scores((await t.out())[0]).tokens.content == 4001

    asyncio.run(main())
