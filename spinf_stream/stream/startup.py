"""The three topics at start-up: there, made, or named in one line."""

from __future__ import annotations

import asyncio
import logging
import time

from spinf_stream.config import Settings
from spinf_stream.stream import kafka
from spinf_stream.stream.kafka.topics import create
from spinf_stream.stream.settle import TopicFacts
from spinf_stream.topics_cli import plans

log = logging.getLogger(__name__)

START_SECONDS = 60.0  # a broker that is still starting is waited for
PARTITIONS = 8  # of topics that `create_topics` makes, where there is no input topic to follow


class Missing(Exception):
    """A topic that is not there; the message says what to do."""


async def prepare(s: Settings, seconds: float = START_SECONDS) -> dict[str, TopicFacts]:
    """Facts of the three topics. Waits for the broker. Raises kafka.Away after `seconds`, Missing at once."""
    names = (s.input_topic, s.output_topic, s.dlq_topic)
    end = time.monotonic() + seconds
    wait = 0.2
    while True:
        try:
            facts = await kafka.topic_facts(s, names)
            missing = [n for n in names if n not in facts]
            if missing and s.create_topics:
                partitions = facts[s.input_topic].partitions if s.input_topic in facts else PARTITIONS
                made = await create(s, [p for p in plans(s, partitions) if p.name in missing])
                if refused := [f"{m.name}: {m.error}" for m in made if m.error]:
                    raise Missing("; ".join(refused))
                facts = await _all(s, names, end)
                missing = [n for n in names if n not in facts]
            if missing:
                raise Missing(
                    f"no topic {', '.join(missing)} at {s.brokers}: run `spinf-stream topics create` or set create_topics = true"
                )
            break
        except kafka.Away as e:
            if time.monotonic() + wait >= end:
                raise
            log.warning("%s; tried again in %.1f s", e, wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, 5.0)
    if facts[s.output_topic].partitions != facts[s.input_topic].partitions:
        log.warning(
            "%s has %d partitions, %s has %d: records without a key go to partition modulo %d",
            s.output_topic, facts[s.output_topic].partitions, s.input_topic, facts[s.input_topic].partitions,
            facts[s.output_topic].partitions,
        )  # fmt: skip
    return facts


async def refresh(s: Settings, facts: dict[str, TopicFacts]) -> None:
    """Ask again; what cannot be asked stays as it was."""
    try:
        facts.update(await kafka.topic_facts(s, tuple(facts)))
    except kafka.Away as e:
        log.warning("topic limits not refreshed: %s", e)


async def _all(s: Settings, names: tuple[str, ...], end: float) -> dict[str, TopicFacts]:
    """A topic that was just made shows up a moment later."""
    while len(facts := await kafka.topic_facts(s, names)) < len(names) and time.monotonic() < end:
        await asyncio.sleep(0.1)
    return facts
