"""Done marks: signed, bound to their key, and left alone after errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fakes import FakeScorer

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.records import Answer, Tokens
from spinf_stream.stream import dedup as module
from spinf_stream.stream.dedup import Breaker, Dedup, Known
from spinf_stream.stream.flow import Record
from spinf_stream.stream.redis_client import RedisError

RECORD = Record("articles", 1, 2, 3, b"k", b"v", ())
ANSWER = Answer(scores=[], slots=[], packs=[], tokens=Tokens(1, 2, 3, 4), truncated=False, warnings=["w"], scored_at="t", questions_digest="q")


class Store:
    """As much of redis.asyncio as is used. `fail` raises for every command."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.fail = False
        self.asked = 0

    async def mget(self, keys: list[str]) -> list[bytes | None]:
        self._touch()
        return [self.data.get(k) for k in keys]

    def pipeline(self, transaction: bool) -> Any:
        return Pipe(self)

    async def aclose(self) -> None:
        return None

    def _touch(self) -> None:
        self.asked += 1
        if self.fail:
            raise RedisError("away")


class Pipe:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.todo: list[Callable[[], None]] = []

    def set(self, key: str, value: bytes, ex: int) -> None:
        self.todo.append(lambda: self.store.data.__setitem__(key, value))

    def append(self, key: str, value: bytes) -> None:
        self.todo.append(lambda: self.store.data.__setitem__(key, self.store.data.get(key, b"") + value))

    def expire(self, key: str, seconds: int) -> None:
        assert seconds > 0

    def delete(self, key: str) -> None:
        self.todo.append(lambda: self.store.data.pop(key, None) and None)

    async def execute(self) -> list[Any]:
        self.store._touch()
        for do in self.todo:
            do()
        return [None] * len(self.todo)


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
        await d.remember([("aa", RECORD, ANSWER)])
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
        await d.remember([("aa", RECORD, ANSWER)])
        (key,) = store.data
        store.data[key] = spoil(store.data[key])
        assert (await d.look_up(["aa"]))[0].mark is None and counted(m, "mismatch") == 1

    asyncio.run(main())


def test_another_texts_mark_is_a_miss_though_it_is_signed(store: Store) -> None:
    async def main() -> None:
        d, m = await opened()
        await d.remember([("aa", RECORD, ANSWER)])
        (key,) = store.data
        store.data[key.replace(":aa:", ":bb:")] = store.data[key]
        assert (await d.look_up(["bb"]))[0].mark is None and counted(m, "mismatch") == 1

    asyncio.run(main())


def test_attempts_are_counted_and_cleared(store: Store) -> None:
    async def main() -> None:
        d, _ = await opened()
        await d.begin(["aa", "bb"])
        await d.begin(["aa"])
        assert [k.attempts for k in await d.look_up(["aa", "bb"])] == [2, 1]
        await d.end(["aa"])
        assert [k.attempts for k in await d.look_up(["aa", "bb"])] == [0, 1]

    asyncio.run(main())


@pytest.mark.parametrize("forge", [
    lambda real, other: b"5",
    lambda real, other: b"\x00" * 160,
    lambda real, other: real * 5,  # one pass is one pass, however often it is written down
    lambda real, other: real + other * 4,  # another text's
    lambda real, other: real + real[:31] + real[:1],
    lambda real, other: real + b"x" * 10_000_000,
])  # fmt: skip
def test_who_can_write_to_redis_cannot_make_a_text_poisonous(store: Store, forge: Callable[[bytes, bytes], bytes]) -> None:
    async def main() -> None:
        d, m = await opened()
        await d.begin(["aa", "bb"])
        mine, other = sorted(store.data)
        store.data[mine] = forge(store.data[mine], store.data[other])
        assert (await d.look_up(["aa"]))[0].attempts <= 1
        assert m.registry.get_sample_value("spinf_stream_attempts_refused_total") == 1

    asyncio.run(main())


def test_attempts_of_another_secret_or_another_day_do_not_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        d, _ = await opened()
        for _i in range(4):
            await d.begin(["aa"])
        assert (await d.look_up(["aa"]))[0].attempts == 4
        other, _ = await opened(dedup_secret="t")
        assert (await other.look_up(["aa"]))[0].attempts == 0
        now = module.time.time()
        monkeypatch.setattr(module.time, "time", lambda: now + 2 * module.ATTEMPTS_SECONDS)
        assert (await d.look_up(["aa"]))[0].attempts == 0, "kept by somebody and put back"

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
        await d.remember([("aa", RECORD, ANSWER)])
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
