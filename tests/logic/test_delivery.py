"""At least once: commits that never go backwards, and a bound on what a sudden death repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import NotCoordinatorForGroupError

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.stream.delivery import AtLeastOnce
from spinf_stream.stream.flow import Record, Settled
from spinf_stream.stream.kafka import Away
from spinf_stream.stream.partitions import Partition


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
        parts[3].silent = True
        await asyncio.wait_for(running[3], 5)
        assert not running[2].done()
        consumer.may = True
        await d.commit(parts)
        await asyncio.wait_for(running[2], 5)
        assert [p.offsets.published for p in parts if p.offsets] == [30, 30, 30, 0]

    asyncio.run(main())


def test_a_unit_under_way_counts_until_its_partition_is_closed() -> None:
    async def main() -> None:
        parts = [opened(0), opened(1)]
        d = delivery(Held(), parts)
        await d.room(parts[0], 40)
        waiting = asyncio.create_task(d.room(parts[1], 40))
        await asyncio.sleep(0.05)
        await d.room(parts[0], 40)  # itself, once more
        assert not waiting.done()
        parts[0].close()
        await asyncio.wait_for(waiting, 5)

    asyncio.run(main())
