"""Passes begun: only those of engines that went down are left to count against their texts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fakes import FakeRunner, FakeScorer
from redis_store import Pipe, Store

from spinf_stream.config import Settings
from spinf_stream.engine.seam import EngineFatal
from spinf_stream.metrics import Metrics
from spinf_stream.records import Article
from spinf_stream.stream import attempts as entries
from spinf_stream.stream import dedup as module
from spinf_stream.stream.batcher import Batcher
from spinf_stream.stream.dedup import ALIVE_SECONDS, LAST_SECONDS, Dedup
from spinf_stream.stream.flow import Item, Record, Work
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.passes import Passes


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    s = Store()
    monkeypatch.setattr(module, "connect", lambda settings: s)
    return s


async def worker(**more: Any) -> Dedup:
    d = Dedup(Settings(**{"redis_url": "redis://x", "dedup_secret": "s", **more}), FakeScorer(), Metrics(100))
    await d.start()
    return d


def vanish(store: Store) -> None:
    """The workers are gone without a word, and the time has passed for which they count as there."""
    for key in [k for k in store.data if ":alive:" in k]:
        del store.data[key]


def tries(store: Store) -> list[str]:
    return sorted(k for k in store.data if ":tries:" in k)


async def seen(*keys: str, **more: Any) -> list[int]:
    """By a worker that has begun nothing."""
    return [k.attempts for k in await (await worker(**more)).look_up(keys)]


def test_attempts_are_counted_and_cleared(store: Store) -> None:
    async def main() -> None:
        d, e = await worker(), await worker()
        await d.begin(["aa", "bb"])
        await e.begin(["aa"])
        vanish(store)
        assert await seen("aa", "bb") == [2, 1]
        await d.end(["aa"])
        assert await seen("aa", "bb") == [0, 1], "the text came back: what others began says nothing any more"

    asyncio.run(main())


def test_what_this_process_wrote_does_not_count(store: Store) -> None:
    async def main() -> None:
        d = await worker()
        for _ in range(7):
            await d.begin(["aa"])
        vanish(store)
        assert (await d.look_up(["aa"]))[0].attempts == 0, "it is there, so the engine did not go down"
        assert await seen("aa") == [7]

    asyncio.run(main())


def test_a_text_in_passes_of_many_workers_at_once_is_not_suspect(store: Store) -> None:
    async def main() -> None:
        workers = [await worker() for _ in range(6)]
        for w in workers:
            await w.begin(["aa"])
        assert await seen("aa") == [0]
        await asyncio.sleep(0)
        vanish(store)
        await workers[0].ping()
        assert await seen("aa") == [5], "those that give no sign of life any more"
        assert ALIVE_SECONDS >= 5, "pinged every two seconds"

    asyncio.run(main())


def test_a_pass_cut_short_takes_back_its_own_entry_alone(store: Store) -> None:
    async def main() -> None:
        d, e = await worker(), await worker()
        await d.begin(["aa"])
        await e.begin(["aa"])
        d.withdraw(["aa"])
        await d.close()
        vanish(store)
        assert await seen("aa") == [1], "the other one went down with this text"

    asyncio.run(main())


@pytest.mark.parametrize("how", ["fail", "late"])
def test_what_could_not_be_ended_is_taken_back_once_redis_answers(store: Store, how: str) -> None:
    async def main() -> None:
        d = await worker()
        await d.begin(["aa", "bb"])
        await d.end(["bb"])
        setattr(store, how, True)
        if how == "fail":
            await d.end(["aa"])
        else:  # begun, though the answer never came, and the end was not even tried
            await d.begin(["aa"])
            store.late = False
            await d.end(["aa"])
        setattr(store, how, False)
        assert tries(store)
        d._writes.ok()
        await d.ping()
        await asyncio.sleep(0.01)
        vanish(store)
        assert await seen("aa", "bb") == [0, 0]

    asyncio.run(main())


def test_what_is_owed_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MOST_OWED", 3)

    async def main() -> None:
        d = await worker()
        for n in range(5):
            await d.begin([f"k{n}"])
        d.withdraw([f"k{n}" for n in range(5)])
        await d.close()
        vanish(store)
        assert await seen(*(f"k{n}" for n in range(5))) == [1, 1, 0, 0, 0]

    asyncio.run(main())


def test_a_silent_redis_does_not_hold_up_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        d = await worker()
        await d.begin(["aa"])

        async def silent(pipe: Pipe) -> list[Any]:
            await asyncio.sleep(5)
            return []

        monkeypatch.setattr(Pipe, "execute", silent)
        d.withdraw(["aa"])
        began = time.monotonic()
        await d.close()
        assert time.monotonic() - began < LAST_SECONDS + 0.1

    asyncio.run(main())


def test_the_newest_entries_are_looked_at(store: Store) -> None:
    async def main() -> None:
        d = await worker()
        await d.begin(["aa"])
        (name,) = tries(store)
        mine = store.data[name]
        store.data[name] = b"\0" * entries.ENTRY * (entries.MOST_ENTRIES + 1) + mine
        vanish(store)
        assert await seen("aa") == [1]

    asyncio.run(main())


@pytest.mark.parametrize("forge", [
    lambda real, other: b"5",
    lambda real, other: b"\x00" * 160,
    lambda real, other: real * 5,  # one pass is one pass, however often it is written down
    lambda real, other: real + other * 4,  # another text's
    lambda real, other: real + real[:31] + real[:1],
    lambda real, other: real + b"x" * 10_000_000,
])  # fmt: skip
def test_who_can_only_write_to_redis_cannot_make_a_text_poisonous(store: Store, forge: Callable[[bytes, bytes], bytes]) -> None:
    async def main() -> None:
        d, reader = await worker(), await worker()
        await d.begin(["aa", "bb"])
        vanish(store)
        mine, other = tries(store)
        store.data[mine] = forge(store.data[mine], store.data[other])
        assert (await reader.look_up(["aa"]))[0].attempts <= 1
        assert reader._metrics.registry.get_sample_value("spinf_stream_attempts_refused_total") == 1

    asyncio.run(main())


def test_attempts_of_another_secret_or_another_day_do_not_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        d = await worker()
        for _ in range(4):
            await d.begin(["aa"])
        vanish(store)
        assert await seen("aa") == [4] and await seen("aa", dedup_secret="t") == [0]
        now = time.time()
        monkeypatch.setattr(entries.time, "time", lambda: now + 2 * entries.SECONDS)
        assert await seen("aa") == [0], "kept by somebody and put back"

    asyncio.run(main())


class Stand:
    """Windows of one text through Passes."""

    def __init__(self, dedup: Dedup, seconds: float = 0.0, fault: Any = None, deliver: Any = None) -> None:
        self.scorer = FakeScorer()
        self.batcher = Batcher(2048, 0.0)
        self.cpu = ThreadPoolExecutor(1)
        runner = FakeRunner(self.scorer, seconds, fault or (lambda texts: None))
        self.runner = runner
        self.passes = Passes(self.scorer, runner, self.batcher, dedup, Metrics(100), self.cpu, deliver or self.deliver)

    async def deliver(self, works: Any) -> None:
        pass

    async def run(self, text: str) -> None:
        article = Article(text=text)
        item = Item(Record("articles", 0, 0, -1, None, b"", ()), Partition("articles", 0, 1), article, "id", "application/json", 0.0)
        item.work = Work(self.scorer.prepare(article), 0.0, 0, [item])
        self.batcher.add(item.work)
        window = self.batcher.take(time.monotonic() + 1)
        assert window is not None
        await self.passes.run(window)


def test_a_pass_that_comes_back_leaves_nothing_and_one_of_a_fatal_engine_its_attempt(store: Store) -> None:
    def fatal(texts: list[str]) -> None:
        raise EngineFatal("gone")

    async def main() -> None:
        await Stand(await worker()).run("a text")
        assert tries(store) == []
        d = await worker()
        with pytest.raises(EngineFatal):
            await Stand(d, fault=fatal).run("a text")
        await d.close()
        (name,) = tries(store)
        assert len(store.data[name]) == entries.ENTRY

    asyncio.run(main())


@pytest.mark.parametrize("cancels", [1, 2])
def test_a_pass_cancelled_at_the_drain_deadline_does_not_count(store: Store, cancels: int) -> None:
    async def main() -> None:
        d = await worker()
        stand = Stand(d, seconds=5)
        task = asyncio.create_task(stand.run("a text"))
        while not stand.runner.passes:
            await asyncio.sleep(0.01)
        (name,) = tries(store)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await d.close()
        vanish(store)
        assert await seen(name.split(":", 3)[3]) == [0] and len(store.data[name]) == 2 * entries.ENTRY

    asyncio.run(main())


def test_a_fault_of_ours_does_not_count(store: Store) -> None:
    async def broken(works: Any) -> None:
        raise KeyError("a fault in delivering")

    async def main() -> None:
        d = await worker()
        with pytest.raises(KeyError):
            await Stand(d, deliver=broken).run("a text")
        await d.close()
        (name,) = tries(store)
        assert await seen(name.split(":", 3)[3]) == [0]

    asyncio.run(main())


def test_the_pass_beside_the_one_that_met_the_fatal_error_counts_too(store: Store) -> None:
    """Which of the two it was cannot be told, and the other one is cancelled before it fails."""

    def fatal(texts: list[str]) -> None:
        raise EngineFatal("gone")

    async def main() -> None:
        d = await worker()
        stand = Stand(d, seconds=0.05, fault=fatal)
        both = [asyncio.create_task(stand.run(t)) for t in ("one text", "another text")]
        with pytest.raises(EngineFatal):
            await both[0]
        both[1].cancel()
        await asyncio.wait(both)
        await d.close()
        assert [len(store.data[n]) for n in tries(store)] == [entries.ENTRY] * 2

    asyncio.run(main())
