"""The worker as a process: start-up, signals, health, the end.

Exit codes: 0 drained, 1 a fault of ours, 3 a dependency is away or missing, 4 a limit stopped it, 70 the engine is
gone, 75 the drain deadline passed, 130 a second signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Iterator, Mapping

from spinf_stream.config import Settings
from spinf_stream.engine.scorer import Scorer
from spinf_stream.health import Server
from spinf_stream.metrics import Metrics
from spinf_stream.packs import baseline
from spinf_stream.packs.drift import Key, Recorded
from spinf_stream.stream import dependencies, device, drift, kafka, logs, startup, tracing, watch
from spinf_stream.stream.check import check
from spinf_stream.stream.passes import Runner
from spinf_stream.stream.pipeline import Pipeline, Stopped
from spinf_stream.stream.reload import describe, reloading

__all__ = ["check", "serve"]

log = logging.getLogger(__name__)


async def serve(
    settings: Settings, scorer: Scorer, runner: Runner, *, burst: bool = False, stop: asyncio.Event | None = None,
    reload: asyncio.Event | None = None, metrics: Metrics | None = None, start_seconds: float = startup.START_SECONDS,
    ends: dict[int, int] | None = None,
) -> int:  # fmt: skip
    """Run until SIGTERM, SIGINT or `stop`, or, with `burst`, until the end offsets of the start; the exit code.

    `ends` are other end offsets by partition for the burst: nothing past them is scored. SIGHUP or `reload` reads the
    questions anew. With `stop` given no signal is touched. The runner is not closed. Raises UsageError where spans are
    wanted and cannot be sent, or drift_baseline cannot be read.
    """
    recorded = baseline.read(settings.drift_baseline)
    metrics = metrics or Metrics(scorer.engine.budget)
    describe(metrics, scorer, settings.device)
    pipeline: Pipeline | None = None
    spans: tracing.Tracing | None = None
    logs.TALLY.into(metrics.warnings)
    server = Server(settings.host, settings.port, metrics, lambda: watch.healthy(pipeline), lambda: watch.ready(pipeline))
    with _signals(stop, reload) as (stopped, aborted, hung_up):  # before anything says that there is a worker
        try:
            await server.start()
        except OSError as e:
            log.error("port %d at %s: %s; --port names another, 0 any that is free", settings.port, settings.host, e.strerror or e)
            return 3
        log.info("metrics and health at http://%s:%d", settings.host, server.port)
        try:
            spans = tracing.opened(settings, metrics)
            starting = asyncio.ensure_future(_start(settings, scorer, runner, metrics, start_seconds, ends, spans))
            await _first(starting, stopped.wait())
            if not starting.done():
                starting.cancel()
                await asyncio.wait([starting])
                return 0
            pipeline = starting.result()
            pipeline.spawn(reloading(hung_up, scorer, runner, metrics, settings.device))
            code = await _run(pipeline, recorded, burst, stopped, aborted)
            if not burst and settings.on_limit == "wait" and pipeline.failed.done() and not stopped.is_set() and (why := pipeline.failed.result()).again:
                server.hold(str(why))
                log.error("left the group and stay until told to end (on_limit = wait): the next start would meet the same")
                await stopped.wait()
            return code
        except (kafka.Away, startup.Missing) as e:
            log.error("%s", e)
            return 3
        finally:
            if pipeline is not None:
                await pipeline.close()
            if spans is not None:
                await asyncio.to_thread(spans.close)
            await server.stop()


async def _start(
    s: Settings, scorer: Scorer, runner: Runner, metrics: Metrics, seconds: float, ends: dict[int, int] | None, spans: tracing.Tracing | None
) -> Pipeline:
    """Raises kafka.Away, startup.Missing."""
    end = time.monotonic() + seconds
    facts = await startup.prepare(s, seconds)
    while True:
        pipeline = Pipeline(s, scorer, runner, metrics, facts, ends, spans)
        try:
            await pipeline.start()
            return pipeline
        except BaseException as e:
            await pipeline.close()
            if not isinstance(e, kafka.Away) or time.monotonic() > end:
                raise
            log.warning("%s; tried again", e)
            await asyncio.sleep(1.0)


async def _run(w: Pipeline, recorded: Mapping[Key, Recorded], burst: bool, stopped: asyncio.Event, aborted: asyncio.Event) -> int:
    failure: Stopped | None = None
    ended = None
    if burst:
        ended = asyncio.ensure_future(watch.until_burst_ends(w, w.ends or await watch.burst_ends(w)))
    for watcher in (watch.gauges(w), watch.stalls(w), watch.progress(w), dependencies.probe(w), drift.follow(w, recorded), device.follow(w)):
        w.spawn(watcher)
    await _first(stopped.wait(), w.failed, *([ended] if ended else []))
    if w.failed.done():
        failure = w.failed.result()
        log.error("stopping: %s", failure)
    finishing = asyncio.ensure_future(w.finish(failure))
    await _first(finishing, aborted.wait())
    if not finishing.done():
        log.error("aborted: what was in flight is read again by whoever comes next")
        finishing.cancel()
        await asyncio.wait([finishing], timeout=1.0)
        return 130
    log.info("%s", watch.Progress(w).total())
    return finishing.result()


async def _first(*things: object) -> None:
    """Until one of them is done; coroutines among them are cancelled, futures are left alone."""
    futures = [t if asyncio.isfuture(t) else asyncio.ensure_future(t) for t in things]  # type: ignore[call-overload]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future, thing in zip(futures, things, strict=True):
        if future is not thing:
            future.cancel()


@contextlib.contextmanager
def _signals(
    stop: asyncio.Event | None, reload: asyncio.Event | None
) -> Iterator[tuple[asyncio.Event, asyncio.Event, asyncio.Event]]:
    """(stop, abort, reload): the first SIGTERM or SIGINT sets one, the second the next, SIGHUP the last."""
    stopped, aborted, hung_up = stop or asyncio.Event(), asyncio.Event(), reload or asyncio.Event()
    if stop is not None:
        yield stopped, aborted, hung_up
        return
    loop = asyncio.get_running_loop()
    terminal = sys.stderr.isatty()

    def signalled() -> None:
        if stopped.is_set():
            aborted.set()
        else:
            log.info("stopping: no more is read, what is in flight is finished")
            stopped.set()

    def hang_up() -> None:
        if terminal and not sys.stderr.isatty():  # not somebody's wish: the terminal is gone, and with it whoever started this
            signalled()
        else:
            hung_up.set()

    handlers = {signal.SIGTERM: signalled, signal.SIGINT: signalled, signal.SIGHUP: hang_up}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield stopped, aborted, hung_up
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # by itself it would end what has just been drained well
