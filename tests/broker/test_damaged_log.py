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

from spinf_stream.stream.kafka import Away, consumer, scan

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


async def damaged(server: services.Kafka, **settings: Any) -> Topics:
    """Partition 0: a batch, a damaged one, another. Partition 1: many records."""
    t = Topics(server.address, conftest.topics.__wrapped__(server.address), 2, **settings)  # type: ignore[attr-defined]
    for letter in "abc":
        await kafka_io.produce_batch(server.address, t.source, articles(names(letter), partitions=1))
    await t.fill([r._replace(partition=1) for r in articles(names("n", 300))])
    (log,) = (server.folder / "data" / f"{t.source}-0").glob("*.log")
    damage(log, b'"b2 ')
    return t


def damage(log: Path, where: bytes) -> None:
    data = log.read_bytes()
    at = data.index(where)
    with log.open("r+b") as f:
        f.seek(at + 1)
        f.write(b"x")


def test_it_stops_the_worker_and_says_where(own_kafka: services.Kafka, soon: None, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        t = await damaged(own_kafka)
        with caplog.at_level(logging.INFO):
            async with Stage(t.settings(), scorer=FakeScorer(700)) as w:
                assert await w.ended() == 4
        said = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR and r.name == "spinf_stream.stream.worker"]
        assert len(said) == 1 and f"{t.source}-0" in said[0] and "offsets 5 to 9" in said[0] and "corrupt_batches = skip" in said[0]
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
