"""What watches a pipeline from beside it: gauges, the event loop's stalls, the progress line, the end of a burst."""

from __future__ import annotations

import asyncio
import logging
import time

from spinf_stream.health import State
from spinf_stream.metrics import PREFIX
from spinf_stream.stream.kafka import Away
from spinf_stream.stream.pipeline import Pipeline

log = logging.getLogger(__name__)

GAUGE_SECONDS = 0.25
ENDS_SECONDS = 1.0
STALL_STEP = 0.05  # seconds of sleep whose overrun is a stall
STALL_LOGGED = 1.0
PROGRESS_SECONDS = 10.0


async def gauges(w: Pipeline) -> None:
    m = w.metrics
    before, asked = time.monotonic(), -ENDS_SECONDS
    ends: dict[int, int] = {}
    while True:
        await asyncio.sleep(GAUGE_SECONDS)
        # Of our own accord: while paused no fetch brings them. At once for a partition that has just come.
        if time.monotonic() - asked >= ENDS_SECONDS or w.assignment.partitions.keys() - ends:
            asked = time.monotonic()
            try:
                ends = await w.consumer.ends(list(w.assignment.partitions))
            except Away as e:
                log.debug("ends of the partitions: %s", e)
        now, clock = time.monotonic(), time.time()
        if w.assignment.paused:
            m.paused_seconds.inc(now - before)
        before = now
        open_ = list(w.assignment.partitions.values())
        for p in open_:
            if p.offsets is None:
                continue
            label = (p.topic, str(p.number))
            point = p.offsets.point(w.consumer.position(p.number))
            if p.number in ends:  # until the broker has told the end there is no lag to show, rather than one of 0
                m.lag.labels(*label).set(max(0, ends[p.number] - point))
            m.gap.labels(*label).set(p.waiting)
            oldest = p.offsets.oldest
            m.lag_seconds.labels(*label).set(max(0.0, clock - oldest.timestamp / 1000) if oldest and oldest.timestamp >= 0 else 0)
        m.partitions.set(len(open_))
        m.inflight_records.set(sum(p.waiting for p in open_))
        m.inflight_tokens.set(w.batcher.tokens)
        m.inflight_bytes.set(w.inflight_bytes)
        if w.runner.wall_seconds > 0:
            m.engine_busy.set(w.runner.busy_seconds / w.runner.wall_seconds)


async def stalls(w: Pipeline) -> None:
    while True:
        before = time.monotonic()
        await asyncio.sleep(STALL_STEP)
        late = time.monotonic() - before - STALL_STEP
        w.metrics.loop_stall.observe(max(0.0, late))
        if late > STALL_LOGGED:
            log.warning("the event loop stood still for %.1f s; the session would be lost only after %g s", late, w.s.session_timeout_ms / 1000)


async def progress(w: Pipeline) -> None:
    line = Progress(w)
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        log.info("%s", line.next())


async def until_burst_ends(w: Pipeline, ends: dict[int, int]) -> None:
    """Returns when everything before the end offsets is published. Partitions of other members are theirs."""
    while True:
        a = w.assignment
        if a.numbers is not None and a.numbers == set(a.partitions):
            points = {n: p.offsets.point(w.consumer.position(n)) for n, p in a.partitions.items() if p.offsets}
            if all(point >= ends.get(n, 0) for n, point in points.items()):
                return
        await asyncio.sleep(0.02)


async def burst_ends(w: Pipeline) -> dict[int, int]:
    """The end of every partition now. Raises Away."""
    return await w.consumer.ends(range(w.facts[w.s.input_topic].partitions))


def healthy(w: Pipeline | None) -> State:
    if w is None:
        return State(True, "starting")
    if w.failed.done():
        return State(False, str(w.failed.result()))
    return State(True, "ok")


def ready(w: Pipeline | None) -> State:
    if w is None:
        return State(False, "starting")
    if w.failed.done():
        return State(False, str(w.failed.result()))
    if w.stopping:
        return State(False, "stopping")
    if w.passes.faulting:
        return State(False, "the engine is faulting")
    a = w.assignment
    if a.numbers is None or a.numbers != set(a.partitions):
        return State(False, "waiting for partitions")
    return State(True, f"{len(a.partitions)} partitions")


class Progress:
    """Rates since the last line; `total` sums the whole run up."""

    def __init__(self, w: Pipeline) -> None:
        self._w = w
        self._at = w.began
        self._before = self._now()

    def next(self) -> str:
        now, at = self._now(), time.monotonic()
        seconds = max(at - self._at, 1e-6)
        rate = {k: (now[k] - self._before[k]) / seconds for k in now}
        self._before, self._at = now, at
        parts = self._w.assignment.partitions.values()
        oldest = min((p.offsets.oldest.timestamp for p in parts if p.offsets and p.offsets.oldest), default=0)
        age = max(0.0, time.time() - oldest / 1000) if oldest > 0 else 0.0
        fill = rate["fill"] / rate["windows"] if rate["windows"] else 0.0
        return (
            f"{rate['articles']:.1f} articles/s  {rate['questions']:.0f} questions/s  {rate['tokens']:.0f} tokens/s  "
            f"fill {100 * fill:.0f} %  lag {self._sum('lag_records'):.0f}  oldest {age:.1f} s  dead {now['dead']:.0f}{'  paused' if self._w.assignment.paused else ''}"
        )

    def total(self) -> str:
        now, seconds = self._now(), time.monotonic() - self._w.began
        return (
            f"{now['articles']:.0f} scored, {now['duplicates']:.0f} duplicates, {now['dead']:.0f} dead, {now['other']:.0f} others "
            f"in {seconds:.1f} s; {now['questions']:.0f} questions, {now['tokens']:.0f} tokens, {now['passes']:.0f} passes"
        )

    def _now(self) -> dict[str, float]:
        return {
            "articles": self._sum("records_total", outcome="scored"),
            "duplicates": self._sum("records_total", outcome="duplicate"),
            "dead": self._sum("records_total", outcome="dead"),
            "other": self._sum("records_total", outcome="tombstone") + self._sum("records_total", outcome="expired"),
            "questions": self._sum("questions_scored_total"),
            "tokens": self._sum("tokens_total", kind="real"),
            "passes": self._sum("engine_passes_total", result="ok"),
            "fill": self._sum("batch_fill_ratio_sum"),
            "windows": self._sum("batch_fill_ratio_count"),
        }

    def _sum(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for metric in self._w.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == PREFIX + name and labels.items() <= sample.labels.items()
        )


__all__ = ["Away", "Progress", "burst_ends", "gauges", "healthy", "progress", "ready", "stalls", "until_burst_ends"]
