"""The workers of a chaos run: real processes that come and go, are struck and replaced."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import services
from stage import Process

from spinf_stream.config import Settings

POINTS = ("before_pass", "after_pass", "before_send", "before_offsets", "before_commit", "after_commit")
IN_HAND = 4  # records in flight that make a worker worth striking; the gauge may be a quarter of a second old
DEADLINE = 75  # exit code: the drain's deadline passed


class Fleet:
    def __init__(self, settings: dict[str, Any], rng: random.Random, logs: Path | None = None) -> None:
        self.settings, self.rng, self.logs = settings, rng, logs
        self.started = 0
        self.workers: list[Worker] = []
        self.moves: Counter[str] = Counter()  # joined, left
        self.harsh = False  # the broker may be away while somebody leaves: its drain may take too long
        self._parting: dict[Worker, asyncio.Task[int]] = {}

    async def add(self, **more: Any) -> Worker:
        w = Worker({**self.settings, **more}, self.rng.choice(POINTS if self.settings["delivery"] == "exactly_once" else POINTS[:3]))
        await w.process.__aenter__()
        self.workers.append(w)
        self.started += 1
        w.name = f"worker{self.started:03d}-{w.point}"
        return w

    async def bury(self, w: Worker) -> None:
        await w.process.__aexit__()
        if self.logs is not None:
            (self.logs / f"{w.name}.log").write_text(w.process.output, "utf-8")

    async def remove(self, w: Worker, signal_: int, codes: tuple[int, ...] = (0,)) -> int:
        self.workers.remove(w)
        if signal_ == signal.SIGTERM:  # before that it has no handler and nothing to drain
            await w.process.said("metrics and health", 60)
        w.process.signal(signal_)
        w.process.signal(signal.SIGCONT)
        code = await w.process.ended(60)
        await self.bury(w)
        if signal_ == signal.SIGTERM and code not in codes:
            raise AssertionError(f"a worker left with {code} after SIGTERM:\n{w.process.output[-3000:]}")
        return code

    async def come_and_go(self, least: int, most: int) -> None:
        """Members leave while the next fault strikes, and others join; between `least` and `most` are there."""
        self._nobody_left_by_itself()
        if len(self.workers) > least and self.rng.random() < 0.35:
            w = self.rng.choice(self.workers)
            leaving = asyncio.ensure_future(self.remove(w, signal.SIGTERM, (0, DEADLINE) if self.harsh else (0,)))
            self._parting[w] = leaving
            self.moves["left"] += 1
            await asyncio.sleep(0)  # it is out of self.workers
        before = len(self.workers)
        await self.keep(least, most)
        self.moves["joined"] += len(self.workers) - before

    async def keep(self, least: int, most: int) -> None:
        self._nobody_left_by_itself()
        while len(self.workers) < self.rng.randint(least, most):
            await self.add()

    async def parted(self) -> None:
        """Whoever was leaving has left."""
        await asyncio.gather(*self._parting.values())
        self._parting.clear()

    async def busy(self, seconds: float = 60.0) -> tuple[Worker, float]:
        """A worker, and the records that it has in flight at this moment."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for w in self.rng.sample(self.workers, len(self.workers)):
                if (held := await w.metric("inflight_records")) >= IN_HAND:
                    return w, held
            await asyncio.sleep(0.01)
        raise TimeoutError(f"no worker had {IN_HAND} records in flight within {seconds:g} s")

    async def close(self) -> None:
        for w in [*self.workers, *self._parting]:
            await self.bury(w)
        await asyncio.gather(*self._parting.values(), return_exceptions=True)

    def _nobody_left_by_itself(self) -> None:
        for w in [w for w in self.workers if w.process.gone]:
            self.workers.remove(w)
            raise AssertionError(f"a worker left by itself:\n{w.process.output[-3000:]}")
        for w, leaving in list(self._parting.items()):
            if leaving.done():
                del self._parting[w]
                leaving.result()


class Worker:
    def __init__(self, settings: dict[str, Any], point: str) -> None:
        self.port = services.free_port()
        self.point = point
        self.name = ""
        self.process = Process(Settings(**settings, port=self.port), stop={"at": point})

    async def metric(self, name: str, labels: str = "") -> float:
        """The sum of its samples that have these labels (`cause="revoke"`), asked now; 0 when it does not answer."""
        wanted = re.compile(rb"^spinf_stream_%s(?:\{[^}]*%s[^}]*\})? ([0-9.e+]+)" % (name.encode(), labels.encode()), re.M)

        def scrape() -> float:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=1) as page:
                    return sum(float(n) for n in wanted.findall(page.read()))
            except OSError:
                return 0.0

        return await asyncio.to_thread(scrape)

    async def until(self, name: str, least: float, labels: str = "", seconds: float = 120.0) -> float:
        """Its value, as soon as it is large enough."""
        end = time.monotonic() + seconds
        while (value := await self.metric(name, labels)) < least:
            if time.monotonic() > end:
                raise TimeoutError(f"{name} {labels} of a worker did not come to {least:g} within {seconds:g} s:\n{self.process.output[-2000:]}")
            await asyncio.sleep(0.05)
        return value

    async def freeze(self, seconds: float = 60.0) -> None:
        """It stops itself at its point, with what it was about to run, send or commit in its hands."""
        before = self.process.output.count("stopped ")
        self.process.signal(signal.SIGUSR1)
        end = time.monotonic() + seconds
        while self.process.output.count("stopped ") == before:
            if time.monotonic() > end:
                raise TimeoutError(f"a worker never came to {self.point}:\n{self.process.output[-2000:]}")
            await asyncio.sleep(0.005)

    def thaw(self) -> None:
        self.process.signal(signal.SIGCONT)
