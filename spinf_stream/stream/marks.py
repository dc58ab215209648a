"""Done marks on their way to Redis: after the commit, beside everything else, and dropped before they hold anything up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from spinf_stream.metrics import Metrics
from spinf_stream.stream.dedup import Dedup
from spinf_stream.stream.publisher import Done

WAITING = 512  # Redis is slower than the engine only when it is ill
SHARE = 0.25  # of the bytes in flight, for the same
SECONDS = 2.0  # given to the last of them at the end


class Marks:
    """`run` is a task of the worker. `limit` is max_inflight_bytes."""

    def __init__(self, dedup: Dedup, metrics: Metrics, limit: int) -> None:
        self._dedup = dedup
        self._metrics = metrics
        self._most = SHARE * limit
        self._waiting: asyncio.Queue[Done] = asyncio.Queue(WAITING)
        self.bytes = 0  # of the answers that wait, or are being written

    def offer(self, done: Iterable[Done]) -> None:
        """One that finds no room costs its text a pass more, next time."""
        for d in done:
            if self._waiting.full() or self.bytes + d.held > self._most:
                self._metrics.marks.labels("skipped").inc()
            else:
                self._waiting.put_nowait(d)
                self.bytes += d.held

    async def run(self) -> None:
        while True:
            first = await self._waiting.get()
            done = [first, *(self._waiting.get_nowait() for _ in range(self._waiting.qsize()))]
            await self._dedup.remember([(d.key, d.record, d.answer) for d in done])
            for d in done:
                self.bytes -= d.held
                self._waiting.task_done()

    async def flush(self) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                await self._waiting.join()
        except TimeoutError:
            pass
