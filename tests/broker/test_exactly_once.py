"""Exactly once on real Kafka: whatever is killed, frozen, aborted or rebalanced, a read_committed reader sees each id once."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import kafka_io
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from fakes import FakeScorer
from kafka_io import Rec
from stage import Process, Stage, Topics, articles, burst, ids, scores

from spinf_stream.stream.kafka import Consumer

pytestmark = pytest.mark.kafka


def once(kafka: str, topics: Any, partitions: int = 1, **settings: Any) -> Topics:
    return Topics(kafka, topics, partitions, delivery="exactly_once", **settings)


async def no_transaction_hangs(t: Topics) -> None:
    """A record put behind them comes out: an open transaction would hold it back from a read_committed reader."""
    before = len(await t.out())
    last = [Rec(b"{}", b"end", (), n) for n in (await t.committed())]
    await kafka_io.produce(t.kafka, t.scores, last)
    assert len(await t.out(before + len(last), seconds=20)) == before + len(last)


def test_scores_dead_letters_and_offsets_are_one_transaction(kafka: str, topics: Any, redis_url: str) -> None:
    async def main() -> None:
        t = once(kafka, topics, 3, redis_url=redis_url)
        names = [f"e{i:03d}" for i in range(300)]
        await t.fill([*articles(names, partitions=3), Rec(b"{", b"bad", (), 1), Rec(None, b"gone", (), 2)])
        w = await burst(t.settings(), scorer=FakeScorer(600, fingerprint=t.group.ljust(64)))
        out = await t.out()
        assert sorted(ids(r for r in out if r.value is not None)) == names
        assert [r.key for r in out if r.value is None] == [b"gone"] and [d.key for d in await t.dead()] == [b"bad"]
        committed = await t.committed()
        assert committed == {0: 100, 1: 101, 2: 101}
        assert w.value("transactions_total", result="committed") >= 3 and w.value("transactions_total", result="failed") == 0
        assert w.value("commits_total") == 0, "no commit outside a transaction"
        assert w.value("done_marks_total", result="written") == 300
        raw = await kafka_io.read_all(kafka, t.scores, committed=False)
        assert len(raw) == len(out), "nothing was aborted"
        again = await burst(t.settings())
        assert again.value("records_consumed_total") == 0

    asyncio.run(main())


@pytest.mark.parametrize("broken", ["send", "send_offsets_to_transaction", "commit_transaction"])
def test_a_failing_transaction_starts_again_at_the_committed_offset(
    kafka: str, topics: Any, redis_url: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, between and *after* the fact: with commit_transaction the transaction is committed and yet reported as failed."""
    real = getattr(AIOKafkaProducer, broken)
    calls = 0

    async def failing(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if self._txn_manager is None or self._txn_manager.transactional_id is None:
            return await real(self, *args, **kwargs)  # the test's own producer
        calls += 1
        if broken == "commit_transaction":
            await real(self, *args, **kwargs)
        if calls in (5, 6, 40):
            raise KafkaError("a blip")
        return None if broken == "commit_transaction" else await real(self, *args, **kwargs)

    async def main() -> None:
        t = once(kafka, topics, 2, redis_url=redis_url)
        names = [f"f{i:03d}" for i in range(200)]
        async with Stage(t.settings(), scorer=FakeScorer(150, fingerprint=t.group.ljust(64)), seconds=0.005) as w:
            await w.until(lambda: w.value("assigned_partitions") == 2)
            monkeypatch.setattr(AIOKafkaProducer, broken, failing)
            await t.fill(articles(names, partitions=2))
            await w.until(lambda: w.value("committed_offset") == 200, 60)
            assert w.value("transactions_total", result="failed") >= 2
            epochs = w.value("partition_epoch")
        out = await t.out()
        assert sorted(ids(out)) == names and epochs > 2
        by_partition = [[scores(r).origin.offset for r in out if scores(r).origin.partition == n] for n in (0, 1)]
        assert all(len(set(p)) == len(p) == 100 for p in by_partition)
        await no_transaction_hangs(t)

    asyncio.run(main())


@pytest.mark.parametrize("point", ["before_offsets", "before_commit", "after_commit", "after_pass"])
def test_a_zombie_publishes_nothing(kafka: str, topics: Any, point: str) -> None:
    """A worker is frozen at the worst place, loses its partitions, and wakes up when another has done its work."""

    async def main() -> None:
        t = once(kafka, topics, 2, session_timeout_ms=1500)
        names = [f"z{i:03d}" for i in range(120)]
        await t.fill(articles(names, partitions=2))
        async with Process(t.settings(), budget=300, seconds=0.02, stop={"at": point, "after": 4}) as frozen:
            await frozen.said(f"stopped {point}")
            async with Stage(t.settings(), scorer=FakeScorer(300)) as w:
                await w.until(lambda: w.value("committed_offset") == 120 and w.value("assigned_partitions") == 2, 30)
                frozen.signal(signal.SIGCONT)
                await frozen.said("partitions given back: lost")
                await w.until(lambda: w.value("assigned_partitions") == 1, 30)
                await t.fill(articles(["y0", "y1", "y2", "y3"], partitions=2))
                await t.out(124)
            frozen.signal(signal.SIGTERM)
            assert await frozen.ended() == 0
        assert sorted(ids(await t.out())) == sorted([*names, "y0", "y1", "y2", "y3"])
        await no_transaction_hangs(t)

    asyncio.run(main())


def test_the_producer_starts_before_the_committed_offset_is_read(kafka: str, topics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The race of reference 0.1: the old owner commits at the moment at which the new one has read the committed offset."""

    async def main() -> None:
        t = once(kafka, topics)
        records = articles([f"o{i}" for i in range(20)])
        await t.fill(records)
        old = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=f"{t.group}-{t.source}-0")
        await old.start()
        await old.begin_transaction()
        for r in records[:10]:
            await old.send_and_wait(t.scores, b"{}", r.key)
        await old.send_offsets_to_transaction({TopicPartition(t.source, 0): 10}, t.group)
        real, told = Consumer.committed, []

        async def committed(self: Consumer, partition: int) -> int | None:
            offset = await real(self, partition)
            if not told:
                told.append(offset)
                with pytest.raises(KafkaError):
                    await asyncio.wait_for(old.commit_transaction(), 10)
            return offset

        monkeypatch.setattr(Consumer, "committed", committed)
        async with Stage(t.settings()) as w:
            await w.until(lambda: w.value("committed_offset") == 20)
        await old.stop()
        assert told == [None]
        assert [r.key for r in await t.out()] == [r.key for r in records]

    asyncio.run(main())


def test_a_zombie_that_wakes_while_the_new_owner_begins(kafka: str, topics: Any) -> None:
    """The old transaction may still commit until the new owner's producer has started; then it counts."""

    async def main() -> None:
        t = once(kafka, topics, 1, session_timeout_ms=1500)
        names = [f"r{i:03d}" for i in range(80)]
        await t.fill(articles(names))
        async with Process(t.settings(), budget=150, seconds=0.02, stop={"at": "before_commit", "after": 3}) as frozen:
            await frozen.said("stopped before_commit")
            async with Stage(t.settings(), scorer=FakeScorer(150), seconds=0.02, ready=False) as w:
                await w.until(lambda: "spinf_stream_partition_epoch{" in w.metrics.text().decode(), 30)  # assigned, not yet open
                frozen.signal(signal.SIGCONT)
                await t.out(80)
                await w.until(lambda: w.value("lag_records") == 0)
        assert sorted(ids(await t.out())) == names

    asyncio.run(main())


def test_kill_9_in_a_transaction(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = once(kafka, topics, 2, session_timeout_ms=1500)
        names = [f"k{i:03d}" for i in range(150)]
        await t.fill(articles(names, partitions=2))
        for point in ("before_offsets", "before_commit", "after_commit"):
            async with Process(t.settings(), budget=200, seconds=0.01, stop={"at": point, "after": 3}) as w:
                await w.said(f"stopped {point}")
                w.signal(signal.SIGKILL)
                await w.ended()
        async with Stage(t.settings(), scorer=FakeScorer(600)) as last:
            await last.until(lambda: last.value("committed_offset") == 150, 30)
        assert sorted(ids(await t.out())) == names
        await no_transaction_hangs(t)

    asyncio.run(main())


def test_rebalances_under_load_with_open_windows(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = once(kafka, topics, 4, max_wait_ms=300)
        names = [f"b{i:04d}" for i in range(1000)]
        filling = asyncio.create_task(t.fill(articles(names, partitions=4)))
        async with Stage(t.settings(), scorer=FakeScorer(300), seconds=0.02) as first:
            for _ in range(2):
                async with Stage(t.settings(), scorer=FakeScorer(300), seconds=0.02) as second:
                    await asyncio.sleep(0.7)
                assert second.code == 0
            await filling
            out = await t.out(1000)
            await first.until(lambda: first.value("committed_offset") == 1000)
        assert sorted(ids(out)) == names
        assert first.value("records_discarded_scored_total") == 0
        await no_transaction_hangs(t)

    asyncio.run(main())


def test_more_partitions_than_a_worker_serves(kafka: str, topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 1, delivery="exactly_once")
        t.source = topics(65, name="wide")
        async with Stage(t.settings(), ready=False) as w:
            assert await w.ended() == 4
        assert "start at least 2 workers" in caplog.text

    asyncio.run(main())


def test_lag_reaches_zero_and_a_new_group_commits_its_start(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = once(kafka, topics, 2)
        producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=f"tx-{t.source}")
        await producer.start()
        for i, r in enumerate(articles([f"t{i}" for i in range(6)])):
            await producer.begin_transaction()
            await producer.send_and_wait(t.source, r.value, r.key, 0)
            await (producer.abort_transaction() if i % 3 == 2 else producer.commit_transaction())
        await producer.stop()
        async with Stage(t.settings()) as w:
            await t.out(4)
            await w.until(lambda: w.value("committed_offset", partition="0") == 12, 10)
            await w.until(lambda: w.value("lag_records") == 0, 10)
            assert await t.committed() == {0: 12, 1: 0}

    asyncio.run(main())
