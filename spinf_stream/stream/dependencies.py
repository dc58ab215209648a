"""Probes of Kafka and Redis, whether or not there is work: the alerts' own view of them, without an exporter.

A worker without articles asks nothing of Redis, and one that is paused reads nothing from Kafka; neither says anything
about the other side. So both are asked by the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from spinf_stream.stream.kafka import Away
from spinf_stream.stream.pipeline import Pipeline
from spinf_stream.stream.redis_client import RedisError

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
ANSWER_SECONDS = 2.0


async def probe(w: Pipeline) -> None:
    """Sets `dependency_up` of what this worker uses, for as long as it runs."""
    asked: dict[str, Callable[[], Awaitable[object]]] = {"kafka": lambda: w.consumer.ends([0])}
    if w.s.redis_url:
        asked["redis"] = w.dedup.ping
    was: dict[str, bool] = {}
    while True:
        up = dict(zip(asked, await asyncio.gather(*(_answers(ask) for ask in asked.values())), strict=True))
        for name, is_up in up.items():
            w.metrics.dependency_up.labels(name).set(is_up)
            if was.get(name, True) != is_up:
                log.warning("%s %s", name, "answers again" if is_up else "does not answer")
        was = up
        await asyncio.sleep(PROBE_SECONDS)


async def _answers(ask: Callable[[], Awaitable[object]]) -> bool:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await ask()
    except (Away, RedisError, OSError, TimeoutError):
        return False
    return True
