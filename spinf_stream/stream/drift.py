"""Score drift of a running worker: fresh answers of packs, compared with their calibration's traffic or a recorded baseline.

    passes -> intake.deliver: one append an answer -> here, every few seconds in a thread -> the gauge

The event loop and the GPU wait for none of it. What one turn does not get to is dropped, oldest first: a figure over the
latest articles needs no complete count. Duplicates are not counted again: their text was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from spinf_stream.metrics import Metrics
from spinf_stream.packs.baseline import unasked
from spinf_stream.packs.drift import Drift, Key, Recorded
from spinf_stream.records import Answer
from spinf_stream.stream import asked
from spinf_stream.stream.pipeline import Pipeline

log = logging.getLogger(__name__)

TURN_SECONDS = 5.0
NONE: Mapping[Key, Recorded] = MappingProxyType({})


def show(metrics: Metrics, drift: Drift) -> None:
    for (pack, context, category), value in drift.figures().items():
        metrics.drift.labels(pack, context, category).set(value)


def count(drift: Drift, answers: Sequence[Answer]) -> None:
    """An answer from before a reload may lack what the packs of now ask."""
    first = not drift.unreadable
    for answer in answers:
        drift.add(answer.packs, answer.scores)
    if first and drift.unreadable:
        log.warning("score drift: an answer is left out, and so will others be: it %s", drift.why)


async def follow(w: Pipeline, recorded: Mapping[Key, Recorded] = NONE, seconds: float = TURN_SECONDS) -> None:
    """For as long as the worker runs. A reload may bring other packs, and with them other baselines."""
    drift = Drift()
    fresh = w.intake.judged
    watched = None
    while True:
        packs = asked.packs(w.scorer)
        if (these := [(pack.digest, context) for pack, context in packs]) != watched:
            watched = these
            drift.watch(packs, recorded)
            if others := unasked(recorded, packs):
                log.warning("drift_baseline: %d of its %d series are of no pack, context and category asked here, such as %s", len(others), len(recorded), " ".join(others[0]))
            w.metrics.drift.clear()
            show(w.metrics, drift)
        await asyncio.sleep(seconds)
        if answers := [fresh.popleft() for _ in range(len(fresh))]:
            await asyncio.to_thread(count, drift, answers)
            show(w.metrics, drift)
