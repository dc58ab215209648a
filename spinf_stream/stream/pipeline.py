"""The stages of a worker wired together, run, and left in good order.

    poll -> intake -> batcher -> passes -> publisher -> commit, one task each; see flow.py for what crosses between them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spinf_stream.config import Settings
from spinf_stream.engine.scorer import Scorer
from spinf_stream.engine.seam import EngineFatal
from spinf_stream.metrics import Metrics
from spinf_stream.stream import kafka
from spinf_stream.stream.assignment import Assignment, TooManyPartitions
from spinf_stream.stream.batcher import Batcher, Window
from spinf_stream.stream.dead_ends import DeadEnds
from spinf_stream.stream.dedup import Dedup
from spinf_stream.stream.delivery import AtLeastOnce, Delivery, ExactlyOnce
from spinf_stream.stream.intake import AHEAD, Intake
from spinf_stream.stream.marks import Marks
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.passes import Passes, Runner
from spinf_stream.stream.publisher import Done, LimitReached, Publisher
from spinf_stream.stream.settle import Settle, TopicFacts
from spinf_stream.stream.startup import refresh
from spinf_stream.stream.tracing import Tracing
from spinf_stream.stream.wait import event_or_time

log = logging.getLogger(__name__)

POLL_RECORDS = 32  # of one partition at a time, so that none starves the others
QUEUE_RECORDS = 256  # read and not yet decoded
POLL_SECONDS = 0.05
LOW_WATER = 0.75  # reading goes on below this share of what paused it


class Stopped(Exception):
    """The worker ends; `code` is the exit code (worker.py). With `drain` what is in flight is finished first; `again`: the
    next start would meet the same, so that there may be none before somebody has looked (on_limit)."""

    def __init__(self, code: int, message: str, drain: bool = False, again: bool = False) -> None:
        super().__init__(message)
        self.code, self.drain, self.again = code, drain, again


class Pipeline:
    """`start`, then `run` until `stop` is set or something fails, then `finish`."""

    def __init__(
        self, settings: Settings, scorer: Scorer, runner: Runner, metrics: Metrics, facts: dict[str, TopicFacts],
        ends: dict[int, int] | None = None, tracing: Tracing | None = None,
    ) -> None:  # fmt: skip
        s = settings
        self.s = s
        self.scorer = scorer
        self.runner = runner
        self.metrics = metrics
        self.facts = facts
        self.ends = ends  # records from these offsets on are not for this worker
        self.stopping = False
        self.began = time.monotonic()
        self.failed: asyncio.Future[Stopped] = asyncio.get_running_loop().create_future()
        self.cpu = ThreadPoolExecutor(max(2, min(8, (os.cpu_count() or 2) // 2)), thread_name_prefix="cpu")
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._commit_now = asyncio.Event()

        self.batcher = Batcher(scorer.engine.budget, s.max_wait_ms / 1000)
        self.dedup = Dedup(s, scorer, metrics)
        self.marks = Marks(self.dedup, metrics, s.max_inflight_bytes)
        self.settle = Settle(s, scorer, kafka.size, facts)
        self.consumer = kafka.Consumer(s)
        self.dead_ends = DeadEnds(s.corrupt_batches == "skip", self.consumer, metrics)
        self.delivery: Delivery = (
            ExactlyOnce(s, self.consumer, metrics, self._max_bytes) if s.delivery == "exactly_once"
            else AtLeastOnce(s, self.consumer, metrics, self._max_bytes, self._open, self._commit_now.set)
        )  # fmt: skip
        self.intake = Intake(s, scorer, self.settle, self.batcher, self.dedup, metrics, self.cpu, self._wake.set)
        self.passes = Passes(scorer, runner, self.batcher, self.dedup, metrics, self.cpu, self.intake.deliver, tracing)
        self.publisher = Publisher(s, self.delivery, self.settle, self.batcher, metrics, self._refresh, self._published, tracing)
        self.assignment = Assignment(
            s, self.consumer, self.delivery, self.publisher, self.intake, self.batcher, metrics, self.spawn, self._wake.set
        )

    async def start(self) -> None:
        """Raises kafka.Away."""
        await self.dedup.start()
        await self.delivery.start()
        await self.consumer.start(self.assignment)
        for loop in (self._poll(), self.intake.run(), self._pump(), self._commit(), self.marks.run()):
            self.spawn(loop)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of the worker: when it raises, the worker fails."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def finish(self, failure: Stopped | None) -> int:
        """Drain (or, after a failure, only stop publishing), commit, leave; the exit code."""
        self.stopping = self.assignment.leaving = True
        code = failure.code if failure else 0
        if failure is None or failure.drain:
            if not await self.assignment.drain("shutdown"):
                code = code or 75
        else:
            await self.abandon()
        await self.marks.flush()
        await self.close()
        return code

    async def abandon(self) -> None:
        """Publish nothing more; what is acknowledged is committed, so that it is not done twice."""
        open_ = list(self.assignment.partitions.values())
        await self.assignment.silence()
        await self.delivery.commit(open_, draining=True, timeout=3.0)
        await self.assignment.close_all("shutdown")

    async def close(self) -> None:
        """End every task and connection, whatever they are at. May be called at any time and more than once."""
        self.stopping = self.assignment.leaving = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        await self.consumer.stop()
        await self.delivery.stop()
        await self.dedup.close()
        self.cpu.shutdown(wait=False, cancel_futures=True)

    @property
    def inflight_bytes(self) -> int:
        return self.marks.bytes + sum(p.bytes for p in self.assignment.partitions.values())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (e := task.exception()) is None or self.failed.done():
            return
        if isinstance(e, EngineFatal):
            self.batcher.closed = True
            stopped = Stopped(70, f"the engine is gone: {kafka.brief(e)}")
        elif isinstance(e, LimitReached | TooManyPartitions):
            stopped = Stopped(4, str(e), again=isinstance(e, LimitReached))
        elif isinstance(e, Stopped):
            stopped = e
        else:
            log.error("a task of the worker ended", exc_info=e)
            stopped = Stopped(1, f"unexpected {type(e).__name__}")
        self.failed.set_result(stopped)

    async def _poll(self) -> None:
        """Reads all the time: while paused or draining too, because the call keeps the membership."""
        a, m = self.assignment, self.metrics
        limit = self.s.max_inflight_records
        while True:
            self._backpressure()
            if (why := self.dead_ends.due()) and not self.failed.done():
                self.failed.set_result(Stopped(4, why, drain=True, again=True))
            reading = {} if a.paused else {n: p for n, p in a.partitions.items() if p.admitting and p not in self.dead_ends}
            room = {n: min(POLL_RECORDS, limit - p.exposed) for n, p in reading.items()}
            try:
                records = await self.consumer.poll({n: most for n, most in room.items() if most > 0}, POLL_SECONDS)
            except kafka.Damaged as e:
                if (p := a.partitions.get(e.partition)) and p.admitting:
                    self.dead_ends.damaged(p, e)
                continue
            except kafka.Away as e:
                m.unreadable.inc()
                if broken := self.consumer.broken:
                    raise Stopped(3, f"the Kafka client gave up: {broken}") from None
                log.error("%s; tried again", e)
                await asyncio.sleep(0.5)
                continue
            for r in records:
                p = a.partitions.get(r.partition)
                if p is None or (self.ends and r.offset >= self.ends.get(r.partition, r.offset + 1)):
                    continue  # not open: its opening seeks to where it has to begin; or past the end of a replay
                if p in self.dead_ends or self.dead_ends.gone_back(p, r.offset):
                    continue
                try:
                    p.see(r)
                except ValueError as e:  # an offset that is out of range: the client went to the first that there is
                    a.reopen(p, f"the topic was cut or made anew: {e}", r.offset)
                    continue
                m.consumed.labels(r.topic, str(r.partition)).inc()
                m.consumed_bytes.labels(r.topic, str(r.partition)).inc(r.size)
                if p.admitting:
                    self.intake.put(p, r)
            if records:
                m.progress.labels("consume").set_to_current_time()

    def _backpressure(self) -> None:
        a = self.assignment
        share = max(
            self.batcher.tokens / (AHEAD * self.batcher.budget), self.inflight_bytes / self.s.max_inflight_bytes,
            len(self.intake) / QUEUE_RECORDS,
        )  # fmt: skip
        if share >= 1 and not a.paused:
            a.paused = True
            self.consumer.pause(a.partitions)
        elif share < LOW_WATER and a.paused:
            a.paused = False
            self.consumer.resume(a.partitions)
        self.metrics.paused.set(a.paused)
        self.batcher.pressed = a.paused and self.inflight_bytes >= LOW_WATER * self.s.max_inflight_bytes
        if self.batcher.pressed:
            self._wake.set()

    async def _pump(self) -> None:
        while True:
            self._wake.clear()
            now = time.monotonic()
            while (window := self.batcher.take(now)) is not None:
                self.spawn(self._pass(window, now))
            due = self.batcher.due()
            await event_or_time(self._wake, None if due is None else max(0.001, due - now))

    async def _pass(self, window: Window, now: float) -> None:
        m = self.metrics
        m.batch_closed.labels(window.cause).inc()
        m.batch_tokens.observe(window.tokens)
        m.batch_articles.observe(len(window.works))
        m.batch_fill.observe(window.tokens / self.batcher.budget)
        for w in window.works:
            m.stage.labels("window_wait").observe(now - w.arrived)
        try:
            await self.passes.run(window, lambda: self._room(self.batcher.read, window))
        except EngineFatal:
            self.batcher.closed = True
            raise
        finally:
            self._room(self.batcher.done, window)

    def _room(self, step: Callable[[Window], None], window: Window) -> None:
        """A step of the batcher after which others may come in or go out."""
        step(window)
        self.intake.room.set()
        self._wake.set()

    async def _commit(self) -> None:
        """After every interval, or as soon as a quarter of what may be exposed is published and not committed."""
        while True:
            await event_or_time(self._commit_now, self.s.commit_interval_ms / 1000)
            self._commit_now.clear()
            began = time.monotonic()
            await self.delivery.commit(self.assignment.partitions.values())
            self.metrics.stage.labels("commit").observe(time.monotonic() - began)

    def _published(self, done: list[Done]) -> None:
        open_ = self.assignment.partitions.values()
        if 4 * sum(p.offsets.uncommitted for p in open_ if p.offsets) >= self.s.max_inflight_records:
            self._commit_now.set()
        self.marks.offer(done)

    def _open(self) -> Iterable[Partition]:
        return self.assignment.partitions.values()

    async def _refresh(self) -> None:
        await refresh(self.s, self.facts)

    def _max_bytes(self) -> int:
        return max(f.max_bytes for f in self.facts.values())
