"""Score drift of a running worker: the pack entries of fresh answers, compared with the traffic of their calibration.

    passes -> intake.deliver: one append an answer -> here, every few seconds in a thread -> the gauge

The event loop and the GPU wait for none of it. What one turn does not get to is dropped, oldest first: a figure over the
latest articles needs no complete count. Duplicates are not counted again: their text was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from spinf_stream.metrics import Metrics
from spinf_stream.packs.drift import Drift
from spinf_stream.stream import asked
from spinf_stream.stream.pipeline import Pipeline

TURN_SECONDS = 5.0


def show(metrics: Metrics, drift: Drift) -> None:
    for (pack, context, category), value in drift.figures().items():
        metrics.drift.labels(pack, context, category).set(value)


def count(drift: Drift, answers: Sequence[Sequence[dict[str, Any]]]) -> None:
    for entries in answers:
        drift.add(entries)


async def follow(w: Pipeline, seconds: float = TURN_SECONDS) -> None:
    """For as long as the worker runs. A reload may bring other packs, and with them other baselines."""
    drift = Drift()
    fresh = w.intake.judged
    watched = None
    while True:
        packs = asked.packs(w.scorer)
        if (these := [(pack.digest, context) for pack, context in packs]) != watched:
            watched = these
            drift.watch(packs)
            w.metrics.drift.clear()
            show(w.metrics, drift)
        await asyncio.sleep(seconds)
        if answers := [fresh.popleft() for _ in range(len(fresh))]:
            await asyncio.to_thread(count, drift, answers)
            show(w.metrics, drift)
