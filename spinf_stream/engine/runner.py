"""The engine's two threads: one launches passes, one waits for them, so that the device never waits for Python.

The asyncio loop only ever awaits a future. How many passes are in flight is the caller's choice (the worker: two).

Slots are decoded by the thread that waits. After every pass it takes one decode step of everything that is pending, and
further steps only while no pass is there to be collected: a new article waits for one step at most, never for a long
generation.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from spinf_stream.engine.seam import Decoding, Engine, PassInput, PassOutput, Pending


class _Job(NamedTuple):
    batch: PassInput
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[PassOutput]
    read: Callable[[], None] | None


class Runner:
    """Raises from `run` what the engine raised: EngineFault, OutOfMemory, EngineFatal, NonFinite, or anything else."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.busy_seconds = 0.0  # device time of all passes
        self.passes = 0
        self._began: float | None = None
        self._ended = 0.0
        self._launch: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._collect: queue.SimpleQueue[tuple[_Job, Any] | None] = queue.SimpleQueue()
        self._pending: list[tuple[_Job, Pending]] = []  # the collecting thread's own
        self._threads = [threading.Thread(target=t, name=f"engine-{n}", daemon=True) for n, t in (("launch", self._launching), ("collect", self._collecting))]
        for t in self._threads:
            t.start()

    @property
    def wall_seconds(self) -> float:
        """From the first launch to the last result."""
        return 0.0 if self._began is None else max(0.0, self._ended - self._began)

    async def run(self, batch: PassInput, read: Callable[[], None] | None = None) -> PassOutput:
        """`read` is called once, in the loop, when the pass's own work is over and nothing but slots is still to be decoded:
        another pass may take its place. A pass without slots, or that fails, comes back without that call."""
        loop = asyncio.get_running_loop()
        job = _Job(batch, loop, loop.create_future(), read)
        self._launch.put(job)
        return await job.future

    async def close(self) -> None:
        """Let what runs finish, then end the threads."""
        self._launch.put(None)
        for t in self._threads:
            await asyncio.to_thread(t.join)

    def _launching(self) -> None:
        while (job := self._launch.get()) is not None:
            if self._began is None:
                self._began = time.monotonic()
            try:
                self._collect.put((job, self.engine.submit(job.batch)))
            except BaseException as e:
                _settle(job, None, e)
        self._collect.put(None)

    def _collecting(self) -> None:
        more = True
        while more or self._pending:
            item = None
            try:
                if more:
                    item = self._collect.get(block=not self._pending)
                    more = item is not None
            except queue.Empty:
                pass
            if item is not None:
                self._begin(*item)
            if self._pending:
                self._advance()

    def _begin(self, job: _Job, handle: Any) -> None:
        try:
            if isinstance(self.engine, Decoding):
                pending = self.engine.begin(handle)
                if not pending.done:
                    self._pending.append((job, pending))
                    _call(job.loop, job.read)
                    return
                output = pending.output()
            else:
                output = self.engine.collect(handle)
        except BaseException as e:
            _settle(job, None, e)
        else:
            self._finish(job, output)

    def _advance(self) -> None:
        assert isinstance(self.engine, Decoding)
        try:
            self.engine.advance()
        except BaseException as e:  # of the decoding itself: nobody else would hear of it
            for job, _ in self._pending:
                _settle(job, None, e)
            self._pending = []
        for job, pending in [p for p in self._pending if p[1].done]:
            try:
                output = pending.output()
            except BaseException as e:
                _settle(job, None, e)
            else:
                self._finish(job, output)
        self._pending = [p for p in self._pending if not p[1].done]

    def _finish(self, job: _Job, output: PassOutput) -> None:
        self.busy_seconds += output.busy_seconds + output.slot_seconds
        self.passes += 1
        self._ended = time.monotonic()
        _settle(job, output, None)


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], None] | None) -> None:
    if what is None:
        return
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more


def _settle(job: _Job, output: PassOutput | None, error: BaseException | None) -> None:
    def set_it() -> None:
        if job.future.done():  # the waiter was cancelled
            return
        if error is not None:
            job.future.set_exception(error)
        elif output is not None:
            job.future.set_result(output)

    _call(job.loop, set_it)
