"""The workers of a chaos run: real processes, started, struck and replaced."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections import Counter
from typing import Any
from urllib.request import urlopen

import services
from stage import Process

from spinf_stream.config import Settings

POINTS = ("before_pass", "after_pass", "before_send", "before_offsets", "before_commit", "after_commit")


class Fleet:

    def __init__(self, settings: dict[str, Any], rng: random.Random) -> None:
        self.settings, self.rng = settings, rng
        self.workers: list[Worker] = []
        self.codes: Counter[int] = Counter()

    async def add(self) -> Worker:
        w = Worker(self.settings, self.rng.choice(POINTS if self.settings["delivery"] == "exactly_once" else POINTS[:3]))
        await w.process.__aenter__()
        self.workers.append(w)
        return w

    async def remove(self, w: Worker, signal_: int) -> int:
        self.workers.remove(w)
        if signal_ == signal.SIGTERM:  # before that it has no handler and nothing to drain
            await w.process.said("metrics and health", 60)
        w.process.signal(signal_)
        code = await w.process.ended(60)
        self.codes[code] += 1
        await w.process.__aexit__()
        if signal_ == signal.SIGTERM and code != 0:
            raise AssertionError(f"a worker left with {code} after SIGTERM:\n{w.process.output[-3000:]}")
        return code

    async def keep(self, least: int, most: int) -> None:
        """Join and leave: between `least` and `most` of them, at random."""
        for w in [w for w in self.workers if w.process.gone]:
            self.workers.remove(w)
            raise AssertionError(f"a worker left by itself:\n{w.process.output[-3000:]}")
        while len(self.workers) < self.rng.randint(least, most):
            await self.add()

    async def busy(self, seconds: float = 30.0) -> Worker:
        """A worker with records in flight at this moment."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for w in self.rng.sample(self.workers, len(self.workers)):
                if await w.in_flight() > 0:
                    return w
            await asyncio.sleep(0.01)
        raise TimeoutError(f"no worker had records in flight within {seconds:g} s")

    async def close(self) -> None:
        for w in list(self.workers):
            await w.process.__aexit__()


class Worker:
    def __init__(self, settings: dict[str, Any], point: str) -> None:
        self.port = services.free_port()
        self.point = point
        self.process = Process(Settings(**settings, port=self.port), stop={"at": point})

    async def in_flight(self) -> float:
        def scrape() -> float:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=1) as page:
                    found = re.search(rb"^spinf_stream_inflight_records ([0-9.e+]+)", page.read(), re.M)
                    return float(found[1]) if found else 0.0
            except OSError:
                return 0.0

        return await asyncio.to_thread(scrape)
