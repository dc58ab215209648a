"""Done marks on their way to Redis: after the commit, beside everything else, and dropped before they hold anything up.

An answer as objects is several times its encoded size, and has its record beside it. So marks are sealed at once, however
slow Redis is, and wait as the bytes that will be written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from spinf_stream.metrics import Metrics
from spinf_stream.stream.dedup import Dedup
from spinf_stream.stream.publisher import Done
from spinf_stream.stream.sealed import Sealed
from spinf_stream.stream.settle import HELD

WAITING = 4096  # Redis is slower than the engine only when it is ill
SHARE = 0.25  # of the bytes in flight, for the same
SEALED_TOGETHER = 16  # between two looks at the rest
SECONDS = 2.0  # given to the last of them at the end


class Marks:
    """`run` is a task of the worker. `limit` is max_inflight_bytes."""

    def __init__(self, dedup: Dedup, metrics: Metrics, limit: int) -> None:
        self._dedup = dedup
        self._metrics = metrics
        self._most = SHARE * limit
        self._waiting: asyncio.Queue[Done] = asyncio.Queue()
        self._sealed: asyncio.Queue[Sealed] = asyncio.Queue()
        self._count = 0  # of both queues, and on their way out of them
        self._encoded = 0  # bytes of them once they are all sealed; what is not sealed yet is taken as large as its output
        self.bytes = 0  # in memory: of what is not sealed as objects, and of what is being written too

    def offer(self, done: Iterable[Done]) -> None:
        """One that finds no room costs its text a pass more, next time. The objects are in memory, offered or not: what
        has to have room is their sealed bytes."""
        for d in done:
            if self._count >= WAITING or self._encoded + d.held // HELD > self._most:
                self._metrics.marks.labels("skipped").inc()
            else:
                self._waiting.put_nowait(d)
                self._add(1, d.held // HELD, d.held)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._seal())
            both.create_task(self._write())

    async def flush(self) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                await self._waiting.join()
                await self._sealed.join()
        except TimeoutError:
            pass

    async def _seal(self) -> None:
        while True:
            first = await self._waiting.get()
            done = [first, *(self._waiting.get_nowait() for _ in range(min(self._waiting.qsize(), SEALED_TOGETHER - 1)))]
            sealed = await asyncio.to_thread(self._dedup.seal, [(d.key, d.record, d.answer) for d in done])
            for d, s in zip(done, sealed, strict=True):
                self._add(0, len(s.value) - d.held // HELD, len(s.value) - d.held)
                self._sealed.put_nowait(s)
                self._waiting.task_done()
            del first, done, d  # else they live until the next come

    async def _write(self) -> None:
        while True:
            first = await self._sealed.get()
            sealed = [first, *(self._sealed.get_nowait() for _ in range(self._sealed.qsize()))]
            await self._dedup.remember(sealed)
            for s in sealed:
                self._add(-1, -len(s.value), -len(s.value))
                self._sealed.task_done()
            del first, sealed, s

    def _add(self, count: int, encoded: int, held: int) -> None:
        self._count += count
        self._encoded += encoded
        self.bytes += held
