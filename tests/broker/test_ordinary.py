"""An ordinary run: JSON and msgpack, order, keys, headers, timestamps, offsets, a second run."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import kafka_io
import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from fakes import FakeScorer
from kafka_io import Rec
from stage import Stage, Topics, articles, burst, ids, scores

pytestmark = pytest.mark.kafka


def test_records_come_out_under_their_own_key_id_time_and_trace(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 3, carry_headers=("tenant",))
        trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await t.fill([
            Rec(json.dumps({"id": "a", "text": "first text", "title": "T", "source": "s", "lang": "en", "meta": {"x": [1.5]},
                            "published_at": "2026-01-02T03:04:05Z"}).encode(), b"key-a",
                (("traceparent", trace), ("tenant", b"7"), ("tenant", b"8"), ("secret", b"no")), 1, 1_700_000_000_123),
            Rec(msgspec.msgpack.encode({"id": "b", "text": "second text"}), b"key-b", (("content-type", b"application/msgpack"),), 2),
            Rec(b'{"text": "no id, but a key"}', b"key-c", (), 0),
            Rec(b'{"text": "neither"}', None, (), 2),
            Rec(None, b"key-d", (("traceparent", b"x"),), 1),
        ])  # fmt: skip
        await kafka_io.produce_batch(kafka, t.source, [Rec(None, None)], partition=1)
        w = await burst(t.settings())
        out = await t.out()
        assert len(out) == 5
        by_id = {scores(r).id: r for r in out if r.value is not None}
        assert set(by_id) == {"a", "b", "key-c", f"{t.source}-2-1"}
        a, s = by_id["a"], scores(by_id["a"])
        assert (a.key, a.timestamp) == (b"key-a", 1_700_000_000_123)
        assert a.headers == (("traceparent", trace), ("tenant", b"7"), ("tenant", b"8"), ("content-type", b"application/json"))
        assert (s.outcome, s.source, s.lang, s.meta, s.published_at) == ("scored", "s", "en", {"x": [1.5]}, "2026-01-02T03:04:05Z")
        assert (s.origin.topic, s.origin.partition, s.origin.offset, s.origin.timestamp) == (t.source, 1, 0, 1_700_000_000_123)
        assert s.system_fingerprint == FakeScorer.fingerprint and s.scores and s.tokens.content == 2  # type: ignore[union-attr]
        assert dict(by_id["b"].headers)["content-type"] == b"application/msgpack"
        assert by_id[f"{t.source}-2-1"].partition == 2, "a null key goes to its input partition's number"
        (tombstone,) = (r for r in out if r.value is None)
        assert tombstone.key == b"key-d" and tombstone.headers == (("traceparent", b"x"),)
        assert w.value("records_total", outcome="scored") == 4 and w.value("records_total", outcome="tombstone") == 2
        assert await t.committed() == {0: 1, 1: 3, 2: 2}
        assert await t.dead() == []

    asyncio.run(main())


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_every_codec_is_read(kafka: str, topics: Any, codec: int) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        await kafka_io.produce_batch(kafka, t.source, articles([f"c{i}" for i in range(20)]), codec=codec)
        await burst(t.settings(compression=["none", "gzip", "snappy", "lz4", "zstd"][codec]))
        assert ids(await t.out()) == [f"c{i}" for i in range(20)]

    asyncio.run(main())


def test_order_of_each_partition_is_kept_whatever_the_passes_hold(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 4)
        names = [f"n{i:03d}" for i in range(300)]
        records = [r._replace(key=None, value=json.dumps({"id": n, "text": f"{n} " + "w " * (i * 37 % 900)}).encode())
                   for i, (n, r) in enumerate(zip(names, articles(names, partitions=4)))]  # fmt: skip
        placed = await t.fill(records)
        w = await burst(t.settings(), scorer=FakeScorer(2048), seconds=0.05)
        out = await t.out()
        assert sorted(ids(out)) == names
        order: dict[int, list[int]] = {}
        for r in out:
            order.setdefault(scores(r).origin.partition, []).append(scores(r).origin.offset)
        sent: dict[int, list[int]] = {}
        for partition, offset in placed:
            sent.setdefault(partition, []).append(offset)
        assert order == sent
        assert w.value("batch_closed_total", cause="full") > 0
        assert all(sum(len(x.split()) + 8 for x in texts) <= 2048 for texts in w.runner.passes)
        assert w.runner.most_running == 2

    asyncio.run(main())


def test_a_second_run_over_the_same_topic_costs_no_pass(kafka: str, topics: Any, redis_url: str) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2, redis_url=redis_url)
        scorer = FakeScorer(fingerprint=f"{time.time_ns():064d}")
        names = [f"d{i}" for i in range(60)]
        await t.fill(articles(names, partitions=2))
        first = await burst(t.settings(), scorer=scorer)
        assert first.value("records_total", outcome="scored") == 60 and first.runner.passes

        again = await burst(t.settings(group=t.group + "-other"), scorer=scorer)
        assert again.runner.passes == []
        assert again.value("records_total", outcome="duplicate") == 60
        out = await t.out()
        assert sorted(ids(out)) == sorted(names * 2)
        outcomes = sorted(scores(r).outcome for r in out)
        assert outcomes == ["duplicate"] * 60 + ["scored"] * 60
        by_id: dict[str, list[Any]] = {}
        for r in out:
            by_id.setdefault(scores(r).id, []).append(scores(r).scores)
        assert all(a == b for a, b in by_id.values())

        skipped = await burst(t.settings(group=t.group + "-skip", on_duplicate="skip"), scorer=scorer)
        assert skipped.runner.passes == [] and skipped.value("records_total", outcome="duplicate") == 60
        assert len(await t.out()) == 120

        other = await burst(t.settings(group=t.group + "-new"), scorer=FakeScorer(fingerprint=f"{time.time_ns():064d}"))
        assert len([x for p in other.runner.passes for x in p]) == 60, "another fingerprint is another answer"

    asyncio.run(main())


def test_a_redelivery_publishes_nothing(kafka: str, topics: Any, redis_url: str) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, redis_url=redis_url)
        scorer = FakeScorer(fingerprint=f"{time.time_ns():064d}")
        await t.fill(articles([f"r{i}" for i in range(10)]))
        await burst(t.settings(), scorer=scorer)
        await t.rewind({0: 3})
        again = await burst(t.settings(), scorer=scorer)
        assert again.runner.passes == [] and again.value("records_total", outcome="duplicate") == 7
        assert len(await t.out()) == 10 and await t.committed() == {0: 10}

    asyncio.run(main())


def test_equal_texts_in_flight_share_one_pass(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2)
        same = [Rec(json.dumps({"id": f"s{i}", "text": "the same words"}).encode(), b"k%d" % i, (), i % 2) for i in range(40)]
        await t.fill(same)
        w = await burst(t.settings(), seconds=0.2)
        assert w.runner.passes == [["the same words"]], "Redis is not even configured"
        out = await t.out()
        assert sorted(ids(out)) == sorted(f"s{i}" for i in range(40))
        assert sorted(scores(r).outcome for r in out) == ["duplicate"] * 39 + ["scored"]

    asyncio.run(main())


def test_an_equal_text_is_left_out_only_where_another_of_its_kind_went_out(kafka: str, topics: Any) -> None:
    """on_duplicate = skip, and the first's own meta does not fit into the scores topic."""

    async def main() -> None:
        t = Topics(kafka, topics)
        t.scores = topics(1, name="small", max_message_bytes="3000")
        texts = [{"id": "first", "text": "the same", "meta": {"m": "x" * 4000}}, {"id": "second", "text": "the same"}, {"id": "third", "text": "the same"}]
        async with Stage(t.settings(on_duplicate="skip", max_wait_ms=500)) as w:
            await t.fill([Rec(json.dumps(text).encode(), b"k") for text in texts])
            await w.until(lambda: w.value("committed_offset") == 3)
            assert len(w.runner.passes) == 1
            assert [w.value("records_total", outcome=o) for o in ("scored", "dead", "duplicate")] == [0, 1, 2]
        assert ids(await t.out()) == ["second"] and [json.loads(d.value)["id"] for d in await t.dead()] == ["first"]

    asyncio.run(main())


def test_old_records_expire_and_still_have_an_outcome(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        old, fresh = articles(["old", "fresh"])
        await t.fill([old._replace(timestamp_ms=int(1000 * (time.time() - 3600))), fresh])
        w = await burst(t.settings(max_age_seconds=60.0))
        out = {scores(r).id: scores(r) for r in await t.out()}
        assert (out["old"].outcome, out["old"].scores) == ("expired", [])
        assert out["fresh"].outcome == "scored" and len(w.runner.passes) == 1

    asyncio.run(main())


def test_lag_reaches_zero_past_transaction_markers_and_aborted_records(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        producer = kafka_io.AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=f"tx-{t.source}")
        await producer.start()
        for i, r in enumerate(articles([f"t{i}" for i in range(12)])):
            await producer.begin_transaction()
            await producer.send_and_wait(t.source, r.value, r.key)
            await (producer.abort_transaction() if i % 3 == 2 else producer.commit_transaction())
        await producer.stop()
        async with Stage(t.settings()) as w:
            out = await t.out(8)
            await w.until(lambda: w.value("committed_offset") == 24, 10)
            await w.until(lambda: w.value("lag_records") == 0, 10)
        assert ids(out) == [f"t{i}" for i in range(12) if i % 3 != 2]
        assert await t.committed() == {0: 24}, "12 records and 12 markers"

    asyncio.run(main())


def test_a_new_group_commits_its_start_and_an_empty_topic_is_ready(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 3)
        async with Stage(t.settings()) as w:
            await w.until(lambda: w.value("assigned_partitions") == 3)
            await asyncio.sleep(0.6)
            assert await t.committed() == {0: 0, 1: 0, 2: 0}
        assert w.code == 0

    asyncio.run(main())


def test_a_committed_offset_past_the_end_begins_at_the_first_record(kafka: str, topics: Any) -> None:
    """The topic was made anew, or lost its end, while nobody was looking."""

    async def main() -> None:
        t = Topics(kafka, topics)
        await t.fill(articles([f"p{i}" for i in range(10)]))
        await t.rewind({0: 500})
        async with Stage(t.settings()) as w:
            await w.until(lambda: w.value("committed_offset") == 10)
            await t.fill(articles(["later"]))
            await w.until(lambda: w.value("committed_offset") == 11)
            assert w.value("partition_epoch") == 2
        assert ids(await t.out()) == [*(f"p{i}" for i in range(10)), "later"]
        assert await t.committed() == {0: 11}

    asyncio.run(main())


def test_records_that_retention_took_are_named(kafka: str, topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        await t.fill(articles([f"p{i}" for i in range(10)]))
        await t.rewind({0: 2})
        admin = kafka_io.AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        await admin.delete_records({TopicPartition(t.source, 0): RecordsToDelete(before_offset=6)})
        await admin.close()
        await burst(t.settings())
        assert ids(await t.out()) == ["p6", "p7", "p8", "p9"]
        assert f"{t.source}-0: records 2 to 5 are gone from the topic unread" in caplog.text

    asyncio.run(main())
