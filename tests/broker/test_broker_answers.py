"""What a broker answers in bad moments: commits refused, batches refused, a topic that may not be written, fetches that are
never answered. Each answer is made here, in the client's place of sending, and the broker never hears of the request."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import RequestTimedOutError
from fakes import FakeScorer
from kafka_io import Rec
from stage import Stage, Topics, articles, ids

pytestmark = pytest.mark.kafka

NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE, UNAUTHORISED = 16, 22, 25, 27, 29
OUT_OF_ORDER, OLD_EPOCH, FENCED = 45, 47, 90


class Answers:
    """For the worker's clients only; error codes by request, each used once."""

    def __init__(self) -> None:
        self.commits: list[int] = []
        self.batches: list[int] = []
        self.forbidden = ""  # a topic that no batch may go to
        self.swallowed = 0
        self.swallow_seconds = 0.0  # of every fetch, until the client gives it up

    def to(self, request: Any) -> Any:
        kind = type(request).__name__
        if kind == "OffsetCommitRequest" and self.commits:
            return self._each(request, self.commits.pop(0))
        if kind == "ProduceRequest":
            if any(topic == self.forbidden for topic, _ in request._topics):
                return self._each(request, UNAUTHORISED, -1, -1, -1)
            if self.batches:
                return self._each(request, self.batches.pop(0), -1, -1, -1)
        return None

    def _each(self, request: Any, *fields: int) -> Any:
        topics = [(topic, [(p[0], *fields) for p in parts]) for topic, parts in request._topics]
        return SimpleNamespace(API_VERSION=7, topics=topics)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made, real = Answers(), AIOKafkaClient.send

    async def send(client: Any, node_id: Any, request: Any, **more: Any) -> Any:
        if client._client_id == "spinf-stream":
            if type(request).__name__ == "FetchRequest" and made.swallow_seconds:
                made.swallowed += 1
                await asyncio.sleep(made.swallow_seconds)
                raise RequestTimedOutError()
            if (answer := made.to(request)) is not None:
                return answer
        return await real(client, node_id, request, **more)

    monkeypatch.setattr(AIOKafkaClient, "send", send)
    return made


def names(prefix: str, count: int = 200) -> list[str]:
    return [f"{prefix}{i:03d}" for i in range(count)]


@pytest.mark.parametrize(
    ("codes", "repeated"),
    [([REBALANCE], False), ([ILLEGAL_GENERATION], True), ([UNKNOWN_MEMBER], True), ([NOT_COORDINATOR] * 3 + [REBALANCE], False)],
    ids=["a rebalance goes on", "an old generation", "no member", "not the coordinator, then a rebalance"],
)
def test_a_commit_that_is_refused_ends_nothing(kafka: str, topics: Any, answers: Answers, codes: list[int], repeated: bool) -> None:
    """The worker stays, offsets move on; only when its membership was taken from it is anything repeated."""

    async def main() -> None:
        t = Topics(kafka, topics, 2, commit_interval_ms=50)
        async with Stage(t.settings(), scorer=FakeScorer(200), seconds=0.02) as w:
            await t.fill(articles(names("a"), partitions=2))
            await w.until(lambda: w.value("records_total") >= 30)
            answers.commits = codes[:]
            await w.until(lambda: not answers.commits and w.value("rebalances_total") + w.value("commits_total", result="rebalanced") >= 1)
            refused = time.monotonic()
            await w.until(lambda: w.value("committed_offset") == 200, 30)
            assert time.monotonic() - refused < 20
            await t.fill(articles(["late"]))
            await w.until(lambda: w.value("committed_offset") == 201)
            assert w.value("commits_total", result="failed") == 0
            if len(codes) == 1:  # one that is repeated for long may end with the drain, which commits itself
                assert w.value("commits_total", result="rebalanced") >= 1
        assert w.code == 0
        out = ids(await t.out())
        assert set(out) == {*names("a"), "late"}
        assert len(out) == 201 or (repeated and len(out) <= 201 + 64)
        assert sum((await t.committed()).values()) == 201  # type: ignore[arg-type]

    asyncio.run(main())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("code", [OUT_OF_ORDER, OLD_EPOCH, FENCED])
def test_a_batch_that_is_refused_costs_a_producer_and_no_record(
    kafka: str, topics: Any, answers: Answers, code: int, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2, delivery=delivery)
        async with Stage(t.settings(), scorer=FakeScorer(200), seconds=0.02) as w:
            await t.fill(articles(names("b", 60), partitions=2))
            await w.until(lambda: w.value("records_total") >= 10)
            answers.batches = [code]
            await t.fill(articles(names("c", 60), partitions=2))
            await w.until(lambda: w.value("committed_offset") == 120, 30)
            assert answers.batches == []
            if delivery == "exactly_once":
                assert w.value("transactions_total", result="failed") == 1
            else:  # both partitions may have had records in it
                assert w.value("publish_failures_total", kind="other") in (1, 2) and w.value("producer_resets_total", reason="failed") >= 1
            assert w.value("publish_blocked") == 0
        assert w.code == 0
        out = ids(await t.out())
        assert set(out) == {*names("b", 60), *names("c", 60)}
        assert len(out) == 120 or (delivery == "at_least_once" and len(out) <= 120 + 64)

    asyncio.run(main())
    assert sum(r.levelname in ("ERROR", "WARNING") and r.name.startswith("spinf_stream") for r in caplog.records) < 12, "no loop of log lines"


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_dead_letter_topic_that_may_not_be_written_holds_its_partition(kafka: str, topics: Any, answers: Answers, delivery: str) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2, delivery=delivery)
        async with Stage(t.settings()) as w:
            answers.forbidden = t.dlq
            await t.fill([Rec(b"{", b"poison", (), 0), *(r._replace(partition=0) for r in articles(["x0", "x1"]))])
            await t.fill([r._replace(partition=1) for r in articles(names("y", 30))])
            await w.until(lambda: w.value("committed_offset", partition="1") == 30)
            await w.until(lambda: w.value("publish_blocked") == 1)
            await asyncio.sleep(1)
            assert w.value("publish_blocked") == 1 and await t.dead() == []
            assert await t.committed() == {0: 0, 1: 30}, "nothing is committed past it, and the other partition goes on"
            answers.forbidden = ""
            await w.until(lambda: w.value("committed_offset", partition="0") == 3, 30)
            await w.until(lambda: w.value("publish_blocked") == 0)
        assert w.code == 0
        assert [r.value for r in await t.dead()] == [b"{"]
        assert sorted(ids(await t.out())) == sorted(["x0", "x1", *names("y", 30)])

    asyncio.run(main())


def test_fetches_that_are_swallowed_show_as_lag_without_progress(kafka: str, topics: Any, answers: Answers) -> None:
    """A connection that takes requests and never answers: no error says it, the lag grows while nothing is consumed. Once the
    client gives the request up, reading goes on by itself."""

    async def main() -> None:
        t = Topics(kafka, topics)
        async with Stage(t.settings()) as w:
            await t.fill(articles(["first"]))
            await w.until(lambda: w.value("committed_offset") == 1)
            answers.swallow_seconds = 3.0
            await w.until(lambda: answers.swallowed > 0)
            consumed = w.value("last_progress_timestamp_seconds", stage="consume")
            await t.fill(articles(names("s", 20)))
            await w.until(lambda: w.value("lag_records") == 20)
            await asyncio.sleep(1)
            assert w.value("records_total") == 1 and w.value("last_progress_timestamp_seconds", stage="consume") == consumed
            answers.swallow_seconds = 0.0
            await w.until(lambda: w.value("committed_offset") == 21, 15)
            await w.until(lambda: w.value("lag_records") == 0)
            assert w.value("rebalances_total") == 0, "its heartbeats went another way"
        assert ids(await t.out()) == ["first", *names("s", 20)]

    asyncio.run(main())
