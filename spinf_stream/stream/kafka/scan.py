"""Looking through a topic by time, outside any group; and giving a new group its place to begin."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from spinf_stream.config import Settings
from spinf_stream.stream.flow import Record
from spinf_stream.stream.kafka import batches
from spinf_stream.stream.kafka.common import CLIENT_ERRORS, Away, brief, connection


class Range(NamedTuple):
    start: int  # offset of the first record
    end: int  # offset after the last one


async def ranges(s: Settings, topic: str, since: int | None, until: int | None) -> dict[int, Range]:
    """Offsets by partition of the records from `since` to before `until` (ms since 1970; None = all). Raises Away.

    By the records' own timestamps where the topic keeps those: in each partition from the first record that is not
    before `since` to the first that is not before `until`.
    """
    async with _reader(s) as reader:
        return await _ranges(reader, topic, since, until)


async def scan(s: Settings, topic: str, since: int | None = None, until: int | None = None) -> AsyncGenerator[Record, None]:
    """The committed records of that time that are there now, partition after partition. Raises Away."""
    damage: list[batches.Damage] = []
    async with _reader(s) as reader:
        for number, (start, end) in sorted((await _ranges(reader, topic, since, until)).items()):
            part = TopicPartition(topic, number)
            reader.assign([part])
            batches.install(reader._fetcher, damage.append)
            reader.seek(part, start)
            while await reader.position(part) < end:
                for found in (await reader.getmany(part, timeout_ms=500)).values():
                    for r in found:
                        if r.offset < end:
                            yield Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
                if damage:
                    raise Away(f"{topic}-{number}: offset {damage[0].offset} cannot be read: {damage[0].why}")


async def begin_at(s: Settings, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit the offsets as a group's own, but where it has some already: those are gone on from. Raises Away."""
    async with _reader(s, group) as writer:
        parts = {TopicPartition(topic, n): offset for n, offset in offsets.items()}
        writer.assign(list(parts))
        if fresh := {p: offset for p, offset in parts.items() if await writer.committed(p) is None}:
            await writer.commit(fresh)


async def _ranges(reader: AIOKafkaConsumer, topic: str, since: int | None, until: int | None) -> dict[int, Range]:
    everything = await reader._client.fetch_all_metadata()  # asking for one topic would make it, where brokers do that
    parts = [TopicPartition(topic, n) for n in sorted(everything.partitions_for_topic(topic) or ())]
    if not parts:
        raise Away(f"there is no topic {topic}: run `spinf-stream topics create`")
    await reader._client.set_topics([topic])
    first, last = await reader.beginning_offsets(parts), await reader.end_offsets(parts)
    if since is not None:
        first = await _at(reader, parts, since, last)
    if until is not None:
        last = await _at(reader, parts, until, last)
    return {p.partition: Range(first[p], max(first[p], last[p])) for p in parts}


async def _at(
    reader: AIOKafkaConsumer, parts: list[TopicPartition], time: int, last: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    found = await reader.offsets_for_times(dict.fromkeys(parts, time))
    return {p: min(found[p].offset, last[p]) if found[p] is not None else last[p] for p in parts}


@contextlib.asynccontextmanager
async def _reader(s: Settings, group: str | None = None) -> AsyncIterator[AIOKafkaConsumer]:
    reader = AIOKafkaConsumer(
        **connection(s), group_id=group, isolation_level="read_committed", auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        await reader.start()
        yield reader
    except CLIENT_ERRORS as e:
        raise Away(f"Kafka at {s.brokers}: {brief(e)}") from None
    finally:
        await reader.stop()
