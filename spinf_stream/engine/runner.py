"""The engine's two threads: one launches passes, one waits for them, so that the device never waits for Python.

The asyncio loop only ever awaits a future. How many passes are in flight is the caller's choice (the worker: two).
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from typing import Any, NamedTuple

from spinf_stream.engine.seam import Engine, PassInput, PassOutput


class _Job(NamedTuple):
    batch: PassInput
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[PassOutput]


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
        self._threads = [threading.Thread(target=t, name=f"engine-{n}", daemon=True) for n, t in (("launch", self._launching), ("collect", self._collecting))]
        for t in self._threads:
            t.start()

    @property
    def wall_seconds(self) -> float:
        """From the first launch to the last result."""
        return 0.0 if self._began is None else max(0.0, self._ended - self._began)

    async def run(self, batch: PassInput) -> PassOutput:
        loop = asyncio.get_running_loop()
        job = _Job(batch, loop, loop.create_future())
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
        while (item := self._collect.get()) is not None:
            job, handle = item
            try:
                output = self.engine.collect(handle)
            except BaseException as e:
                _settle(job, None, e)
            else:
                self.busy_seconds += output.busy_seconds
                self.passes += 1
                self._ended = time.monotonic()
                _settle(job, output, None)


def _settle(job: _Job, output: PassOutput | None, error: BaseException | None) -> None:
    def set_it() -> None:
        if job.future.done():  # the waiter was cancelled
            return
        if error is not None:
            job.future.set_exception(error)
        elif output is not None:
            job.future.set_result(output)

    try:
        job.loop.call_soon_threadsafe(set_it)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more
