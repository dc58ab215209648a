"""The partitions of this worker: opened when assigned, drained when revoked, dropped when lost.

Opening: (exactly once: start the partition's producer) -> committed offset -> seek -> admit -> resume. Draining: admit
no more, flush the windows, let passes come back, publish, commit, close. Closing ends the epoch: whatever still comes
for it is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.stream.batcher import Batcher
from spinf_stream.stream.delivery import Aborted, Delivery
from spinf_stream.stream.intake import Intake
from spinf_stream.stream.kafka import Away, Consumer
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.publisher import Publisher
from spinf_stream.stream.wait import until

log = logging.getLogger(__name__)

Reason = Literal["revoked", "lost", "aborted", "shutdown"]
COMMIT_FLOOR = 5.0  # seconds of a drain kept for publishing and committing
SILENCE_SECONDS = 2.0  # for acknowledgements that are due, when a worker ends in trouble
BACKOFF = (0.2, 30.0)  # seconds between tries to open a partition again, doubling from first to last
MAX_TRANSACTIONAL = 64  # partitions: each has a producer of its own


class TooManyPartitions(Exception):
    pass


class Assignment:
    """`spawn` runs a coroutine as a task of the worker, which ends when one of them raises. `wake` stirs the pump."""

    def __init__(
        self, settings: Settings, consumer: Consumer, delivery: Delivery, publisher: Publisher, intake: Intake,
        batcher: Batcher, metrics: Metrics, spawn: Callable[..., asyncio.Task[None]], wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self._s = settings
        self._consumer = consumer
        self._delivery = delivery
        self._publisher = publisher
        self._intake = intake
        self._batcher = batcher
        self._metrics = metrics
        self._spawn = spawn
        self._wake = wake
        self.partitions: dict[int, Partition] = {}  # open ones
        self.numbers: set[int] | None = None  # what the group gave us; None while it is not settled
        self.leaving = False  # nothing is opened any more
        self.paused = False  # by backpressure
        self._epoch = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}  # opens a partition and then publishes it
        self._failures: dict[int, int] = {}  # epochs in a row that published nothing
        self._ending = asyncio.Lock()

    def assigned(self, numbers: list[int]) -> None:
        """Called by the client, which has paused them. Immediate: heartbeats start only afterwards."""
        topic = self._s.input_topic
        log.info("assigned %d partitions of %s: %s", len(numbers), topic, numbers)
        if self.leaving:
            return
        self.numbers = set(numbers)
        if self._s.delivery == "exactly_once" and len(numbers) > MAX_TRANSACTIONAL:
            need = -(-len(numbers) // MAX_TRANSACTIONAL)
            self._spawn(_raise(TooManyPartitions(
                f"{len(numbers)} partitions of {topic} were assigned, exactly_once serves {MAX_TRANSACTIONAL} a worker: "
                f"start at least {need} workers in group {self._s.group} together"
            )))  # fmt: skip
            return
        for n in numbers:
            self._start(n)

    async def revoked(self, lost: bool) -> None:
        """Called by the client before a rebalance, or after the membership is gone (`lost`)."""
        self.numbers = None
        if not (self.partitions or self._tasks):
            return
        began = time.monotonic()
        if lost:
            await self.close_all("lost")
            result = "lost"
        else:
            result = "drained" if await self.drain("revoked") else "deadline"
        self._metrics.rebalances.labels(result).inc()
        self._metrics.drain_seconds.observe(time.monotonic() - began)
        log.info("partitions given back: %s in %.2f s", result, time.monotonic() - began)

    async def drain(self, reason: Literal["revoked", "shutdown"]) -> bool:
        """Finish what is admitted and give everything back; False when the deadline cut it short."""
        async with self._ending:
            end = time.monotonic() + self._s.drain_seconds
            floor = min(COMMIT_FLOOR, self._s.drain_seconds / 2)
            parts = list(self.partitions.values())
            for p in parts:
                p.admitting = False
            for n in {*self._tasks} - {*self.partitions}:
                self._tasks[n].cancel()  # still opening
            self._intake.forget()
            self._batcher.flushing = "revoke" if reason == "revoked" else "shutdown"
            self._wake()
            drained = await until(lambda: all(p.drained for p in parts), end - floor)
            self._batcher.flushing = None
            if not drained:
                log.warning("the drain deadline passed with passes unfinished: what is not published is read again")
                await until(lambda: not any(p.offsets and (p.publishing or p.offsets.publishable) for p in parts), end - floor / 2)
            await self._delivery.commit(parts, draining=True, timeout=max(1.0, end - time.monotonic()))
        await self.close_all(reason)
        return drained

    async def silence(self) -> None:
        """Nothing is published from now on but what is already on its way: its acknowledgement saves a repetition."""
        for p in self.partitions.values():
            p.admitting, p.silent = False, True
            p.changed.set()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=SILENCE_SECONDS)
            for task in late:
                task.cancel()

    async def close_all(self, reason: Reason) -> None:
        numbers = {*self.partitions, *self._tasks}
        tasks = list(self._tasks.values())
        for n in numbers:
            self._close(n, reason)
        if tasks:
            await asyncio.wait(tasks, timeout=COMMIT_FLOOR)
        await asyncio.gather(*(self._delivery.close(n) for n in numbers))

    def reopen(self, p: Partition, why: str, at: int | None = None) -> None:
        """Its epoch is over but it is still ours: begin again at the committed offset, or where the broker says (`at`)."""
        if not p.alive:
            return
        where = "the committed offset" if at is None else f"offset {at}"
        log.warning("%s: epoch %d ends, reading begins again at %s: %s", p.place, p.epoch, where, why)
        self._failures[p.number] = 0 if p.fruitful else self._failures.get(p.number, 0) + 1
        self._close(p.number, "aborted")
        if not (self._ending.locked() or self.leaving):
            self._start(p.number, min(BACKOFF[0] * 2 ** self._failures[p.number], BACKOFF[1]), at)
        else:
            self._publisher.unblock(p.number)

    def _start(self, number: int, wait: float = 0.0, at: int | None = None) -> None:
        """`wait` seconds first, when it had been open before."""
        self._epoch += 1
        self._metrics.of_partition(self._s.input_topic, number)
        self._tasks[number] = self._spawn(self._live(number, self._epoch, wait, at))

    def _close(self, number: int, reason: Reason) -> None:
        task = self._tasks.pop(number, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        p = self.partitions.pop(number, None)
        self._metrics.forget_partition(self._s.input_topic, number)
        if reason != "aborted":
            self._publisher.unblock(number)
        if p is None:
            return
        self._metrics.discarded.labels(reason).inc(p.waiting)
        if p.offsets is not None:
            self._metrics.discarded_scored.labels(reason).inc(p.offsets.settled)
        p.close()
        self._intake.forget()
        self._batcher.drop(lambda item: item.partition.alive)

    async def _live(self, number: int, epoch: int, wait: float, at: int | None) -> None:
        """One epoch of a partition, from opening to its end."""
        p = Partition(self._s.input_topic, number, epoch)
        again = wait > 0
        await asyncio.sleep(wait)
        while not await self._open(p, again, at):
            wait, again = min(max(BACKOFF[0], 2 * wait), BACKOFF[1]), True
            await asyncio.sleep(wait)
        try:
            await self._publisher.run(p)
        except Aborted as e:
            self.reopen(p, str(e))

    async def _open(self, p: Partition, again: bool, at: int | None) -> bool:
        n = p.number
        self._consumer.pause([n])
        if again and not await self._consumer.is_member():
            log.warning("%s: not opened again, this worker is no member of the group now", p.place)
            return False
        try:
            await self._delivery.open(n)
            committed = await self._consumer.committed(n)
            first = await self._consumer.beginning(n)
        except Away as e:
            log.warning("%s cannot be opened, tried again: %s", p.place, e)
            return False
        start = at if at is not None else first if committed is None else committed
        if start < first:
            log.warning("%s: records %d to %d are gone from the topic unread", p.place, start, first - 1)
            start = first
        self._consumer.seek(n, start)
        p.open(start, committed)
        self.partitions[n] = p
        self._metrics.epoch.labels(p.topic, str(n)).set(p.epoch)
        self._metrics.committed.labels(p.topic, str(n)).set(start)
        if not self.paused:
            self._consumer.resume([n])
        log.info("%s opened at %d, epoch %d", p.place, start, p.epoch)
        return True


async def _raise(e: Exception) -> None:
    raise e
