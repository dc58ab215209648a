"""Bytes in flight: records, their outputs, the answers that are held; nothing is left when all is out."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from typing import Any

import msgspec
import pytest
from fakes import FakeScorer

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.records import Answer, Article, CombinationScore, OptionScore, QueryScore, Tokens, encode
from spinf_stream.stream.batcher import Batcher
from spinf_stream.stream.dedup import Dedup
from spinf_stream.stream.flow import Item, Outgoing, Record, Work
from spinf_stream.stream.kafka import PublishFailed, size
from spinf_stream.stream.marks import SHARE, Marks
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.pipeline import Pipeline
from spinf_stream.stream.publisher import UNIT_RECORDS, Done, Publisher
from spinf_stream.stream.sealed import Sealed
from spinf_stream.stream.settle import HELD, Settle, TopicFacts
from spinf_stream.stream.wait import until

PLACE = Settings(redis_url="redis://x", dedup_secret="s")


def settled(p: Partition, max_bytes: int = 10**6, pad: int = 1000) -> tuple[Settle, Any]:
    """One scored article in flight."""
    scorer = FakeScorer(pad=pad)
    settle = Settle(PLACE, scorer, size, {"scores": TopicFacts(1, max_bytes), "articles.dlq": TopicFacts(1, max_bytes)})
    r = Record("articles", 0, 5, -1, b"k", b'{"text": "a b"}', ())
    p.open(5, None)
    p.see(r)
    article = Article(text="a b")
    prepared = scorer.prepare(article)
    item = Item(r, p, article, "k", "application/json", 0.0)
    item.work = Work(prepared, 0.0, 0, [item], scorer._answer(prepared))
    return settle, settle.answered(item, item.work.verdict, "scored")  # type: ignore[arg-type]


def test_an_answer_that_waits_for_its_turn_counts() -> None:
    p = Partition("articles", 0, 1)
    _, s = settled(p)
    before = p.bytes
    p.settle(s)
    assert s.out is not None and p.bytes == before + s.out.size + HELD * len(s.out.value or b"")
    p.published(p.offsets.take(1) if p.offsets else [])
    assert p.bytes == 0


@pytest.mark.parametrize(("questions", "options"), [(200, 2), (100, 5), (40, 20)])
def test_held_is_no_less_than_an_answers_objects_take(questions: int, options: int) -> None:
    ids, texts, values = [f"q{i}" for i in range(questions)], [f" {i}" for i in range(options)], {"topic": "oil"}
    numbers = [float(i) / 7 for i in range(4 * questions * options)]

    def answer() -> Answer:  # words are the question set's own, numbers are this answer's
        n = iter(x + 1.0 for x in numbers)
        scores = [
            QueryScore(q, [CombinationScore(values, [OptionScore(t, next(n), next(n), next(n)) for t in texts], next(n), 0.5)]) for q in ids
        ]
        return Answer(scores=scores, slots=[], packs=[], tokens=Tokens(1, 2, 3, 4), truncated=False, warnings=[], scored_at="t", questions_digest="d")

    answer()
    tracemalloc.start()
    try:
        held = answer()
        assert tracemalloc.get_traced_memory()[0] <= HELD * len(encode(held))
        assert tracemalloc.get_traced_memory()[0] <= HELD * len(msgspec.msgpack.encode(held))
    finally:
        tracemalloc.stop()


class Once:
    """A delivery that finds the first unit too large."""

    def __init__(self) -> None:
        self.sent: list[list[Outgoing]] = []

    async def publish(self, p: Partition, out: list[Outgoing], after: int) -> None:
        self.sent.append(out)
        if len(self.sent) == 1:
            raise PublishFailed("too_large", "no")

    async def tick(self, p: Partition) -> None:
        pass

    async def room(self, p: Partition, count: int) -> None:
        pass


def test_what_becomes_a_dead_letter_on_its_way_out_leaves_no_bytes_behind() -> None:
    async def main() -> None:
        p = Partition("articles", 0, 1)
        settle, s = settled(p)
        delivery, metrics = Once(), Metrics(100)

        async def refresh() -> None:
            settle.topics = {"scores": TopicFacts(1, 500), "articles.dlq": TopicFacts(1, 10**6)}

        publisher = Publisher(PLACE, delivery, settle, Batcher(100, 1.0), metrics, refresh, lambda done: None)  # type: ignore[arg-type]
        p.settle(s)
        running = asyncio.ensure_future(publisher.run(p))
        while p.waiting and not running.done():
            await asyncio.sleep(0.01)
        p.silent = True
        p.changed.set()
        await running
        assert [[o.topic for o in unit] for unit in delivery.sent] == [["scores"], ["articles.dlq"]]
        assert p.bytes == 0 and metrics.registry.get_sample_value("spinf_stream_records_total", {"outcome": "dead"}) == 1

    asyncio.run(main())


class Slow:
    """A Redis that answers when it is told to."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.written: list[str] = []

    def seal(self, marks: Any) -> list[Sealed]:
        return [Sealed(key, b"x" * 12_000) for key, _, _ in marks]

    async def remember(self, sealed: list[Sealed]) -> None:
        await self.answers.wait()
        self.written += [s.name for s in sealed]


def done(count: int, held: int) -> list[Done]:
    answer = FakeScorer()._answer(FakeScorer().prepare(Article(text="a")))
    return [Done(str(i), Record("articles", 0, i, -1, None, b"", ()), answer, held) for i in range(count)]


def test_marks_that_wait_for_redis_count_and_never_hold_up_reading() -> None:
    async def main() -> None:
        redis, metrics, limit = Slow(), Metrics(100), 200_000
        marks = Marks(redis, metrics, limit)  # type: ignore[arg-type]
        marks.offer(done(10, 60_000))
        assert marks.bytes == 4 * 60_000, "as objects, until they are sealed"
        assert metrics.registry.get_sample_value("spinf_stream_done_marks_total", {"result": "skipped"}) == 6
        writing = asyncio.ensure_future(marks.run())
        await until(lambda: marks.bytes == 48_000, time.monotonic() + 5)
        assert marks.bytes == 48_000 <= SHARE * limit, "sealed at once, though Redis is slow; on their way they still count"
        marks.offer(done(1, 60_000))
        assert metrics.registry.get_sample_value("spinf_stream_done_marks_total", {"result": "skipped"}) == 7
        redis.answers.set()
        await marks.flush()
        assert marks.bytes == 0 and redis.written == ["0", "1", "2", "3"]
        writing.cancel()

    asyncio.run(main())


def test_a_whole_unit_of_large_answers_is_marked_at_the_default_limit() -> None:
    async def main() -> None:
        metrics = Metrics(100)
        marks = Marks(Slow(), metrics, Settings().max_inflight_bytes)  # type: ignore[arg-type]
        marks.offer(done(UNIT_RECORDS, HELD * 250_000))
        assert metrics.registry.get_sample_value("spinf_stream_done_marks_total", {"result": "skipped"}) == 0

    asyncio.run(main())


def test_a_mark_is_no_larger_than_its_output() -> None:
    """What marks are taken for until they are sealed."""
    scorer = FakeScorer(pad=5000)
    p = Partition("articles", 0, 1)
    _, s = settled(p, pad=5000)
    (sealed,) = Dedup(PLACE, scorer, Metrics(100)).seal([("k" * 129, s.record, s.mark)])
    assert 5000 < len(sealed.value) <= len(s.out.value)


def test_the_worker_counts_both() -> None:
    async def main() -> None:
        facts = {"scores": TopicFacts(1, 10**6), "articles.dlq": TopicFacts(1, 10**6)}
        w = Pipeline(PLACE, FakeScorer(), None, Metrics(100), facts)  # type: ignore[arg-type]
        p = Partition("articles", 0, 1)
        _, s = settled(p)
        p.settle(s)
        w.assignment.partitions[0] = p
        w.marks.bytes = 7
        assert w.inflight_bytes == p.bytes + 7 > s.weight
        w.assignment.partitions.clear()
        await w.close()

    asyncio.run(main())
