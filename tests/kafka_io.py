"""Small async helpers around the topics of a test: make, fill, read to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.structs import ConsumerRecord

T = TypeVar("T")
Header = tuple[str, bytes | None]


class Rec(NamedTuple):
    """A record to produce; `partition` None = by key."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class RawKey(str):
    """A header key of any bytes: `RawKey.of(b"\\xff")`, for produce_batch."""

    raw: bytes

    @classmethod
    def of(cls, raw: bytes) -> RawKey:
        key = cls("raw")
        key.raw = raw
        return key

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.raw


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end in a loop of its own, from a plain or an async test."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def create(address: str, partitions: Mapping[str, int], settings: Mapping[str, str] | None = None) -> None:
    """Make topics and wait until each of their partitions has a leader. Raises when one is refused."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        wanted = [NewTopic(name, n, 1, topic_configs=dict(settings or {})) for name, n in partitions.items()]
        answer = await admin.create_topics(wanted)
        refused = [error for error in answer.topic_errors if error[1]]
        assert not refused, refused
        end = time.monotonic() + 20
        while not _led(await admin.describe_topics(list(partitions)), partitions):
            assert time.monotonic() < end, f"no leaders for {sorted(partitions)} within 20 s"
            await asyncio.sleep(0.05)
    finally:
        await admin.close()


def _led(topics: list[dict[str, Any]], partitions: Mapping[str, int]) -> bool:
    led = {t["topic"]: sum(p["leader"] >= 0 for p in t["partitions"]) for t in topics if t["error_code"] == 0}
    return led == dict(partitions)


async def produce(address: str, topic: str, records: Iterable[Rec], **settings: Any) -> list[tuple[int, int]]:
    """Send in order, acks=all; (partition, offset) of each."""
    producer = AIOKafkaProducer(bootstrap_servers=address, acks="all", **settings)
    await producer.start()
    try:
        sent = [
            await producer.send(topic, r.value, r.key, r.partition, timestamp_ms=r.timestamp_ms, headers=list(r.headers) or None)
            for r in records
        ]
        done = await asyncio.gather(*sent)
        return [(meta.partition, meta.offset) for meta in done]
    finally:
        await producer.stop()


async def produce_batch(address: str, topic: str, records: Sequence[Rec], partition: int = 0, codec: int = 0) -> int:
    """All in ONE producer batch, so that one bad record sits beside its neighbours; the first one's offset.

    Built by the client's pure Python builder, the one that takes a RawKey. codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
    """
    producer = AIOKafkaProducer(bootstrap_servers=address, acks="all")
    await producer.start()
    try:
        batch = producer.create_batch()
        batch._builder = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, 0, 2**20)
        for r in records:
            put = batch.append(key=r.key, value=r.value, timestamp=r.timestamp_ms, headers=list(r.headers))
            assert put is not None, "the records do not fit in one batch of 1 MiB"
        meta = await (await producer.send_batch(batch, topic, partition=partition))
        return meta.offset
    finally:
        await producer.stop()


async def read_all(address: str, topic: str, *, committed: bool = True, seconds: float = 30.0) -> list[ConsumerRecord]:
    """Every record that is there now, partition by partition in offset order. Raises TimeoutError.

    With `committed` only what transactions have committed; an open transaction ends the reading where it began.
    """
    isolation = "read_committed" if committed else "read_uncommitted"
    reader = AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level=isolation, auto_offset_reset="earliest", enable_auto_commit=False
    )
    await reader.start()
    try:
        parts = await _partitions(reader, topic)
        reader.assign(parts)
        ends = await reader.end_offsets(parts)
        found: list[ConsumerRecord] = []
        stop_at = time.monotonic() + seconds
        while True:
            behind = [part for part in parts if await reader.position(part) < ends[part]]
            if not behind:
                return sorted(found, key=lambda r: (r.partition, r.offset))
            if time.monotonic() > stop_at:
                raise TimeoutError(f"{topic}: {len(found)} records read, not at the end of {behind} within {seconds:g} s")
            for records in (await reader.getmany(timeout_ms=200)).values():
                found += records
    finally:
        await reader.stop()


async def follow(address: str, topic: str) -> AsyncIterator[ConsumerRecord]:
    """What is committed, from the beginning on and without end, through whatever the broker goes through."""
    reader = AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest",
        enable_auto_commit=False, request_timeout_ms=5000, retry_backoff_ms=50,
    )  # fmt: skip
    await reader.start()
    try:
        reader.assign(await _partitions(reader, topic))
        while True:
            try:
                found = await reader.getmany(timeout_ms=100)
            except KafkaError:
                await asyncio.sleep(0.1)
                continue
            for records in found.values():
                for r in records:
                    yield r
    finally:
        await reader.stop()


async def wait_for(address: str, topic: str, count: int, *, seconds: float = 60.0) -> list[ConsumerRecord]:
    """The records once there are at least `count` of them. Raises TimeoutError with how many there were."""
    end = time.monotonic() + seconds
    while len(records := await read_all(address, topic)) < count:
        if time.monotonic() > end:
            raise TimeoutError(f"{topic}: {len(records)} of {count} records within {seconds:g} s")
        await asyncio.sleep(0.2)
    return records


async def committed(address: str, group: str, topic: str) -> dict[int, int | None]:
    """The group's committed offset by partition; None = nothing committed."""
    reader = AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    await reader.start()
    try:
        return {part.partition: await reader.committed(part) for part in await _partitions(reader, topic)}
    finally:
        await reader.stop()


async def _partitions(reader: AIOKafkaConsumer, topic: str) -> list[TopicPartition]:
    for _ in range(100):
        await reader._client.force_metadata_update()
        numbers = reader._client.cluster.partitions_for_topic(topic)
        if numbers:
            return [TopicPartition(topic, n) for n in sorted(numbers)]
        reader._client.add_topic(topic)
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{topic}: no such topic")


async def settings_of(address: str, topic: str) -> dict[str, str]:
    """A topic's settings, as the broker says them."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        found: dict[str, str] = {}
        end = time.monotonic() + 20
        while not found:  # a topic that was just made shows up a moment later
            assert time.monotonic() < end, f"{topic}: no settings within 20 s"
            answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            found = {entry[0]: entry[1] for answer in answers for resource in answer.resources for entry in resource[4]}
        return found
    finally:
        await admin.close()
