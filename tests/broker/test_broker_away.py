"""A broker that is killed and comes back on the same port and log; one that stops answering."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import conftest
import pytest
import services
from fakes import FakeScorer
from stage import Stage, Topics, articles, ids

from spinf_stream.stream import publisher
from spinf_stream.stream.kafka import producer

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[services.Kafka]:
    server = services.Kafka(tmp_path_factory.mktemp("kafka"))
    server.start()
    try:
        yield server
    finally:
        server.resume()
        server.stop()


def maker(server: services.Kafka) -> Any:
    return conftest.topics.__wrapped__(server.address)  # type: ignore[attr-defined]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_killed_broker_comes_back(own_kafka: services.Kafka, delivery: str) -> None:
    async def main() -> None:
        t = Topics(own_kafka.address, maker(own_kafka), 2, delivery=delivery)
        names = [f"a{i:03d}" for i in range(400)]
        await t.fill(articles(names, partitions=2))
        async with Stage(t.settings(), scorer=FakeScorer(200), seconds=0.05) as w:
            await w.until(lambda: w.value("records_total") >= 60)
            await asyncio.to_thread(own_kafka.kill)
            await asyncio.sleep(2)
            await asyncio.to_thread(own_kafka.start)
            began = time.monotonic()
            before = w.value("records_total")
            await w.until(lambda: w.value("records_total") > before, 30)
            recovered = time.monotonic() - began
            await w.until(lambda: w.value("committed_offset") == 400, 60)
            await t.fill(articles(["late"]))
            await w.until(lambda: w.value("committed_offset") == 401, 30)
        assert w.code == 0 and recovered < 30
        out = ids(await t.out())
        assert set(out) == {*names, "late"}
        if delivery == "exactly_once":
            assert len(out) == 401
        else:
            assert len(out) <= 401 + 64

    asyncio.run(main())


def test_a_broker_that_stops_answering_for_longer_than_the_session(own_kafka: services.Kafka) -> None:
    async def main() -> None:
        t = Topics(own_kafka.address, maker(own_kafka), 2, delivery="exactly_once", session_timeout_ms=1500)
        names = [f"s{i:03d}" for i in range(300)]
        await t.fill(articles(names, partitions=2))
        async with Stage(t.settings(), scorer=FakeScorer(200), seconds=0.05) as w:
            await w.until(lambda: w.value("records_total") >= 40)
            own_kafka.pause()
            await asyncio.sleep(3)
            own_kafka.resume()
            await w.until(lambda: w.value("committed_offset") == 300, 60)
        assert sorted(ids(await t.out())) == names

    asyncio.run(main())


@pytest.mark.parametrize(
    ("delivery", "transaction"),
    [("at_least_once", 30.0), ("exactly_once", 30.0), ("exactly_once", 3.0)],
    ids=["at_least_once", "exactly_once", "exactly_once, the transaction is given up"],
)
def test_a_broker_that_is_silent_blocks_publishing_and_costs_nothing(
    own_kafka: services.Kafka, delivery: str, transaction: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client sends again without end, so no error ever says it: the deadline does. The membership outlives the silence."""
    late = 2.0
    caplog.set_level("INFO")
    monkeypatch.setattr(publisher, "LATE_SECONDS", late)
    monkeypatch.setattr(producer, "TRANSACTION_SECONDS", transaction)

    async def main() -> None:
        t = Topics(own_kafka.address, maker(own_kafka), 2, delivery=delivery, session_timeout_ms=45_000)
        names = [f"q{i:03d}" for i in range(300)]
        await t.fill(articles(names, partitions=2))
        async with Stage(t.settings(), scorer=FakeScorer(200), seconds=0.05) as w:
            await w.until(lambda: w.value("records_total") >= 40)
            assert w.value("publish_blocked") == 0
            own_kafka.pause()
            try:
                began = time.monotonic()
                await w.until(lambda: w.value("publish_blocked") >= 1, late + 1.5)
                assert time.monotonic() - began > late - 0.5, "a publish that is under way is given its time"
                await asyncio.sleep(transaction + 1 if transaction < 30 else 1)
                assert w.value("publish_blocked") >= 1, "an aborted transaction heals nothing"
            finally:
                own_kafka.resume()
            await w.until(lambda: w.value("publish_blocked") == 0, 60)
            await w.until(lambda: w.value("committed_offset") == 300, 60)
            assert w.value("publish_failures_total", kind="late") >= 1
            assert (w.value("transactions_total", result="failed") > 0) is (transaction < 30)
        assert sorted(ids(await t.out())) == names

    asyncio.run(main())
    assert "not acknowledged within 2 s" in caplog.text and "publishes again" in caplog.text
