"""Poison of every kind beside good records in one batch; dead letters that do not fit or cannot be written; the limits."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import time
from typing import Any
from urllib.error import HTTPError

import kafka_io
import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from corpus.poison import ROWS, sandwich
from fakes import FakeScorer
from kafka_io import RawKey, Rec
from services import free_port
from stage import Stage, Topics, alter, articles, burst, ids, page, scores

pytestmark = pytest.mark.kafka


def test_poison_is_dead_and_its_neighbours_live(kafka: str, topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="spinf_stream")

    async def main() -> None:
        t = Topics(kafka, topics)
        for i, row in enumerate(ROWS):
            await kafka_io.produce_batch(kafka, t.source, [p.record() for p in sandwich(row)], codec=i % 5)
        w = await burst(t.settings(), scorer=FakeScorer(budget=32768))
        out, dead = await t.out(), await t.dead()

        expect_out = [p.name for row in ROWS for p in sandwich(row) if p.outcome == "scored"]
        by_id = {scores(r).id: r for r in out if r.value is not None}
        assert sorted(by_id) == sorted(expect_out)
        assert len(out) == len(expect_out) + sum(r.outcome == "tombstone" for r in ROWS)
        assert [r.key for r in out if r.value is None] == [r.key for r in ROWS if r.outcome == "tombstone"]
        for row in ROWS:
            if row.outcome == "scored":
                assert scores(by_id[row.name]).truncated == row.truncated, row.name
                assert by_id[row.name].key == row.key

        expect = [r for r in ROWS if r.outcome == "dead"]
        assert [(d.key, dict(d.headers)["spinf.error.reason"]) for d in dead] == [(r.key, str(r.reason).encode()) for r in expect]
        for d, row in zip(dead, expect, strict=True):
            h = dict(d.headers)
            assert d.value == row.value, row.name
            assert (h["spinf.error.topic"], h["spinf.error.partition"]) == (t.source.encode(), b"0")
            assert h["spinf.error.offset"] == b"%d" % (3 * ROWS.index(row) + 1)
            assert h["spinf.error.fingerprint"] == FakeScorer.fingerprint.encode() and h["spinf.error.worker"]
            assert len(h["spinf.error.message"]) <= 1000
            if all(not isinstance(k, RawKey) for k, _ in row.headers):
                assert [x for x in d.headers if not x[0].startswith("spinf.error.")] == list(row.headers)
            else:
                raw = [[getattr(k, "raw", k.encode()), v] for k, v in row.headers]
                assert msgspec.msgpack.decode(base64.b64decode(h["spinf.error.headers"])) == raw
        assert w.value("records_total") == 3 * len(ROWS) and w.value("dead_letters_total") == len(expect)
        assert await t.committed() == {0: 3 * len(ROWS)}

    asyncio.run(main())
    said = "\n".join(r.getMessage() for r in caplog.records)
    assert "dead letter: articles-" in said, "each dead letter is named with its place"
    assert "word word" not in said and "Before" not in said and "sixteen" not in said


def test_a_dead_letter_that_does_not_fit_leaves_its_value_behind(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        big = b"[" + b"x" * 1_048_400
        await kafka_io.produce(kafka, t.source, [Rec(big, b"big", (("note", b"n"),)), *articles(["after"])])
        await burst(t.settings())
        (dead,) = await t.dead()
        h = dict(dead.headers)
        assert (dead.key, dead.value, h["note"]) == (b"big", b"", b"n")
        assert h["spinf.error.value_length"] == b"%d" % len(big)
        assert h["spinf.error.value_sha256"] == hashlib.sha256(big).hexdigest().encode()
        assert ids(await t.out()) == ["after"]

    asyncio.run(main())


def test_scores_too_large_for_their_topic_are_dead_and_the_limit_is_the_topics_own(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        t.scores = topics(1, name="small", max_message_bytes="3000")
        await t.fill(articles(["a"]))
        await burst(t.settings())
        assert ids(await t.out()) == ["a"]
        await t.fill(articles(["b"]))
        w = await burst(t.settings(), scorer=FakeScorer(pad=3000))
        (dead,) = await t.dead()
        assert dict(dead.headers)["spinf.error.reason"] == b"publish_too_large"
        assert json.loads(dead.value)["id"] == "b"
        assert w.value("dead_letters_total", reason="publish_too_large") == 1

        t.scores = topics(1, name="large", max_message_bytes="3000000")
        await t.fill(articles(["c"]))
        await burst(t.settings(), scorer=FakeScorer(pad=2_000_000))
        assert ids(await t.out()) == ["c"], "and a larger topic takes what the client's default would refuse"

    asyncio.run(main())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_topic_whose_limit_shrinks_while_running(kafka: str, topics: Any, delivery: str) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, delivery=delivery)
        async with Stage(t.settings(), scorer=FakeScorer(pad=5000)) as w:
            await t.fill(articles(["a"]))
            await t.out(1)
            await alter(kafka, t.scores, {"max.message.bytes": "2000"})
            await t.fill(articles(["b"]))
            (dead,) = await t.dead(1)
            assert dict(dead.headers)["spinf.error.reason"] == b"publish_too_large"
            assert w.value("publish_failures_total", kind="too_large") == 1
            await w.until(lambda: w.value("committed_offset") == 2)

    asyncio.run(main())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_timestamp_that_the_scores_topic_refuses(kafka: str, topics: Any, delivery: str) -> None:
    """Where the input topic took it: the scores go out with the time of their writing, after one refusal."""

    async def main() -> None:
        t = Topics(kafka, topics, delivery=delivery)
        t.source = topics(1, name="tolerant", message_timestamp_after_max_ms=str(2**62))
        early, late, after = articles(["early", "late", "after"])
        ahead = int((time.time() + 2 * 3600) * 1000)
        async with Stage(t.settings()) as w:
            await t.fill([early, late._replace(timestamp_ms=ahead)])
            await w.until(lambda: w.value("committed_offset") == 2)
            await t.fill([after._replace(timestamp_ms=(now := int(time.time() * 1000)))])
            await w.until(lambda: w.value("committed_offset") == 3)
            assert w.value("publish_failures_total", kind="timestamp") == 1
        out = await t.out()
        assert ids(out) == ["early", "late", "after"]
        assert out[1].timestamp < ahead and out[2].timestamp == now and scores(out[1]).origin.timestamp == ahead

    asyncio.run(main())


@pytest.mark.parametrize("idempotence", [True, False])
def test_a_refused_batch_takes_those_behind_it_back(kafka: str, topics: Any, idempotence: bool) -> None:
    """60 large records of one key, a batch for a few of them, the first refused: nothing overtakes it."""

    async def main() -> None:
        t = Topics(kafka, topics, producer_idempotence=idempotence)
        t.source = topics(1, name="tolerant", message_timestamp_after_max_ms=str(2**62))
        names = [f"o{i:02d}" for i in range(60)]
        first, *others = (r._replace(key=b"same") for r in articles(names))
        async with Stage(t.settings(max_wait_ms=1000), scorer=FakeScorer(10**6, pad=20_000)) as w:
            await t.fill([first._replace(timestamp_ms=int((time.time() + 7200) * 1000)), *others])
            await w.until(lambda: w.value("committed_offset") == 60)
            assert w.value("publish_failures_total", kind="timestamp") == 1
        assert ids(await t.out()) == names

    asyncio.run(main())


def test_too_many_in_a_row_stop_the_worker(kafka: str, topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        await t.fill([*articles(["good"]), *(Rec(b"{", b"k%d" % i) for i in range(60))])
        async with Stage(t.settings(dlq_max_run=20), ready=False) as w:
            assert await w.ended() == 4
        assert len(await t.dead()) == 20 and ids(await t.out()) == ["good"]
        assert await t.committed() == {0: 21}, "what is written is committed, the rest stays in the topic"

    asyncio.run(main())
    assert "20 dead letters in a row (dlq_max_run)" in caplog.text


def test_it_stays_out_until_told_to_end(kafka: str, topics: Any) -> None:
    """A supervisor that starts what has ended would write so many more dead letters at every start."""

    async def main() -> None:
        t = Topics(kafka, topics)
        await t.fill([*articles(["good"]), *(Rec(b"{", b"k%d" % i) for i in range(60))])
        port = free_port()
        async with Stage(t.settings(dlq_max_run=20, on_limit="wait", port=port), ready=False) as w:
            for _ in range(200):
                status, says = await asyncio.to_thread(asked, port, "/readyz")
                if "in a row" in says and says.startswith("stopped"):
                    break
                await asyncio.sleep(0.05)
            assert status == 503 and says == "stopped: 20 dead letters in a row (dlq_max_run)\n"
            assert (await asyncio.to_thread(asked, port, "/healthz"))[0] == 200, "alive: nobody starts it again"
            assert (await asyncio.to_thread(asked, port, "/metrics"))[0] == 503, "for Prometheus it is down"
            await t.rewind({0: 21})  # which the broker refuses while the group has a member
            assert len(await t.dead()) == 20
            assert await w.leave() == 4
        assert len(await t.dead()) == 20 and await t.committed() == {0: 21}

    asyncio.run(main())


def asked(port: int, path: str) -> tuple[int, str]:
    """Whatever the status; (0, "") while nobody listens."""
    try:
        return page(port, path)
    except HTTPError as e:
        return e.code, e.read().decode()
    except OSError:
        return 0, ""


def test_a_ratio_of_dead_letters_stops_the_worker(kafka: str, topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        good = articles([f"g{i}" for i in range(2000)])
        await t.fill(Rec(b"{", b"bad") if i % 8 == 0 else r for i, r in enumerate(good))
        async with Stage(t.settings(), scorer=FakeScorer(32768), ready=False) as w:
            assert await w.ended() == 4
        assert w.value("records_total") == 1000, "the window must be full before its ratio counts"

    asyncio.run(main())
    assert "125 dead letters in the last 1000 records (dlq_max_ratio 0.1)" in caplog.text


def test_dead_letters_that_cannot_be_written_hold_the_partition(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2)
        async with Stage(t.settings(max_inflight_records=16)) as w:
            admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
            await admin.start()
            await admin.delete_topics([t.dlq])
            try:
                await t.fill([Rec(b"{", None, (), 0), *(r._replace(partition=0) for r in articles(["x0", "x1"]))])
                await t.fill([r._replace(partition=1) for r in articles([f"y{i}" for i in range(30)])])
                await w.until(lambda: w.value("records_total", outcome="scored") == 30)
                await w.until(lambda: w.value("publish_blocked") == 1, 30)
                assert await t.committed() == {0: 0, 1: 30}, "no commit past it, and the other partition goes on"
                await kafka_io.create(kafka, {t.dlq: 1})
                await w.until(lambda: w.value("records_total", outcome="dead") == 1, 30)
                await w.until(lambda: w.value("committed_offset") == 33)
            finally:
                await admin.close()
        assert sorted(ids(await t.out())) == sorted(["x0", "x1", *(f"y{i}" for i in range(30))])
        assert len(await t.dead()) == 1

    asyncio.run(main())


def test_a_missing_topic_is_named_with_what_to_do(kafka: str, topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = Topics(kafka, topics)
        async with Stage(t.settings(dlq_topic="no-such-topic"), ready=False) as w:
            assert await w.ended() == 3
        assert "no topic no-such-topic" in caplog.text and "topics create" in caplog.text
        t.source, t.scores, t.dlq = (f"{n}-{t.group}" for n in ("made", "made-scores", "made-dlq"))
        async with Stage(t.settings(create_topics=True)) as w:
            await t.fill(articles(["a"]))
            assert ids(await t.out(1)) == ["a"]

    asyncio.run(main())
