"""At least once: commits that never go backwards, and a bound on what a sudden death repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import InvalidTimestampError, NotCoordinatorForGroupError
from aiokafka.producer.message_accumulator import MessageAccumulator

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.stream.delivery import AtLeastOnce
from spinf_stream.stream.flow import Outgoing, Record, Settled
from spinf_stream.stream.kafka import Away, Producer, PublishFailed
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.wait import event_or_time


class Coordinated:
    """A consumer whose commits take the client's own way, with its repetition after an error that passes."""

    def __init__(self, errors: int) -> None:
        self.errors = errors
        self.written: list[int] = []
        client = self.client = GroupCoordinator.__new__(GroupCoordinator)
        client._commit_lock, client._retry_backoff_ms = asyncio.Lock(), 100
        client.ensure_coordinator_known = self._known
        client._do_commit_offsets = self._write

    async def _known(self) -> None:
        pass

    async def _write(self, assignment: Any, offsets: Mapping[int, int]) -> None:
        await asyncio.sleep(0.005)
        if self.errors:
            self.errors -= 1
            raise NotCoordinatorForGroupError()
        self.written.append(offsets[0])

    def position(self, number: int) -> int | None:
        return None

    async def commit(self, offsets: Mapping[int, int], timeout: float = 15.0) -> None:
        await self.client.commit_offsets(None, offsets)


def publish(p: Partition, count: int) -> None:
    assert p.offsets is not None
    begin = p.offsets.point()
    for offset in range(begin, begin + count):
        r = Record("articles", p.number, offset, -1, b"k", b"v", ())
        p.see(r)
        p.settle(Settled(r, "scored", None))
    p.published(p.offsets.take(count))


def opened(number: int = 0) -> Partition:
    p = Partition("articles", number, 1)
    p.open(0, 0)
    return p


def delivery(consumer: Any, partitions: list[Partition], commit_now: Any = lambda: None, limit: int = 64) -> AtLeastOnce:
    return AtLeastOnce(Settings(max_inflight_records=limit), consumer, Metrics(100), lambda: 1, lambda: partitions, commit_now)


@pytest.mark.parametrize("draining", [False, True])
def test_a_commit_that_is_repeated_late_undoes_no_later_one(draining: bool) -> None:
    async def main() -> None:
        consumer, p = Coordinated(errors=1), opened()
        d = delivery(consumer, [p])
        publish(p, 100)
        periodic = asyncio.create_task(d.commit([p]))
        await asyncio.sleep(0.02)  # it met the error and waits to try again
        publish(p, 100)
        await d.commit([p], draining=draining)
        await periodic
        await asyncio.sleep(0.2)
        assert consumer.written == ([200] if draining else [100, 200])
        assert p.offsets is not None and p.offsets.committed == 200

    asyncio.run(main())


class Held:
    """Commits fail until they may succeed."""

    may = False

    def position(self, number: int) -> int | None:
        return None

    async def commit(self, offsets: Mapping[int, int], timeout: float = 15.0) -> None:
        if not self.may:
            raise Away("a coordinator that is away")


def test_what_is_published_and_not_committed_is_bounded_over_all_partitions() -> None:
    async def main() -> None:
        consumer, parts = Held(), [opened(n) for n in range(4)]
        wanted = asyncio.Event()
        d = delivery(consumer, parts, wanted.set)

        async def unit(p: Partition, count: int) -> None:
            await d.room(p, count)
            await d.publish(p, (), 0)  # out at once
            if p.alive and not p.silent:
                publish(p, count)

        running = [asyncio.create_task(unit(p, 30)) for p in parts]
        await asyncio.wait_for(wanted.wait(), 5)
        await d.commit(parts)
        assert sum(t.done() for t in running) == 2, "60 of 64"
        parts[2].silent = True
        await asyncio.wait_for(running[2], 5)
        assert not running[3].done()
        consumer.may = True
        await d.commit(parts)
        await asyncio.wait_for(running[3], 5)
        assert [p.offsets.published for p in parts if p.offsets] == [30, 30, 0, 30]

    asyncio.run(main())


def test_a_unit_under_way_counts_until_its_partition_is_closed() -> None:
    async def main() -> None:
        parts = [opened(0), opened(1)]
        d = delivery(Held(), parts)
        await d.room(parts[0], 40)
        waiting = asyncio.create_task(d.room(parts[1], 40))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        parts[0].close()
        await asyncio.wait_for(waiting, 5)

    asyncio.run(main())


@pytest.mark.parametrize("why", ["unacknowledged", "refused"])
def test_waiting_for_room_costs_nothing(why: str) -> None:
    """However long the broker acknowledges nothing, or refuses every commit at once."""

    async def main() -> None:
        parts, now, turns = [opened(n) for n in range(5)], asyncio.Event(), 0
        d = delivery(Held(), parts, now.set, limit=1024)

        async def commits() -> None:  # as the pipeline's
            nonlocal turns
            while True:
                await event_or_time(now, 60.0)
                now.clear()
                turns += 1
                await d.commit(parts)

        for p in parts[:4]:
            if why == "refused":
                publish(p, 256)
            else:
                await d.room(p, 256)
        running = [asyncio.create_task(commits()), asyncio.create_task(d.room(parts[4], 256))]
        await asyncio.sleep(1.2)
        assert 1 <= turns <= 4 and not running[1].done()
        for task in running:
            task.cancel()

    asyncio.run(main())


def test_small_units_do_not_pass_a_large_one() -> None:
    async def main() -> None:
        consumer, parts = Held(), [opened(n) for n in range(3)]
        d = delivery(consumer, parts)
        await d.room(parts[0], 10)
        large = asyncio.create_task(d.room(parts[1], 64))
        await asyncio.sleep(0.01)
        small = asyncio.create_task(d.room(parts[2], 10))
        await asyncio.sleep(0.05)
        assert not large.done() and not small.done()
        await d.publish(parts[0], (), 0)
        publish(parts[0], 10)
        consumer.may = True
        await d.commit(parts)
        await asyncio.wait_for(large, 5)
        await asyncio.sleep(0.05)
        assert not small.done()
        parts[1].close()
        await asyncio.wait_for(small, 5)

    asyncio.run(main())


def test_nothing_of_a_unit_is_queued_once_a_part_of_it_was_refused() -> None:
    """Its second record waits for a place behind another unit's while its first is refused: the third would overtake it."""

    async def main() -> None:
        accumulator = MessageAccumulator(None, 1000, 0, 30)

        async def send(topic: str, value: bytes, key: bytes, partition: int, timestamp_ms: int | None, headers: Any) -> Any:
            return await accumulator.add_message(TopicPartition(topic, partition), key, value, 40, timestamp_ms, headers)

        producer = Producer.__new__(Producer)
        producer._client = SimpleNamespace(_message_accumulator=accumulator, send=send)
        first, second = (TopicPartition("scores", n) for n in (0, 1))
        other = asyncio.create_task(producer.send([Outgoing("scores", b"k", b"." * 900, (), None, 1)]))
        await asyncio.sleep(0)
        unit = [Outgoing("scores", b"k", b"." * size, (), None, n) for n, size in ((0, 10), (1, 600), (0, 10), (1, 600))]
        sending = asyncio.create_task(producer.send(unit))
        await asyncio.sleep(0)
        accumulator._pop_batch(first).failure(InvalidTimestampError())
        for _ in range(3):
            await asyncio.sleep(0)
        accumulator._pop_batch(second).done(0)  # now there is a place
        with pytest.raises(PublishFailed) as failed:
            await sending
        assert failed.value.kind == "timestamp" and not accumulator._batches
        await other

    asyncio.run(main())


def test_a_broker_that_comes_back_and_names_no_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asserts there; a worker that opened a partition at that moment ended."""

    async def start(self: Any) -> None:
        raise AssertionError("Did we not perform bootstrap?")

    async def main() -> None:
        with pytest.raises(Away, match="bootstrap"):
            await Producer(Settings(), 10**6, "an id").start()

    monkeypatch.setattr(AIOKafkaProducer, "start", start)
    asyncio.run(main())
