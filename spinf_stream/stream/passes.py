"""Windows through the engine, and what to do when a pass fails. Every work comes out with a verdict, or nothing does.

    EngineFault   the same pass again, with growing waits: nothing is lost, reading pauses meanwhile by itself
    OutOfMemory   the budget shrinks for good, the window is split
    NonFinite     the article that it names is dead, the others run again
    EngineFatal   out to the worker: publish nothing more
    anything else is deterministic: halve until one article is left, which is dead
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

from spinf_stream.engine.scorer import Scorer
from spinf_stream.engine.seam import HOWS, EngineFatal, EngineFault, NonFinite, OutOfMemory, PassInput, PassOutput
from spinf_stream.metrics import Metrics
from spinf_stream.records import Answer, Refused
from spinf_stream.stream.batcher import Batcher, Window
from spinf_stream.stream.dedup import Dedup
from spinf_stream.stream.flow import Work
from spinf_stream.stream.tracing import Tracing

log = logging.getLogger(__name__)

BACKOFF = (0.25, 15.0)  # seconds between tries of a faulting engine, doubling from first to last
SHRINK = 0.6  # of the tokens that did not fit; two passes may run into it at once, a second step would cost two more
OOM_TRIES = 4  # for one article alone


class Runner(Protocol):
    """engine/runner.py, as far as the worker needs it."""

    busy_seconds: float

    @property
    def wall_seconds(self) -> float: ...

    async def run(self, batch: PassInput, read: Callable[[], None] | None = None) -> PassOutput: ...

    async def close(self) -> None: ...


class Passes:
    """`deliver` is awaited with works that have their verdict, as soon as each part of the window has it."""

    def __init__(
        self, scorer: Scorer, runner: Runner, batcher: Batcher, dedup: Dedup, metrics: Metrics, cpu: Executor,
        deliver: Callable[[Sequence[Work]], Awaitable[None]], tracing: Tracing | None = None,
    ) -> None:  # fmt: skip
        self._scorer = scorer
        self._runner = runner
        self._batcher = batcher
        self._dedup = dedup
        self._metrics = metrics
        self._cpu = cpu
        self._deliver = deliver
        self._tracing = tracing
        self.faulting = False
        self._gone = False  # the engine

    async def run(self, window: Window, read: Callable[[], None] | None = None) -> None:
        """Raises EngineFatal. The window is not marked done in the batcher: its caller does that. `read` is called when
        nothing is left but slots to decode; the window may still be tried anew after that."""
        keys = [w.prepared.key for w in window.works]
        try:
            await self._dedup.begin(keys)
            await self._window(window, read)
        except EngineFatal:
            self._gone = True
            raise
        except BaseException:  # the drain deadline, a second signal, a fault of ours
            if not self._gone:  # else it may be this pass that the engine met its end in, though another one said so
                self._dedup.withdraw(keys)
            raise
        await self._dedup.end(keys)

    async def _window(self, window: Window, read: Callable[[], None] | None) -> None:
        parts: list[list[Work]] = [list(window.works)]
        wait, alone = BACKOFF[0], 0
        while parts:
            part = [w for w in parts.pop() if w.items]  # an epoch may have ended meanwhile
            if not part:
                continue
            self._batcher.again(window)
            try:
                answers = await self._pass(part, None if parts else read)
            except EngineFatal:
                self._metrics.passes.labels("fatal").inc()
                raise
            except OutOfMemory:
                self._shrink(part)
                alone = alone + 1 if len(part) == 1 else 0
                if alone >= OOM_TRIES:
                    await self._refuse(part[0], "does not fit into memory, even in a pass of its own")
                    alone = 0
                    continue
                if len(part) == 1:
                    await asyncio.sleep(BACKOFF[0] * 2**alone)
                parts += self._split(part)
            except EngineFault as e:
                self._metrics.passes.labels("fault").inc()
                self.faulting = True
                log.warning("engine fault (%s), the pass is tried again in %.2g s", type(e).__name__, wait)
                await asyncio.sleep(wait)
                wait = min(2 * wait, BACKOFF[1])
                parts.append(part)
            except NonFinite as e:
                self._metrics.passes.labels("nonfinite").inc()
                self._metrics.nonfinite.inc()
                poison = _work_of_tree(part, e.tree)
                poison.verdict = Refused("nonfinite", "the model's numbers for this article are not finite")
                await self._deliver([poison])
                if rest := [w for w in part if w is not poison]:
                    parts.append(rest)
            except Exception as e:
                self._metrics.passes.labels("error").inc()
                where = _where(e)
                log.warning("a pass of %d articles raised %s", len(part), where)
                if len(part) == 1:
                    await self._refuse(part[0], f"scoring this article raised {where}")
                else:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
            else:
                self.faulting, wait = False, BACKOFF[0]
                for work, answer in zip(part, answers, strict=True):
                    work.verdict = answer
                await self._deliver(part)

    async def _pass(self, works: list[Work], read: Callable[[], None] | None) -> list[Answer]:
        loop = asyncio.get_running_loop()
        prepared = [w.prepared for w in works]
        batch = await loop.run_in_executor(self._cpu, self._scorer.pack, prepared)
        began = time.monotonic()
        over: list[float] = []

        def decoding() -> None:
            over.append(time.monotonic())
            if read is not None:
                read()

        output = await self._runner.run(batch, decoding)
        ended = time.monotonic()
        if self._tracing is not None:
            self._tracing.passed(works, began, output)
        m = self._metrics
        m.stage.labels("forward").observe((over[0] if over else ended) - began)
        if over:
            m.stage.labels("slots").observe(ended - over[0])
        for how, rows in zip(HOWS, output.slot_rows_by):
            m.slot_tokens.labels(how).inc(rows)
        m.slot_seconds.inc(output.slot_seconds)
        m.passes.labels("ok").inc()
        m.engine_seconds.inc(output.busy_seconds + output.slot_seconds)
        m.tokens.labels("real").inc(output.tokens)
        m.tokens.labels("padding").inc(output.padding)
        m.tokens.labels("shared_prefix").inc(sum(p.content_tokens for p in prepared) * max(0, self._scorer.questions - 1))
        m.progress.labels("score").set_to_current_time()
        return await loop.run_in_executor(self._cpu, self._scorer.answers, prepared, output)

    def _shrink(self, part: list[Work]) -> None:
        """One article alone says nothing about the budget: then only what the engine itself has learned counts."""
        cost = sum(w.prepared.cost for w in part)
        learned = int(SHRINK * cost) if len(part) > 1 else self._batcher.budget
        budget = max(1, min(self._batcher.budget, self._scorer.engine.budget, learned))
        self._metrics.passes.labels("oom").inc()
        self._metrics.oom.inc()
        log.warning("out of memory at %d tokens of %d articles: the budget is %d from now on", cost, len(part), budget)
        self._batcher.budget = budget
        self._metrics.budget.set(budget)

    def _split(self, part: list[Work]) -> list[list[Work]]:
        """Into parts that fit the budget; the last one runs first."""
        parts: list[list[Work]] = []
        room = 0
        for work in part:
            if not parts or work.prepared.cost > room:
                parts.append([])
                room = self._batcher.budget
            parts[-1].append(work)
            room -= work.prepared.cost
        return parts[::-1]

    async def _refuse(self, work: Work, why: str) -> None:
        work.verdict = Refused("engine_error", why)
        await self._deliver([work])


def _work_of_tree(works: list[Work], tree: int) -> Work:
    for work in works:
        if tree < len(work.prepared.trees):
            return work
        tree -= len(work.prepared.trees)
    raise IndexError(f"the engine named tree {tree} past the end of its pass")


def _where(e: BaseException) -> str:
    """The error's type and line, never its text: that may quote the article."""
    frames = traceback.extract_tb(e.__traceback__)
    line = f" at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
    return type(e).__name__ + line
