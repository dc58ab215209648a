"""SIGHUP: the scorer reads its packs and questions anew while records go on.

    signal -> here -> scorer.reload in a thread (floors as passes of the runner) -> metrics and log

Nothing is paused and no record is lost: what was prepared before is answered by the questions that prepared it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from spinf_stream.engine.scorer import Reloadable, Reloaded, Scorer
from spinf_stream.engine.seam import EngineFatal, PassInput, PassOutput
from spinf_stream.metrics import Metrics
from spinf_stream.stream import asked
from spinf_stream.stream.passes import Runner

log = logging.getLogger(__name__)


def describe(metrics: Metrics, scorer: Scorer, device: str) -> None:
    """What runs here, on the metrics page."""
    metrics.info(scorer.fingerprint, scorer.questions_digest[:16], type(scorer.engine).__name__, device)
    for source, prompts in asked.floors(scorer)._asdict().items():
        metrics.floors.labels(source).set(prompts)


async def reloading(signalled: asyncio.Event, scorer: Scorer, runner: Runner, metrics: Metrics, device: str) -> None:
    """Reload whenever `signalled` is set; signals that come meanwhile are one more reload. Raises EngineFatal."""
    while True:
        await signalled.wait()
        signalled.clear()
        if not isinstance(scorer, Reloadable):
            log.warning("SIGHUP: nothing here can be reloaded")
            continue
        result = await once(scorer, runner)
        if result is not None:
            describe(metrics, scorer, device)
            for line in result.kept:
                log.warning("reload: %s", line)
            metrics.reload_kept.inc(len(result.kept))
            log.info("reload: %s; questions %s", "changed" if result.changed else "nothing changed", scorer.questions_digest[:16])
        metrics.reloads.labels("failed" if result is None else "changed" if result.changed else "unchanged").inc()


async def once(scorer: Reloadable, runner: Runner) -> Reloaded | None:
    """None: the engine could not do its part, everything is as before."""
    loop = asyncio.get_running_loop()

    def run(batch: PassInput) -> PassOutput:
        return asyncio.run_coroutine_threadsafe(_run(runner, batch), loop).result()

    try:
        return await in_thread(lambda: scorer.reload(run))
    except EngineFatal:
        raise
    except Exception as e:
        log.error("reload: %s; everything stays as it was", type(e).__name__)
        return None


async def in_thread(call: Callable[[], Reloaded]) -> Reloaded:
    """In a thread of its own that nobody joins: a source that hangs holds up no drain."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Reloaded] = loop.create_future()

    def settle(result: Reloaded | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        elif result is not None:
            future.set_result(result)

    def work() -> None:
        result: Reloaded | None = None
        error: BaseException | None = None
        try:
            result = call()
        except BaseException as e:
            error = e
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="reload", daemon=True).start()
    return await future


async def _run(runner: Runner, batch: PassInput) -> PassOutput:
    return await runner.run(batch)
