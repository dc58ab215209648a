"""Publishes a partition's settled records in offset order, one unit at a time; a unit that fails is tried again in place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import NamedTuple

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.records import Answer
from spinf_stream.stream.batcher import Batcher
from spinf_stream.stream.dead_letters import PREFIX, Limits
from spinf_stream.stream.delivery import Aborted, Delivery
from spinf_stream.stream.flow import Outgoing, Record, Settled
from spinf_stream.stream.kafka import Away, PublishFailed, size
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.settle import Settle
from spinf_stream.stream.tracing import Tracing
from spinf_stream.stream.wait import event_or_time

log = logging.getLogger(__name__)

UNIT_RECORDS = 256
LATE_SECONDS = 5.0  # without an acknowledgement a partition counts as blocked; the client sends again without end
BACKOFF = (0.1, 15.0)  # seconds, doubling from first to last


class Done(NamedTuple):
    """What may be remembered: the output of this record is committed."""

    key: str  # Prepared.key
    record: Record
    answer: Answer
    held: int  # bytes


class LimitReached(Exception):
    """Too many dead letters."""


class Publisher:
    """`run` is one partition's task, from its opening to the end of its epoch. It raises LimitReached and Aborted."""

    def __init__(
        self, settings: Settings, delivery: Delivery, settle: Settle, batcher: Batcher, metrics: Metrics,
        refresh: Callable[[], Awaitable[None]], published: Callable[[list[Done]], None], tracing: Tracing | None = None,
    ) -> None:  # fmt: skip
        self._tick = settings.commit_interval_ms / 1000
        self._most = min(UNIT_RECORDS, settings.max_inflight_records)
        self._delivery = delivery
        self._settle = settle
        self._batcher = batcher
        self._metrics = metrics
        self._refresh = refresh  # the facts of the topics
        self._published = published
        self._tracing = tracing
        self._limits = Limits(settings.dlq_max_run, settings.dlq_max_ratio)
        self._under_way: dict[int, list[bool]] = {}  # by number: which of the records being sent are dead
        self._blocked: set[int] = set()  # by number: an aborted transaction ends an epoch and unblocks nothing
        self._untimed: dict[int, int] = {}  # by number: up to this offset the topic refuses the records' own timestamps

    async def run(self, p: Partition) -> None:
        assert p.offsets is not None
        began = time.monotonic()
        ticked = 0.0  # at once: a start position that is not yet committed hides the group from its watchers
        while p.alive and not p.silent:
            p.changed.clear()
            unit = p.offsets.take(self._most)
            if unit:
                p.publishing = True
                try:
                    await self._publish(p, unit)
                finally:
                    p.publishing = False
                continue
            if time.monotonic() - ticked >= self._tick and p.admitting:
                await self._patiently(p, [], tick=True)
                ticked = time.monotonic()
            if not p.waiting and time.monotonic() - began >= LATE_SECONDS:
                self.unblock(p.number)  # what was late came through after all, or is somebody else's
            await event_or_time(p.changed, self._tick)

    async def _publish(self, p: Partition, unit: list[Settled]) -> None:
        """Only what is acknowledged counts towards the limits: a transaction that fails brings the same dead letters again."""
        while unit:
            dead = [s.outcome == "dead" for s in unit]
            fits = self._limits.fits(chain.from_iterable(self._under_way.values()), dead)
            self._under_way[p.number] = dead[:fits]
            try:
                if not await self._publish_all(p, unit[:fits]):
                    return
            finally:
                self._under_way.pop(p.number, None)
            unit = unit[fits:]

    async def _publish_all(self, p: Partition, unit: list[Settled]) -> bool:
        """False: it is not out and will not be in this epoch, and so nothing after it may be."""
        began = time.monotonic()
        sent = await self._patiently(p, unit)
        if sent is None:
            return False
        p.published(unit)
        unit = sent
        if self._tracing is not None:
            self._tracing.published(unit, began)
        self._metrics.stage.labels("publish").observe(time.monotonic() - began)
        self._metrics.progress.labels("publish").set_to_current_time()
        done: list[Done] = []
        for s in unit:
            self._limits.count(s.outcome == "dead")
            self._count(s)
            if s.item is not None:
                if s.mark is not None and s.item.work is not None:
                    done.append(Done(s.item.work.prepared.key, s.record, s.mark, s.held))
                self._batcher.leave(s.item)
        self._published(done)
        if self._limits.tripped:
            raise LimitReached(self._limits.tripped)
        return True

    async def _patiently(self, p: Partition, unit: list[Settled], tick: bool = False) -> list[Settled] | None:
        """The unit as it went out, which its failures may have changed; None when the epoch ended before it was out."""
        assert p.offsets is not None
        wait = BACKOFF[0]
        while p.alive:
            late = asyncio.get_running_loop().call_later(LATE_SECONDS, self._late, p, len(unit))
            try:
                if tick:
                    await self._delivery.tick(p)
                else:
                    await self._delivery.room(p, len(unit))
                    if p.silent or not p.alive:
                        return None
                    await self._delivery.publish(p, self._outgoing(p, unit), p.offsets.after(len(unit)))
                    if self.unblock(p.number):
                        log.info("%s publishes again", p.place)
                return unit if p.alive else None
            except Aborted as e:
                self._block(p)
                if e.kind != "other":
                    self._metrics.publish_failures.labels(e.kind).inc()
                await self._learn(p, unit, e.kind)  # for the next epoch, which meets the same records
                raise
            except Away as e:
                self._metrics.publish_failures.labels("away").inc()
                log.error("%s cannot publish, nothing is committed past it: %s", p.place, e)
            except PublishFailed as e:
                self._metrics.publish_failures.labels(e.kind).inc()
                log.error("%s publishing failed (%s), tried again: %s", p.place, e.kind, e)
                await self._learn(p, unit, e.kind)
                if e.kind == "too_large":
                    unit = [self._refit(s) for s in unit]
            finally:
                late.cancel()
            if p.silent:
                return None
            self._block(p)
            await asyncio.sleep(wait)
            wait = min(2 * wait, BACKOFF[1])
        return None

    async def _learn(self, p: Partition, unit: list[Settled], kind: str) -> None:
        """What a refusal says about the topics."""
        if kind == "too_large":
            await self._refresh()
        elif kind == "timestamp":
            self._untimed[p.number] = unit[-1].record.offset

    def _outgoing(self, p: Partition, unit: list[Settled]) -> list[Outgoing]:
        untimed = self._untimed.get(p.number, -1)
        if unit[0].record.offset > untimed:
            self._untimed.pop(p.number, None)
        return [s.out._replace(timestamp=None) if s.record.offset <= untimed else s.out for s in unit if s.out is not None]

    def _late(self, p: Partition, records: int) -> None:
        """Only said and counted. Nothing is given up: the same producer's repetition is known to the broker by its
        number, so a late acknowledgement costs nothing, where another producer's would be a second copy."""
        if p.alive:
            self._metrics.publish_failures.labels("late").inc()
            log.error("%s: %d records or their offset not acknowledged within %g s; nothing is committed past them", p.place, records, LATE_SECONDS)
            self._block(p)

    def _block(self, p: Partition) -> None:
        if p.alive:
            self._blocked.add(p.number)
            self._metrics.blocked.set(len(self._blocked))

    def unblock(self, number: int) -> bool:
        """It published, had nothing left to publish, or is no longer ours; whether it was blocked."""
        was = number in self._blocked
        self._blocked.discard(number)
        self._metrics.blocked.set(len(self._blocked))
        return was

    def _refit(self, s: Settled) -> Settled:
        """The topic takes less than it did: what does not fit any more is dead, or a shorter dead letter."""
        if s.out is None or size(s.out.key, s.out.value, s.out.headers) <= self._settle.topics[s.out.topic].max_bytes:
            return s
        if s.outcome != "dead":
            return self._settle.dead(s.record, "publish_too_large", f"the scores do not fit into {s.out.topic}", item=s.item)
        said = dict(s.out.headers)
        message = (said[PREFIX + "message"] or b"").decode("utf-8", "replace")
        return self._settle.dead(
            s.record, s.reason or "too_large", message, attempts=int(said[PREFIX + "attempts"] or 0), item=s.item
        )

    def _count(self, s: Settled) -> None:
        m, r = self._metrics, s.record
        m.records.labels(s.outcome).inc()
        if s.out is not None:
            m.published_bytes.observe(s.size)
        if s.reason is not None:
            m.dead_letters.labels(s.reason).inc()
            log.warning("dead letter: %s %s", r.place, s.reason, extra={"place": r.place, "reason": s.reason})
        if r.timestamp >= 0:
            age = time.time() - r.timestamp / 1000
            if age >= 0:
                m.end_to_end.observe(age)
            else:
                m.from_future.inc()

