"""Done marks: signed, bound to their key, and left alone after errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fakes import FakeScorer
from redis_store import Store

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.records import Answer, Tokens
from spinf_stream.stream import dedup as module
from spinf_stream.stream.dedup import CHUNK, CHUNK_BYTES, Dedup, Known
from spinf_stream.stream.flow import Record
from spinf_stream.stream.redis_client import Breaker
from spinf_stream.stream.sealed import Sealed

RECORD = Record("articles", 1, 2, 3, b"k", b"v", ())
ANSWER = Answer(scores=[], slots=[], packs=[], tokens=Tokens(1, 2, 3, 4), truncated=False, warnings=["w"], scored_at="t", questions_digest="q")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    s = Store()
    monkeypatch.setattr(module, "connect", lambda settings: s)
    return s


async def opened(**more: Any) -> tuple[Dedup, Metrics]:
    metrics = Metrics(100)
    d = Dedup(Settings(**{"redis_url": "redis://x", "dedup_secret": "s", **more}), FakeScorer(), metrics)
    await d.start()
    return d, metrics


def counted(metrics: Metrics, result: str) -> float:
    return metrics.registry.get_sample_value("spinf_stream_dedup_requests_total", {"result": result}) or 0.0


def test_what_is_remembered_is_found_with_its_place(store: Store) -> None:
    async def main() -> None:
        d, m = await opened()
        await d.remember(d.seal([("aa", RECORD, ANSWER)]))
        found, missing = await d.look_up(["aa", "bb"])
        assert found.mark and found.mark.answer == ANSWER and found.mark.place == d.place(RECORD)
        assert missing == Known(None, 0)
        assert d.place(RECORD._replace(timestamp=4)) != d.place(RECORD), "a topic made anew is another place"
        assert counted(m, "hit") == counted(m, "miss") == 1
        (key,) = store.data
        assert key == f"spinf:done:{'f' * 64}:aa:full"
        other, _ = await opened(scores_format="compact")
        assert (await other.look_up(["aa"]))[0].mark is None, "another format is another answer"

    asyncio.run(main())


@pytest.mark.parametrize("spoil", [lambda v: v[:-1], lambda v: v + b"x", lambda v: b"", lambda v: b"\x00" * 40, lambda v: v[:20]])
def test_a_spoiled_value_is_a_miss(store: Store, spoil: Callable[[bytes], bytes]) -> None:
    async def main() -> None:
        d, m = await opened()
        await d.remember(d.seal([("aa", RECORD, ANSWER)]))
        (key,) = store.data
        store.data[key] = spoil(store.data[key])
        assert (await d.look_up(["aa"]))[0].mark is None and counted(m, "mismatch") == 1

    asyncio.run(main())


def test_another_texts_mark_is_a_miss_though_it_is_signed(store: Store) -> None:
    async def main() -> None:
        d, m = await opened()
        await d.remember(d.seal([("aa", RECORD, ANSWER)]))
        (key,) = store.data
        store.data[key.replace(":aa:", ":bb:")] = store.data[key]
        assert (await d.look_up(["bb"]))[0].mark is None and counted(m, "mismatch") == 1

    asyncio.run(main())


def test_after_an_error_it_is_left_alone_for_a_while(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    async def main() -> None:
        d, m = await opened()
        d._reads = Breaker(lambda: now[0])
        store.fail = True
        for _ in range(100):
            assert (await d.look_up(["aa"]))[0] == Known(None, 0)
        assert store.asked == 1 and counted(m, "error") == 1 and counted(m, "skipped") == 99
        for at in (0.25, 0.5, 0.75, 1.75):
            now[0] = at
            await d.look_up(["aa"])
        assert store.asked == 4, "asked at 0, 0.25, 0.75 and 1.75: each wait is twice as long"
        store.fail = False
        now[0] = 60.0
        await d.look_up(["aa"])
        assert d._reads.closed

    asyncio.run(main())


def test_without_redis_everything_is_new() -> None:
    async def main() -> None:
        d = Dedup(Settings(), FakeScorer(), Metrics(100))
        await d.start()
        await d.begin(["aa"])
        await d.remember(d.seal([("aa", RECORD, ANSWER)]))
        assert await d.look_up(["aa"]) == [Known(None, 0)]
        await d.close()

    asyncio.run(main())


def test_a_cancelled_look_up_does_not_cancel_its_command(store: Store) -> None:
    async def main() -> None:
        d, _ = await opened()
        release, ended = asyncio.Event(), asyncio.Event()

        async def slow(keys: list[str]) -> list[None]:
            await release.wait()
            ended.set()
            return [None] * len(keys)

        store.mget = slow  # type: ignore[method-assign]
        task = asyncio.create_task(d.look_up(["aa"]))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        await asyncio.wait_for(ended.wait(), 1)

    asyncio.run(main())


def test_large_marks_go_out_a_few_at_a_time(store: Store) -> None:
    """Each request has to be through within the deadline."""

    async def main() -> None:
        d, m = await opened()
        half = CHUNK_BYTES // 2
        await d.remember([Sealed("one", b"x" * 3 * CHUNK_BYTES), *(Sealed(f"half{n}", b"x" * half) for n in range(4)), *(Sealed(f"s{n}", b"x") for n in range(CHUNK + 1))])
        assert len(store.data) == 5 + CHUNK + 1 and store.asked == 1 + 2 + 2
        assert m.registry.get_sample_value("spinf_stream_done_marks_total", {"result": "written"}) == len(store.data)

    asyncio.run(main())
