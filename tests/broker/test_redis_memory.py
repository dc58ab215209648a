"""A Redis that forgets: it evicts when it is full, and a replica is promoted in its place."""

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
from stage import Stage, Topics, articles, ids
from tcp_proxy import Proxy

pytestmark = pytest.mark.kafka


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[services.Redis, services.Redis]]:
    servers = services.Redis(tmp_path / "one"), services.Redis(tmp_path / "two")
    for s in servers:
        s.start()
    try:
        yield servers
    finally:
        for s in servers:
            s.stop()


def fresh(**more: Any) -> FakeScorer:
    """A fingerprint that nobody has used."""
    return FakeScorer(fingerprint=f"{time.time_ns():064d}", **more)


def again(names: list[str]) -> list[Rec]:
    """The same texts under other ids."""
    return [Rec(json.dumps({"id": f"{n}/2", "text": json.loads(r.value or b"")["text"]}).encode(), r.key) for n, r in zip(names, articles(names), strict=True)]


def test_what_is_evicted_is_scored_again_and_nothing_is_lost(kafka: str, topics: Any, pair: tuple[services.Redis, services.Redis]) -> None:
    async def main() -> None:
        db = Redis.from_url(pair[0].url)
        room = (await db.info("memory"))["used_memory"] + 2**20
        await db.config_set("maxmemory-policy", "allkeys-lru")
        await db.config_set("maxmemory", str(room))
        t = Topics(kafka, topics, redis_url=pair[0].url)
        names = [f"e{i:03d}" for i in range(400)]
        async with Stage(t.settings(on_duplicate="skip", redis_timeout_ms=1000), scorer=fresh(budget=3000, pad=5000)) as w:
            await t.fill(articles(names))
            await w.until(lambda: w.value("done_marks_total", result="written") == 400)
            evicted = (await db.info("stats"))["evicted_keys"]
            assert 100 < evicted < 400, "its memory holds some of the marks"
            await t.fill(again(names))
            await w.until(lambda: w.value("records_total") == 800)
            assert w.value("records_total", outcome="scored") >= 400 + min(100, evicted)
            assert w.value("redis_errors_total") == 0 and w.value("dedup_requests_total", result="mismatch") == 0
            skipped = w.value("records_total", outcome="duplicate")
        out = ids(await t.out())
        assert {n.split("/")[0] for n in out} == set(names) and len(out) == len(set(out)) == 800 - skipped
        await db.aclose()

    asyncio.run(main())


def test_a_replica_that_is_promoted_takes_over_with_what_it_knows(kafka: str, topics: Any, pair: tuple[services.Redis, services.Redis]) -> None:
    """A failover as clients see it: the address leads to the replica, read-only at first, then a master."""

    async def main() -> None:
        one, two = pair
        replica = Redis.from_url(two.url)
        await replica.replicaof(services.HOST, str(one.port))
        async with Proxy(one.port) as proxy:
            t = Topics(kafka, topics, redis_url=f"redis://{services.HOST}:{proxy.port}/0")
            names = [f"r{i}" for i in range(20)]
            async with Stage(t.settings(on_duplicate="skip", redis_timeout_ms=1000), scorer=fresh()) as w:
                await t.fill(articles(names))
                await w.until(lambda: w.value("done_marks_total", result="written") == 20)
                await _until(replica, 20)
                proxy.target = two.port
                one.kill()
                proxy.cut()
                await t.fill(articles(["meanwhile"]))
                await w.until(lambda: w.value("records_total", outcome="scored") == 21)
                await replica.replicaof("NO", "ONE")
                for n in range(60):
                    await t.fill(articles([f"later{n}"]))
                    await w.until(lambda n=n: w.value("records_total", outcome="scored") == 22 + n)
                    if w.value("done_marks_total", result="written") > 20 and w.value("redis_up") == 1:
                        break
                    await asyncio.sleep(0.25)
                else:
                    raise AssertionError("the new master is not written to")
                await t.fill(again(names))
                await w.until(lambda: w.value("records_total", outcome="duplicate") == 20)
            assert sorted(ids(await t.out())) == sorted([*names, "meanwhile", *(f"later{i}" for i in range(n + 1))])
        await replica.aclose()

    async def _until(db: Any, marks: int) -> None:
        for _ in range(400):  # a first synchronisation waits 5 s for other replicas
            if len(await db.keys("spinf:done:*")) == marks:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the replica does not follow")

    asyncio.run(main())
