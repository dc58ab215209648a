"""An engine that raises, runs out of memory, is not finite, goes away: what each costs, and that nothing else is touched."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import pytest
from fakes import FakeScorer
from redis.asyncio import Redis
from stage import Process, Stage, Topics, articles, burst, ids

from spinf_stream.engine.seam import EngineFatal, EngineFault, NonFinite, OutOfMemory
from spinf_stream.metrics import Metrics
from spinf_stream.stream.dedup import Dedup

pytestmark = pytest.mark.kafka


def reason(record: Any) -> bytes:
    return dict(record.headers)["spinf.error.reason"]


def test_one_article_of_64_makes_the_engine_raise(kafka: str, topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fault(texts: list[str]) -> None:
        if any(t.startswith("p17 ") for t in texts):
            raise ZeroDivisionError(f"this quotes the article: {texts}")

    async def main() -> None:
        t = Topics(kafka, topics)
        await t.fill(articles([f"p{i}" for i in range(64)]))
        w = await burst(t.settings(max_wait_ms=1000), fault=fault)
        assert ids(await t.out()) == [f"p{i}" for i in range(64) if i != 17]
        (dead,) = await t.dead()
        assert reason(dead) == b"engine_error" and dead.key == b"p17"
        assert len(w.runner.passes[0]) == 64 and len(w.runner.passes) <= 1 + 2 * 6
        message = dict(dead.headers)["spinf.error.message"]
        assert b"ZeroDivisionError" in message and b"quotes" not in message

    asyncio.run(main())
    assert "quotes the article" not in caplog.text


def test_numbers_that_are_not_finite_name_their_article(kafka: str, topics: Any) -> None:
    def fault(texts: list[str]) -> None:
        for i, text in enumerate(texts):
            if text.startswith(("p3 ", "p11 ")):
                raise NonFinite(i, "a score")

    async def main() -> None:
        t = Topics(kafka, topics)
        await t.fill(articles([f"p{i}" for i in range(16)]))
        w = await burst(t.settings(max_wait_ms=1000), fault=fault)
        assert ids(await t.out()) == [f"p{i}" for i in range(16) if i not in (3, 11)]
        assert [(d.key, reason(d)) for d in await t.dead()] == [(b"p3", b"nonfinite"), (b"p11", b"nonfinite")]
        assert w.value("nonfinite_scores_total") == 2 and len(w.runner.passes) == 3

    asyncio.run(main())


def test_out_of_memory_teaches_a_smaller_budget_once(kafka: str, topics: Any) -> None:
    def fault(texts: list[str]) -> None:
        if sum(len(t.split()) + 8 for t in texts) > 1250:
            raise OutOfMemory("too much")

    async def main() -> None:
        t = Topics(kafka, topics)
        names = [f"o{i}" for i in range(400)]
        await t.fill(articles(names, words=70))
        w = await burst(t.settings(), scorer=FakeScorer(2048), fault=fault)
        assert ids(await t.out()) == names and await t.dead() == []
        assert 1 <= w.value("engine_oom_total") <= 3, "learned, not learned again with every pass"
        assert 600 <= w.value("token_budget_effective") <= 1250

    asyncio.run(main())


def test_an_article_that_never_fits_is_dead_and_leaves_the_budget_alone(kafka: str, topics: Any) -> None:
    def fault(texts: list[str]) -> None:
        if any(t.startswith("big ") for t in texts):
            raise OutOfMemory("too much")

    async def main() -> None:
        t = Topics(kafka, topics)
        await t.fill([*articles(["a"]), *articles(["big"], words=500), *articles(["b"])])
        w = await burst(t.settings(), fault=fault)
        assert ids(await t.out()) == ["a", "b"]
        assert [reason(d) for d in await t.dead()] == [b"engine_error"]
        assert w.value("token_budget_effective") > 300

    asyncio.run(main())


def test_a_faulting_engine_holds_the_offset_until_it_works_again(kafka: str, topics: Any) -> None:
    broken = [True]

    def fault(texts: list[str]) -> None:
        if broken[0] and any(t.startswith("p7 ") for t in texts):
            raise EngineFault("a hiccup")

    async def main() -> None:
        t = Topics(kafka, topics)
        await t.fill(articles([f"p{i}" for i in range(20)], words=100))
        async with Stage(t.settings(), fault=fault, scorer=FakeScorer(500)) as w:
            await w.until(lambda: w.value("engine_passes_total", result="fault") >= 3)
            committed = (await t.committed())[0]
            assert committed is not None and committed <= 7
            assert w.value("records_total", outcome="dead") == 0
            broken[0] = False
            await w.until(lambda: w.value("committed_offset") == 20)
        assert ids(await t.out()) == [f"p{i}" for i in range(20)] and w.code == 0

    asyncio.run(main())


def test_an_engine_that_is_gone_ends_the_worker_with_70(kafka: str, topics: Any, redis_url: str) -> None:
    """DECISIONS 17: five workers die of one text; each counts it, it runs alone after three, after five it is dead."""

    def fault(texts: list[str]) -> None:
        if any(t.startswith("killer ") for t in texts):
            raise EngineFatal("an illegal address")

    async def main() -> None:
        t = Topics(kafka, topics, redis_url=redis_url)
        scorer = FakeScorer(fingerprint=f"{time.time_ns():064d}")
        names = [f"k{i}" for i in range(4)]
        await t.fill(articles([*names[:2], "killer", *names[2:]]))
        windows = []
        for _ in range(5):
            async with Stage(t.settings(), scorer=scorer, fault=fault, ready=False) as w:
                assert await w.ended() == 70
            windows += [len(p) for p in w.runner.passes if any(x.startswith("killer ") for x in p)]
        assert windows[:3] == [5, 5, 5] and windows[3:] == [1, 1]
        w = await burst(t.settings(), scorer=scorer, fault=fault)
        assert not any(x.startswith("killer ") for p in w.runner.passes for x in p)
        assert sorted(ids(await t.out())) == sorted(names)
        (dead,) = await t.dead()
        assert (dead.key, reason(dead), dict(dead.headers)["spinf.error.attempts"]) == (b"killer", b"engine_crash", b"5")
        assert await t.committed() == {0: 5}
        db = Redis.from_url(redis_url)
        tries = [k async for k in db.scan_iter(f"spinf:tries:{scorer.fingerprint_full}:*")]
        assert len(tries) == 1, "only the killer's count is left, the others came back"
        await db.aclose()

    asyncio.run(main())


def test_a_slow_text_that_five_drains_cut_short_is_scored_by_the_sixth_worker(kafka: str, topics: Any, redis_url: str) -> None:
    """Exit 75, five times: nobody's engine went down."""

    async def main() -> None:
        t = Topics(kafka, topics, redis_url=redis_url, drain_seconds=0.3)
        scorer = FakeScorer(fingerprint=f"{time.time_ns():064d}")
        await t.fill(articles(["slow"]))
        for _ in range(5):
            async with Stage(t.settings(), scorer=scorer, seconds=20) as w:
                await w.until(lambda: len(w.runner.passes) == 1)
                began = time.monotonic()
                assert await w.leave() == 75 and time.monotonic() - began < 5
        w = await burst(t.settings(), scorer=scorer)
        assert ids(await t.out()) == ["slow"] and await t.dead() == [] and len(w.runner.passes) == 1
        db = Redis.from_url(redis_url)
        assert [k async for k in db.scan_iter(f"spinf:tries:{scorer.fingerprint_full}:*")] == []
        await db.aclose()

    asyncio.run(main())


def test_processes_killed_count_once_they_no_longer_count_as_there(kafka: str, topics: Any, redis_url: str) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, redis_url=redis_url)
        await t.fill(articles([f"killed-{time.time_ns()}"]))
        db = Redis.from_url(redis_url)
        before = {k async for k in db.scan_iter("spinf:tries:*")}
        async with Process(t.settings(), seconds=20.0) as w:
            for _ in range(500):
                if fresh := {k async for k in db.scan_iter("spinf:tries:*")} - before:
                    break
                await asyncio.sleep(0.02)
            w.signal(signal.SIGKILL)
            await w.ended()
        (name,) = fresh
        entry = await db.get(name)
        assert len(entry) == 32
        alive = f"spinf:alive:{entry[8:12].hex()}"
        assert 0 < await db.ttl(alive) <= 10
        await db.delete(alive)
        key = name.decode().split(":", 3)[3]
        d = Dedup(t.settings(), FakeScorer(fingerprint=name.decode().split(":")[2]), Metrics(100))
        await d.start()
        assert (await d.look_up([key]))[0].attempts == 1
        await d.close()
        await db.delete(name)
        await db.aclose()

    asyncio.run(main())
