"""Producers: everything is acknowledged by all replicas, and a producer that failed is never used again.

aiokafka's transactional offset commits carry no member id or generation, so a producer fences other workers only by its
transactional id: one id an input partition, started before the committed offset is read (reference/streaming.md 0.1).
A fatal producer shows as a bare KafkaError, so no attempt is made to tell what it could still survive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerClosed,
    RecordListTooLargeError,
    UnknownError,
)
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from spinf_stream.config import Settings
from spinf_stream.stream.flow import Headers, Outgoing
from spinf_stream.stream.kafka.common import CLIENT_ERRORS, READY_SECONDS, Away, PublishFailed, brief, connection

log = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 1_048_576  # of a record, where the broker does not say
TRANSACTION_SECONDS = 30.0  # under the broker's 60 s, so that we know before it aborts


def size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of a record in a batch of its own, uncompressed: what the client and the broker hold against their limits."""
    return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, list(headers)))


class Producer:
    """Acknowledged by all replicas. With `transactional_id` every unit is one transaction with its offsets."""

    def __init__(self, s: Settings, max_bytes: int, transactional_id: str | None = None) -> None:
        self._s = s
        self._transactional_id = transactional_id
        self._client = AIOKafkaProducer(
            **connection(s), acks="all", enable_idempotence=s.producer_idempotence, transactional_id=transactional_id,
            compression_type=None if s.compression == "none" else s.compression,
            max_request_size=max(DEFAULT_MAX_BYTES, max_bytes), max_batch_size=min(2**18, max_bytes),
        )  # fmt: skip

    async def start(self) -> None:
        """Connect; with a transactional id also fence its other users and end their transaction. Raises Away."""
        try:
            async with asyncio.timeout(TRANSACTION_SECONDS):
                await self._client.start()
        except BaseException as e:
            await self.stop()
            if isinstance(e, CLIENT_ERRORS):
                hint = "; a broker without idempotent producers wants producer_idempotence = false" if isinstance(e, UnknownError) else ""
                raise Away(f"Kafka producer at {self._s.brokers}: {brief(e)}{hint}") from None
            raise

    async def ready(self, topics: Iterable[str]) -> None:
        """The topics can be written as far as the metadata says. Raises Away; nothing was sent, the producer lives."""
        for topic in topics:
            try:
                async with asyncio.timeout(READY_SECONDS):
                    await self._client.partitions_for(topic)
            except CLIENT_ERRORS as e:
                raise Away(f"topic {topic}: {brief(e)}") from None

    async def send(self, unit: Sequence[Outgoing]) -> None:
        """All of them, in order, acknowledged. Raises PublishFailed; then, or when cancelled, what is still queued of them
        is never written: it would stand before what is sent again."""
        sent: list[asyncio.Future[Any]] = []
        refused: list[BaseException] = []  # what was withdrawn for it fails after it

        def heard(done: asyncio.Future[Any]) -> None:  # before the client takes the next batch of that partition
            if done.cancelled():
                self._withdraw(sent)
            elif (e := done.exception()) is not None:
                refused.append(e)
                self._withdraw(sent)

        try:
            for o in unit:
                done = await self._client.send(
                    o.topic, o.value, o.key, o.partition, timestamp_ms=o.timestamp, headers=list(o.headers)
                )
                sent.append(done)
                done.add_done_callback(heard)
                if refused:  # while this one waited for its place
                    raise refused[0]
            for done in sent:
                await asyncio.shield(done)
        except (KafkaError, OSError, AssertionError) as e:
            raise _failed(refused[0] if refused else e) from None
        finally:
            self._withdraw(sent)

    async def transact(self, unit: Sequence[Outgoing], partition: int, offset: int) -> None:
        """The unit and the input offset in one transaction. Raises PublishFailed: it may even have been committed."""
        try:
            async with asyncio.timeout(TRANSACTION_SECONDS):
                await self._client.begin_transaction()
                await self.send(unit)
                offsets = {TopicPartition(self._s.input_topic, partition): offset}
                await self._client.send_offsets_to_transaction(offsets, self._s.group)
                await self._client.commit_transaction()
        except CLIENT_ERRORS as e:
            raise _failed(e) from None

    def _withdraw(self, sent: Sequence[asyncio.Future[Any]]) -> None:
        """Fail the batches with these records that were never begun to be sent, and whoever's else is in them."""
        ours = {f for f in sent if not f.done()}
        if not ours:
            return
        waiting = self._client._message_accumulator._batches
        for tp, batches in list(waiting.items()):
            gone = [b for b in batches if b.retry_count == 0 and any(f in ours for f, _ in b._msg_futures)]
            for batch in gone:
                batches.remove(batch)
                batch.failure(ProducerClosed())
                batch._drain_waiter.exception()  # nobody need wait for it
            if not batches:
                del waiting[tp]

    async def stop(self, timeout: float = 3.0) -> None:
        """Whoever still waits for an acknowledgement gets it or an error. An open transaction is aborted, by us or by
        the next owner of its id."""
        client = self._client
        try:
            async with asyncio.timeout(timeout):
                if self._transactional_id and client._txn_manager.is_in_transaction():
                    await client.abort_transaction()
                await client.stop()
        except CLIENT_ERRORS as e:
            log.debug("closing a producer: %s", brief(e))
            client._message_accumulator.fail_all(ProducerClosed())
            if client._sender.sender_task is not None:
                client._sender.sender_task.cancel()
            await client.client.close()


def _failed(e: BaseException) -> PublishFailed:
    if isinstance(e, MessageSizeTooLargeError | RecordListTooLargeError):
        return PublishFailed("too_large", brief(e))
    return PublishFailed("timestamp" if isinstance(e, InvalidTimestampError) else "other", brief(e))
