"""Again: dead letters back to where they came from, and a span of time of the input through the worker once more."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from typing import NamedTuple

from spinf_stream.config import Settings
from spinf_stream.stream import kafka
from spinf_stream.stream.dead_letters import PREFIX
from spinf_stream.stream.flow import Headers, Outgoing, Record
from spinf_stream.stream.kafka import scan

HOPS = "spinf.replay.hops"
MAX_HOPS = 3  # what has been dead four times is not cured by sending it again (DECISIONS 28)
UNIT = 200  # letters between two waits for the broker


class Letter(NamedTuple):
    record: Record  # as it lies in the dead-letter topic
    reason: str
    message: str
    origin: str  # topic-partition-offset
    hops: int

    @property
    def obstacle(self) -> str | None:
        """Why it cannot be sent again, or None."""
        names = {k for k, _ in self.record.headers}
        if left := [part for part in ("value", "headers", "key") if f"{PREFIX}{part}_sha256" in names]:
            return f"its {' and '.join(left)} did not fit into the dead-letter topic"
        if PREFIX + "headers" in names:
            return "a header key is not UTF-8"
        return f"replayed {self.hops} times already" if self.hops >= MAX_HOPS else None


class Replayed(NamedTuple):
    sent: int
    left: Counter[str]  # letters by what kept them from being sent


async def letters(
    s: Settings, since: int | None = None, until: int | None = None, reasons: Collection[str] = ()
) -> AsyncGenerator[Letter, None]:
    """Dead letters of a span of time (when they became dead is not known: by their records' timestamps). Raises Away."""
    async for record in scan.scan(s, s.dlq_topic, since, until):
        said = {k: (v or b"").decode("utf-8", "replace") for k, v in record.headers if k.startswith((PREFIX, HOPS))}
        reason = said.get(PREFIX + "reason", "?")
        if not reasons or reason in reasons:
            origin = "-".join(said.get(PREFIX + part, "?") for part in ("topic", "partition", "offset"))
            yield Letter(record, reason, said.get(PREFIX + "message", ""), origin, _hops(said.get(HOPS)))


def _hops(text: str | None) -> int:
    """Whoever writes to the input topic may write anything there; what we did not write is not sent round and round."""
    if text is None:
        return 0
    return int(text) if re.fullmatch("[0-9]{1,3}", text) else MAX_HOPS


async def replay_letters(
    s: Settings, since: int | None, until: int | None, reasons: Collection[str], dry_run: bool = False
) -> Replayed:
    """Send them to the input topic with their own key, bytes and headers and one hop more. Raises Away, PublishFailed.

    The letters stay where they are: the same call again sends them again.
    """
    facts = await kafka.topic_facts(s, (s.input_topic,))
    if s.input_topic not in facts:
        raise kafka.Away(f"there is no topic {s.input_topic} at {s.brokers}")
    producer = kafka.Producer(s, facts[s.input_topic].max_bytes)
    await producer.start()
    left: Counter[str] = Counter()
    unit: list[Outgoing] = []
    sent = 0
    try:
        async for letter in letters(s, since, until, reasons):
            if letter.obstacle is not None:
                left[letter.obstacle] += 1
                continue
            sent += 1
            unit.append(_again(letter, s.input_topic))
            if len(unit) >= UNIT:
                await _send(producer, unit, dry_run)
                unit = []
        await _send(producer, unit, dry_run)
    finally:
        await producer.stop()
    return Replayed(sent, left)


class Plan(NamedTuple):
    settings: Settings  # of a group of its own
    ends: dict[int, int]  # where each partition's reading stops
    records: int  # offsets in between, markers and holes included


async def plan(s: Settings, since: int | None, until: int | None, group: str | None, dedup: bool) -> Plan:
    """A group that begins at `since`, for a worker to run with until `ends`. Raises Away.

    Without dedup nothing is looked up in Redis nor remembered: everything is scored and published again.
    """
    import msgspec

    spans = await scan.ranges(s, s.input_topic, since, until)
    name = group or f"{s.group}.replay-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S}-{time.time_ns() % 1000:03d}"
    await scan.begin_at(s, name, s.input_topic, {n: span.start for n, span in spans.items()})
    changed = msgspec.structs.replace(s, group=name, redis_url=s.redis_url if dedup else "")
    return Plan(changed, {n: span.end for n, span in spans.items()}, sum(span.end - span.start for span in spans.values()))


def moment(text: str) -> int:
    """RFC 3339 (a date alone = midnight UTC; no zone = UTC) to ms since 1970; before that there are no records. Raises ValueError."""
    when = dt.datetime.fromisoformat(text)
    return max(0, int((when if when.tzinfo else when.replace(tzinfo=dt.UTC)).timestamp() * 1000))


def _again(letter: Letter, topic: str) -> Outgoing:
    r = letter.record
    kept: Headers = tuple(h for h in r.headers if not h[0].startswith(PREFIX) and h[0] != HOPS)
    value = None if any(k == PREFIX + "value_null" for k, _ in r.headers) and r.key is not None else r.value
    return Outgoing(topic, r.key, value, (*kept, (HOPS, b"%d" % (letter.hops + 1))), r.timestamp if r.timestamp >= 0 else None)


async def _send(producer: kafka.Producer, unit: list[Outgoing], dry_run: bool) -> None:
    if unit and not dry_run:
        await producer.send(unit)
