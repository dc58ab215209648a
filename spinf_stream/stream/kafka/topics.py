"""Topics for the operator's commands: create them, look through one. No group, no commits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from spinf_stream.config import Settings
from spinf_stream.stream.flow import Record
from spinf_stream.stream.kafka.common import CALL_SECONDS, Away, connection

EXISTS = 36  # the broker's error code for a topic that is there already


class TopicPlan(NamedTuple):
    name: str
    partitions: int
    settings: Mapping[str, str]  # of the topic, such as retention.ms


class Made(NamedTuple):
    name: str
    partitions: int  # that it has now; 0 = it was refused
    created: bool
    error: str = ""


async def create(s: Settings, plans: Sequence[TopicPlan], replication: int | None = None) -> list[Made]:
    """Make the topics that are missing, leave the others as they are. `replication` None = the broker's default.

    Raises Away.
    """
    async with _admin(s) as admin:
        wanted = []
        for plan in plans:
            topic = NewTopic(plan.name, plan.partitions, 1, topic_configs=dict(plan.settings))
            topic.replication_factor = -1 if replication is None else replication  # its constructor refuses -1
            wanted.append(topic)
        answer = await admin.create_topics(wanted)
        said = {name: (code, message) for name, code, message in answer.topic_errors}
        there = await _there(admin)
    made = []
    for plan in plans:
        code, message = said[plan.name]
        refused = "" if code in (0, EXISTS) else message or f"error {code}"
        partitions = 0 if refused else there.get(plan.name, plan.partitions)
        made.append(Made(plan.name, partitions, code == 0, refused))
    return made


async def read(s: Settings, topic: str, *, last: int | None, follow: bool) -> AsyncGenerator[Record, None]:
    """Committed records that are there now, oldest first by time stamp: all, or the `last` few; then, with `follow`,
    whatever comes in. Raises Away."""
    async with _admin(s) as admin:
        partitions = (await _there(admin)).get(topic, 0)
    if not partitions:
        raise Away(f"there is no topic {topic}: run `spinf-stream topics create`")
    reader = AIOKafkaConsumer(
        **connection(s), isolation_level="read_committed", auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        try:
            await reader.start()
            for record in await _there_now(reader, [TopicPartition(topic, n) for n in range(partitions)], last):
                yield record
            while follow:
                for found in (await reader.getmany(timeout_ms=500)).values():
                    for r in found:
                        yield _record(r)
        except (KafkaError, OSError) as e:
            raise Away(f"Kafka at {s.brokers}: {type(e).__name__}") from None
    finally:
        await reader.stop()


async def _there_now(reader: AIOKafkaConsumer, parts: list[TopicPartition], last: int | None) -> list[Record]:
    reader.assign(parts)
    first, ends = await reader.beginning_offsets(parts), await reader.end_offsets(parts)
    for part in parts:
        reader.seek(part, first[part] if last is None else max(first[part], ends[part] - last))
    found: list[Record] = []
    stop_at = time.monotonic() + CALL_SECONDS  # since the last record: an offset may hold a transaction's marker
    while [part for part in parts if await reader.position(part) < ends[part]] and time.monotonic() < stop_at:
        for part, records in (await reader.getmany(timeout_ms=500)).items():
            stop_at = time.monotonic() + CALL_SECONDS
            found += [_record(r) for r in records if r.offset < ends[part]]
            if late := [r.offset for r in records if r.offset >= ends[part]]:
                reader.seek(part, late[0])  # arrived meanwhile: for `follow`
    found.sort(key=lambda r: (r.timestamp, r.partition, r.offset))
    return found if last is None else found[max(0, len(found) - last) :]


async def _there(admin: AIOKafkaAdminClient) -> dict[str, int]:
    """Partitions of each topic."""
    return {t["topic"]: len(t["partitions"]) for t in await admin.describe_topics() if t["error_code"] == 0}


def _record(r: ConsumerRecord) -> Record:
    return Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)


@contextlib.asynccontextmanager
async def _admin(s: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(**connection(s), request_timeout_ms=int(1000 * CALL_SECONDS))
    try:
        await admin.start()
        yield admin
    except (KafkaError, OSError) as e:
        raise Away(f"Kafka at {s.brokers}: {type(e).__name__}") from None
    finally:
        await admin.close()
