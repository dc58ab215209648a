"""The two guarantees, behind one face: how a unit of a partition is published and how its offset is committed.

At least once: one producer for all; a unit is sent, acknowledged, finished; the prefix is committed now and then.
Exactly once: a transactional producer for each partition; a unit and its offset are one transaction. When that fails
its outcome is unknown, so the partition's epoch is over: everything of it in flight is dropped, the producer is made
anew (which ends the old transaction one way or the other) and reading begins again at the committed offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.stream.flow import Outgoing
from spinf_stream.stream.kafka import Away, Consumer, Producer, PublishFailed, Rebalanced
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.wait import event_or_time

log = logging.getLogger(__name__)

MaxBytes = Callable[[], int]  # of a record, over the topics written to
ROOM_SECONDS = 0.5  # then it is looked again whether there is room


class Aborted(Exception):
    """A transaction failed or may have: the partition's epoch is over. `kind` as PublishFailed has it."""

    def __init__(self, why: str, kind: str = "other") -> None:
        super().__init__(why)
        self.kind = kind


class Delivery(Protocol):
    async def start(self) -> None:
        """Raises Away."""
        ...

    async def open(self, number: int) -> None:
        """Before the committed offset of an assigned partition is read. Raises Away."""
        ...

    async def room(self, p: Partition, count: int) -> None:
        """Wait until so many more may be published, or the partition is silent or closed."""
        ...

    async def publish(self, p: Partition, unit: Sequence[Outgoing], offset: int) -> None:
        """Send the unit; `offset` is the commit point after it. Raises Away (nothing sent), PublishFailed, Aborted."""
        ...

    async def tick(self, p: Partition) -> None:
        """The partition has nothing to publish. Raises Aborted."""
        ...

    async def commit(self, partitions: Iterable[Partition], draining: bool = False, timeout: float = 15.0) -> None:
        """Commit the finished prefixes. Failing is counted, not raised: it is tried again or somebody else's."""
        ...

    async def close(self, number: int) -> None: ...

    async def stop(self) -> None: ...


class AtLeastOnce:
    """What a sudden death repeats is at most max_inflight_records, over all partitions of the worker (and what a broker took
    of units that it then refused): nothing more is published until some of it is committed. Commits go one after another,
    so that a late one never undoes a later."""

    def __init__(
        self, settings: Settings, consumer: Consumer, metrics: Metrics, max_bytes: MaxBytes,
        partitions: Callable[[], Iterable[Partition]], commit_now: Callable[[], None],
    ) -> None:  # fmt: skip
        self._s = settings
        self._consumer = consumer
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._partitions = partitions
        self._commit_now = commit_now
        self._sent: dict[Partition, int] = {}  # records of the unit under way
        self._secured = asyncio.Event()  # something was committed, or a unit under way ended
        self._turn = asyncio.Lock()  # first come, first served: small units would for ever pass a large one
        self._committing = asyncio.Lock()
        self._request: asyncio.Task[None] | None = None
        self._producer: Producer | None = None
        self._replacing = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        producer = Producer(self._s, self._max_bytes())
        await producer.start()
        self._producer = producer

    async def open(self, number: int) -> None:
        return None

    async def room(self, p: Partition, count: int) -> None:
        async with self._turn:
            while p.alive and not p.silent:
                self._sent = {q: n for q, n in self._sent.items() if q.alive}
                repeated = sum(q.offsets.uncommitted for q in self._partitions() if q.offsets) + sum(self._sent.values())
                if not repeated or repeated + count <= self._s.max_inflight_records:
                    self._sent[p] = count
                    return
                self._secured.clear()
                self._commit_now()
                await event_or_time(self._secured, ROOM_SECONDS)

    async def publish(self, p: Partition, unit: Sequence[Outgoing], offset: int) -> None:
        try:
            if unit:
                await self._send(unit)
        finally:
            self._sent.pop(p, None)  # from here on it counts as published, or is tried again
            self._secured.set()

    async def _send(self, unit: Sequence[Outgoing]) -> None:
        producer = await self._ready()
        await producer.ready({o.topic for o in unit})
        try:
            await producer.send(unit)
        except PublishFailed:
            await self._discard(producer)
            raise

    async def tick(self, p: Partition) -> None:
        return None

    async def commit(self, partitions: Iterable[Partition], draining: bool = False, timeout: float = 15.0) -> None:
        """The last one, of a drain, takes the place of one under way."""
        if draining and self._request is not None:
            self._request.cancel()
        async with self._committing:
            await self._commit(partitions, draining, timeout)

    async def _commit(self, partitions: Iterable[Partition], draining: bool, timeout: float) -> None:
        points: dict[Partition, tuple[int, int]] = {}
        for p in partitions:
            if p.alive and p.offsets is not None:
                point = p.offsets.point(None if draining else self._consumer.position(p.number))
                if point != p.offsets.committed:
                    points[p] = point, p.offsets.published
        if not points:
            return
        request = self._request = asyncio.ensure_future(
            self._consumer.commit({p.number: point for p, (point, _) in points.items()}, timeout)
        )
        try:
            await asyncio.wait([request])
            if request.cancelled():
                return
            request.result()
        except asyncio.CancelledError:
            request.cancel()
            raise
        except Rebalanced:
            self._metrics.commits.labels("rebalanced").inc()
        except Away as e:
            self._metrics.commits.labels("failed").inc()
            log.warning("%s; tried again", e)
        else:
            self._metrics.commits.labels("ok").inc()
            for p, (point, published) in points.items():
                committed(p, point, published, self._metrics)
            self._secured.set()

    async def close(self, number: int) -> None:
        return None

    async def stop(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
        for task in list(self._leaving):
            await task

    async def _ready(self) -> Producer:
        async with self._replacing:
            if self._producer is None:
                self._metrics.producer_resets.labels("failed").inc()
                await self.start()
            assert self._producer is not None
            return self._producer

    async def _discard(self, producer: Producer) -> None:
        """Others may still wait for acknowledgements of this one: it is closed behind their back, after its queue."""
        if self._producer is producer:
            self._producer = None
            task = asyncio.create_task(producer.stop())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)


class ExactlyOnce:
    """Nothing is ever repeated, so there is always room."""

    def __init__(self, settings: Settings, consumer: Consumer, metrics: Metrics, max_bytes: MaxBytes) -> None:
        self._s = settings
        self._consumer = consumer
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._producers: dict[int, Producer] = {}
        self._starting = asyncio.Semaphore(8)

    async def start(self) -> None:
        return None

    async def open(self, number: int) -> None:
        """Starting the producer ends the transaction of whoever had its id before: only then is `committed` the truth."""
        await self.close(number)
        name = f"{self._s.group}-{self._s.input_topic}-{number}"
        producer = Producer(self._s, self._max_bytes(), name)
        async with self._starting:
            await producer.start()
        self._metrics.producer_resets.labels("assigned").inc()
        self._producers[number] = producer

    async def room(self, p: Partition, count: int) -> None:
        return None

    async def publish(self, p: Partition, unit: Sequence[Outgoing], offset: int) -> None:
        producer = self._producers.get(p.number)
        if producer is None or not p.alive:
            raise Aborted(f"{p.place}: its producer is gone")
        await producer.ready({o.topic for o in unit})
        try:
            await producer.transact(unit, p.number, offset)
        except PublishFailed as e:
            self._metrics.transactions.labels("failed").inc()
            raise Aborted(str(e), e.kind) from e
        self._metrics.transactions.labels("committed").inc()
        if p.offsets is not None:
            committed(p, offset, p.offsets.published + len(unit), self._metrics)

    async def tick(self, p: Partition) -> None:
        """An idle partition's position is committed too, so that lag reaches 0 past markers and a new group exists."""
        if p.offsets is None or (p.offsets.waiting and p.offsets.committed is not None):
            return
        point = p.offsets.point(self._consumer.position(p.number))
        if point != p.offsets.committed:
            await self.publish(p, (), point)

    async def commit(self, partitions: Iterable[Partition], draining: bool = False, timeout: float = 15.0) -> None:
        return None

    async def close(self, number: int) -> None:
        producer = self._producers.pop(number, None)
        if producer is not None:
            await producer.stop()

    async def stop(self) -> None:
        await asyncio.gather(*(self.close(n) for n in list(self._producers)))


def committed(p: Partition, offset: int, published: int, metrics: Metrics) -> None:
    """`offset` is safe, and with it the first `published` records of the epoch."""
    if p.alive and p.offsets is not None:
        p.offsets.committed, p.offsets.secured = offset, published
        metrics.committed.labels(p.topic, str(p.number)).set(offset)
        metrics.progress.labels("commit").set_to_current_time()
