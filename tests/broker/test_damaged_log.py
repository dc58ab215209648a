"""A record batch whose bytes on the broker's disk have changed: its checksum fails, and reading it again does not help."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import conftest
import kafka_io
import pytest
import services
from fakes import FakeScorer
from stage import Stage, Topics, articles, ids

from spinf_stream.stream.kafka import Away, consumer, damage, scan

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[services.Kafka]:
    server = services.Kafka(tmp_path_factory.mktemp("kafka"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "REREAD_SECONDS", 0.05)


def names(letter: str, count: int = 5) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


async def laid(server: services.Kafka, others: int = 300, **settings: Any) -> tuple[Topics, Path]:
    """Partition 0: three batches of five. Partition 1: many records. And the file of partition 0."""
    t = Topics(server.address, conftest.topics.__wrapped__(server.address), 2, **settings)  # type: ignore[attr-defined]
    for letter in "abc":
        await kafka_io.produce_batch(server.address, t.source, articles(names(letter), partitions=1))
    await t.fill([r._replace(partition=1) for r in articles(names("n", others))])
    (log,) = (server.folder / "data" / f"{t.source}-0").glob("*.log")
    return t, log


async def damaged(server: services.Kafka, **settings: Any) -> Topics:
    """The second batch of three has other bytes in an article."""
    t, log = await laid(server, **settings)
    write(log, log.read_bytes().index(b'"b2 ') + 1, b"x")
    return t


def write(log: Path, at: int, data: bytes) -> None:
    with log.open("r+b") as f:
        f.seek(at)
        f.write(data)


def batches(log: Path) -> list[int]:
    """Where each batch begins in the file."""
    data, at = log.read_bytes(), 0
    found = []
    while at < len(data):
        found.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12])
    return found


def said_at_the_end(caplog: pytest.LogCaptureFixture) -> str:
    (message,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR and r.name == "spinf_stream.stream.worker"]
    return message


def test_it_stops_the_worker_and_says_where(own_kafka: services.Kafka, soon: None, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = await damaged(own_kafka)
        with caplog.at_level(logging.INFO):
            async with Stage(t.settings(), scorer=FakeScorer(700)) as w:
                assert await w.ended() == 4
        said = said_at_the_end(caplog)
        assert f"{t.source}-0" in said and "offsets 5 to 9" in said and "corrupt_batches = skip" in said
        assert w.value("corrupt_batches_total", result="stopped") == 1 and w.value("records_total", outcome="dead") == 0
        out = ids(await t.out())
        assert sorted(i for i in out if i[0] in "abc") == names("a"), "its neighbours before it are out, nothing after it is"
        committed = await t.committed()
        assert committed[0] == 5
        begun = {i for i in out if i[0] == "n"}
        assert begun == set(names("n", 300)[: len(begun)]), "another partition has lost nothing"
        with pytest.raises(Away, match="offset 5 cannot be read"):
            _ = [r async for r in scan.scan(t.settings(), t.source)]

    asyncio.run(main())


def test_it_is_stepped_over_where_the_settings_say_so(own_kafka: services.Kafka, soon: None, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = await damaged(own_kafka, corrupt_batches="skip")
        async with Stage(t.settings(), scorer=FakeScorer(700)) as w:
            await w.until(lambda: w.value("committed_offset", partition="0") == 15 and w.value("committed_offset", partition="1") == 300)
            assert w.value("corrupt_batches_total", result="skipped") == 1
        assert w.code == 0
        out = ids(await t.out())
        assert sorted(out) == sorted([*names("a"), *names("c"), *names("n", 300)])
        assert any(f"{t.source}-0" in r.getMessage() and "5 to 9" in r.getMessage() and r.levelno == logging.ERROR for r in caplog.records)

    asyncio.run(main())


def test_other_partitions_go_on_while_it_is_read_again(own_kafka: services.Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "REREAD_SECONDS", 60.0)

    async def main() -> None:
        t = await damaged(own_kafka)
        async with Stage(t.settings(), scorer=FakeScorer(700)) as w:
            await w.until(lambda: w.value("committed_offset", partition="0") == 5 and w.value("committed_offset", partition="1") == 300)
        assert sorted(ids(await t.out())) == sorted([*names("a"), *names("n", 300)])

    asyncio.run(main())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("delta", [-1, 0, 9, 0x01000004])
def test_the_header_of_a_damaged_batch_is_not_believed(own_kafka: services.Kafka, soon: None, delivery: str, delta: int) -> None:
    """Only its last offset is changed: past the next batch, or past the end of the log."""

    async def main() -> None:
        t, log = await laid(own_kafka, others=20, corrupt_batches="skip", delivery=delivery)
        write(log, batches(log)[1] + 23, delta.to_bytes(4, signed=True))
        async with Stage(t.settings(), scorer=FakeScorer(700)) as w:
            await w.until(lambda: w.value("committed_offset", partition="0") == 15 and w.value("committed_offset", partition="1") == 20)
            await kafka_io.produce_batch(t.kafka, t.source, articles(names("d"), partitions=1))
            await w.until(lambda: w.value("committed_offset", partition="0") == 20)
            assert w.value("corrupt_batches_total", result="skipped") == 1
        assert w.code == 0
        assert sorted(ids(await t.out())) == sorted([*names("a"), *names("c"), *names("d"), *names("n", 20)]), "none twice, none lost"
        assert (await t.committed())[0] == 20

    asyncio.run(main())


@pytest.mark.parametrize("delta", [4, 0x01000004])
def test_the_last_batches_of_the_log_are_skipped_to_its_end(own_kafka: services.Kafka, soon: None, delta: int) -> None:
    async def main() -> None:
        t, log = await laid(own_kafka, others=20, corrupt_batches="skip")
        for at in batches(log)[1:]:
            write(log, at + 23, delta.to_bytes(4))
            write(log, at + 60, b"x")
        async with Stage(t.settings(), scorer=FakeScorer(700)) as w:
            await w.until(lambda: w.value("committed_offset", partition="0") == 15)
            await kafka_io.produce_batch(t.kafka, t.source, articles(names("d"), partitions=1))
            await w.until(lambda: w.value("committed_offset", partition="0") == 20)
            assert w.value("corrupt_batches_total", result="skipped") == 1
        assert sorted(i for i in ids(await t.out()) if i[0] != "n") == [*names("a"), *names("d")]

    asyncio.run(main())


@pytest.mark.parametrize("setting", ["skip", "stop"])
def test_it_stops_where_the_end_cannot_be_known(own_kafka: services.Kafka, soon: None, setting: str, caplog: pytest.LogCaptureFixture) -> None:
    """With a wrong length nobody, the broker included, finds what follows; and skip is no advice where skip is set."""

    async def main() -> None:
        t, log = await laid(own_kafka, others=20, corrupt_batches=setting)
        at = batches(log)[1]
        write(log, at + 8, (int.from_bytes(log.read_bytes()[at + 8 : at + 12]) - 10).to_bytes(4))
        with caplog.at_level(logging.INFO):
            async with Stage(t.settings(), scorer=FakeScorer(700)) as w:
                assert await w.ended() == 4
        said = said_at_the_end(caplog)
        assert f"{t.source}-0" in said and "from offset 5" in said and "cannot be known" in said
        assert "--reset-offsets" in said and "corrupt_batches" not in said
        assert w.value("corrupt_batches_total", result="stopped") == 1 and w.value("corrupt_batches_total", result="skipped") == 0
        assert (await t.committed())[0] == 5
        assert sorted(i for i in ids(await t.out()) if i[0] != "n") == names("a")

    asyncio.run(main())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_it_stops_only_once_what_was_read_before_is_out(own_kafka: services.Kafka, soon: None, delivery: str) -> None:
    """A pass that takes longer than all the reads; what other partitions have in flight then is finished too."""

    async def main() -> None:
        t = await damaged(own_kafka, others=100, delivery=delivery)
        async with Stage(t.settings(), scorer=FakeScorer(700), seconds=2.0) as w:
            assert await w.ended() == 4
        out = ids(await t.out())
        assert sorted(i for i in out if i[0] in "abc") == names("a") and (await t.committed())[0] == 5
        assert w.value("records_total", outcome="scored") == len(out) and w.value("discarded_records_total") == 0
        async with Stage(t.settings(), scorer=FakeScorer(700), seconds=2.0, ready=False) as w:
            assert await w.ended() == 4
        assert len(set(ids(await t.out()))) == len(ids(await t.out())), "nothing is done twice"

    asyncio.run(main())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_nothing_is_read_again_after_a_skip_that_led_nowhere(
    own_kafka: services.Kafka, soon: None, delivery: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is cut between finding where to go on and going on there: the client goes to its beginning."""

    async def past_the_end(*_: Any) -> int:
        return 1000

    monkeypatch.setattr(damage, "end_of", past_the_end)

    async def main() -> None:
        t = await damaged(own_kafka, corrupt_batches="skip", delivery=delivery)
        async with Stage(t.settings(), scorer=FakeScorer(700)) as w:
            assert await w.ended() == 4
        assert "went back to 0" in said_at_the_end(caplog)
        assert sorted(i for i in ids(await t.out()) if i[0] in "abc") == names("a")

    asyncio.run(main())


def test_it_is_read_once_more_where_the_broker_does_not_say_its_end(own_kafka: services.Kafka, soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, asked = damage.end_of, []

    async def away_first(*given: Any) -> int | None:
        asked.append(given)
        if len(asked) == 1:
            raise TimeoutError
        return await ask(*given)

    monkeypatch.setattr(damage, "end_of", away_first)

    async def main() -> None:
        t = await damaged(own_kafka, corrupt_batches="skip")
        async with Stage(t.settings(), scorer=FakeScorer(700)) as w:
            await w.until(lambda: len(asked) == 1)
            await w.until(lambda: w.value("committed_offset", partition="1") == 300, 1.0)
            await w.until(lambda: w.value("committed_offset", partition="0") == 15)
        assert len(asked) == 2 and sorted(i for i in ids(await t.out()) if i[0] != "n") == [*names("a"), *names("c")]

    asyncio.run(main())
