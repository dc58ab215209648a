"""Redis down, slow, silent, full, read-only or lying: scoring goes on within the deadlines, counted, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import services
from fakes import FakeScorer
from kafka_io import Rec
from redis.asyncio import Redis
from stage import Stage, Topics, articles, burst, ids, scores
from tcp_proxy import Proxy

pytestmark = pytest.mark.kafka


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[services.Redis]:
    server = services.Redis(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def fresh() -> FakeScorer:
    """A fingerprint that nobody has used."""
    return FakeScorer(fingerprint=f"{time.time_ns():064d}")


def test_down_and_up_again(kafka: str, topics: Any, own_redis: services.Redis) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, redis_url=own_redis.url)
        async with Stage(t.settings(), scorer=fresh()) as w:
            await t.fill(articles(["a"]))
            await w.until(lambda: w.value("done_marks_total", result="written") == 1)
            own_redis.kill()
            began = time.monotonic()
            await t.fill(articles([f"b{i}" for i in range(100)]))
            await w.until(lambda: w.value("records_total", outcome="scored") == 101)
            assert time.monotonic() - began < 3, "an outage costs a deadline now and then, not one a record"
            assert w.value("redis_up") == 0 and w.value("dedup_requests_total", result="error") > 0
            assert w.value("dedup_requests_total", result="skipped") > 0
            own_redis.start()
            for i in range(40):
                await t.fill(articles([f"c{i}"]))
                await w.until(lambda n=i: w.value("records_total") == 102 + n)
                if w.value("redis_up") == 1 and w.value("done_marks_total", result="written") > 1:
                    break
                await asyncio.sleep(0.3)
            else:
                raise AssertionError("Redis is back and not used")
        out = ids(await t.out())
        assert len(out) == len(set(out)) == 101 + i + 1

    asyncio.run(main())


def test_silent_and_slow(kafka: str, topics: Any, own_redis: services.Redis) -> None:
    """Half of the texts are repeats; replies arrive late, after their command's deadline, for a while not at all."""

    async def main() -> None:
        async with Proxy(own_redis.port) as proxy:
            proxy.delay = (0.0, 0.2)
            t = Topics(kafka, topics, 2, redis_url=f"redis://127.0.0.1:{proxy.port}/0")
            names = [f"n{i}" for i in range(600)]
            async with Stage(t.settings(redis_timeout_ms=50, on_duplicate="skip"), scorer=fresh()) as w:
                for at in range(0, 600, 50):
                    proxy.silent = at == 300
                    # every text twice, the second time under another id
                    pairs = [n for n in names[at : at + 50] for _ in (0, 1)]
                    await t.fill(
                        Rec(json.dumps({"id": f"{n}/{i % 2}", "text": f"text of {n}"}).encode(), n.encode(), (), i % 2)
                        for i, n in enumerate(pairs)
                    )
                    await asyncio.sleep(0.1)
                await w.until(lambda: w.value("records_total") == 1200, 60)
                seen = {n.split("/")[0] for n in ids(await t.out())}
                assert seen == set(names), "no text that was never seen is skipped"
                assert w.value("dedup_requests_total", result="error") > 0
                assert w.value("dedup_requests_total", result="mismatch") == 0

    asyncio.run(main())


def test_full_and_read_only(kafka: str, topics: Any, own_redis: services.Redis) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, redis_url=own_redis.url)
        admin = Redis.from_url(own_redis.url)
        async with Stage(t.settings(), scorer=fresh()) as w:
            await t.fill(articles(["a"]))
            await w.until(lambda: w.value("done_marks_total", result="written") == 1)
            await admin.config_set("maxmemory", "1")
            await t.fill(articles([f"b{i}" for i in range(20)]))
            await w.until(lambda: w.value("records_total") == 21)
            assert w.value("redis_errors_total", kind="write") > 0 and w.value("redis_errors_total", kind="read") == 0
            await t.fill([Rec(json.dumps({"id": "again", "text": json.loads(articles(["a"])[0].value or b"")["text"]}).encode())])
            await w.until(lambda: w.value("records_total", outcome="duplicate") == 1), "reads go on"
            await admin.config_set("maxmemory", "0")
            await admin.replicaof("127.0.0.1", "1")
            await t.fill(articles([f"c{i}" for i in range(20)]))
            await w.until(lambda: w.value("records_total", outcome="scored") == 41)
        await admin.aclose()
        assert sorted(ids(await t.out())) == sorted(["a", "again", *(f"{x}{i}" for x in "bc" for i in range(20))])

    asyncio.run(main())


def test_a_mark_that_is_not_ours_is_a_miss(kafka: str, topics: Any, own_redis: services.Redis) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, redis_url=own_redis.url)
        scorer = fresh()
        await t.fill(articles([f"m{i}" for i in range(6)]))
        await burst(t.settings(), scorer=scorer)
        db = Redis.from_url(own_redis.url)
        keys = sorted(await db.keys("spinf:done:*"))
        assert len(keys) == 6 and 0 < await db.ttl(keys[0]) <= 7 * 24 * 3600
        values = await db.mget(keys)
        await db.set(keys[0], values[1])  # signed by us, but for another text
        await db.set(keys[1], values[1][:-1] + b"\x00")
        await db.set(keys[2], b"")
        await db.delete(keys[3])
        await db.aclose()
        w = await burst(t.settings(group=t.group + "-2"), scorer=scorer)
        assert w.value("dedup_requests_total", result="mismatch") == 3
        assert w.value("dedup_requests_total", result="miss") == 1
        assert w.value("records_total", outcome="scored") == 4 and w.value("records_total", outcome="duplicate") == 2
        other = await burst(t.settings(group=t.group + "-3", dedup_secret="another"), scorer=scorer)
        assert other.value("records_total", outcome="scored") == 6

    asyncio.run(main())


def test_nothing_is_marked_before_its_output_is_acknowledged(kafka: str, topics: Any, own_redis: services.Redis) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, redis_url=own_redis.url)
        db = Redis.from_url(own_redis.url)
        async with Stage(t.settings(), scorer=fresh(), seconds=0.5) as w:
            await t.fill(articles(["a"]))
            await w.until(lambda: bool(w.runner.passes))
            assert await db.keys("spinf:done:*") == []
            assert [len(v) for v in await db.mget(await db.keys("spinf:tries:*"))] == [32], "the attempt is counted before the pass"
            await w.until(lambda: w.value("done_marks_total", result="written") == 1)
            assert len(await db.keys("spinf:done:*")) == 1 and await db.keys("spinf:tries:*") == []
        await db.aclose()

    asyncio.run(main())


def test_writes_that_are_done_and_answered_too_late_make_no_text_dead(kafka: str, topics: Any, own_redis: services.Redis) -> None:
    """The same article of an agency again and again: each of its passes is begun in Redis, no end of one is seen there."""

    async def main() -> None:
        async with Proxy(own_redis.port) as proxy:
            t = Topics(kafka, topics, redis_url=f"redis://127.0.0.1:{proxy.port}/0")
            proxy.delay, proxy.slow = (0.3, 0.3), (b"\nAPPEND\r", b"\nDEL\r", b"\nSET\r")  # MGET is answered at once
            scorer = fresh()
            async with Stage(t.settings(), scorer=scorer) as w:
                for n in range(7):
                    await t.fill([Rec(json.dumps({"id": f"copy{n}", "text": "the same article"}).encode(), b"k")])
                    await w.until(lambda n=n: w.value("records_total") == n + 1)
                    await asyncio.sleep(1.2)  # Redis is asked again
                assert w.value("redis_errors_total", kind="write") > 2 and w.value("redis_errors_total", kind="read") == 0
                assert w.value("records_total", outcome="dead") == 0 and await t.dead() == []
                proxy.slow = ()
                await w.until(lambda: w.value("dependency_up", dependency="redis") == 1)
                await asyncio.sleep(12 if w.value("redis_up") == 0 else 3)
            await t.fill([Rec(json.dumps({"id": "last", "text": "the same article"}).encode(), b"k")])
            db = Redis.from_url(own_redis.url)
            await db.delete(*await db.keys("spinf:done:*"), "none")
            await db.aclose()
            await burst(t.settings(), scorer=scorer)
            assert len(await t.out()) == 8 and await t.dead() == [], "taken back, so that it does not count with another worker either"

    asyncio.run(main())


def test_an_embedded_redis_serves_one_worker(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, redis_url="embedded://")
        async with Stage(t.settings()) as w:
            await t.fill(articles(["a"]))
            await w.until(lambda: w.value("done_marks_total", result="written") == 1)
            await t.fill(articles(["a"]))
            await w.until(lambda: w.value("records_total", outcome="duplicate") == 1)
            assert len(w.runner.passes) == 1
        first, second = await t.out()
        assert scores(first).scores == scores(second).scores and scores(second).origin.offset == 1

    asyncio.run(main())
