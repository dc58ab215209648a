"""A member of the consumer group, reading bytes from one input topic; partitions are named by number.

What aiokafka 0.14 leaves to us, each found by trying (reference/streaming.md section 0): it cannot say that partitions
were lost; its `assignment()` lies after a missed poll; a listener's exception is swallowed; heartbeats start only after
`on_partitions_assigned` has returned; while a rebalance goes on `getmany` waits for its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError, IllegalStateError

from spinf_stream.config import Settings
from spinf_stream.stream.flow import Record
from spinf_stream.stream.kafka import batches, damage
from spinf_stream.stream.kafka.common import CALL_SECONDS, CLIENT_ERRORS, Away, Damaged, Rebalanced, brief, connection

log = logging.getLogger(__name__)

READS = 5  # of a damaged batch: another replica may lead meanwhile, the damage may have been on the way
REREAD_SECONDS = 0.5  # to the second of them, then doubling
_NOBODY = TopicPartition("", 0)  # polling it keeps the membership alive and touches no buffer


class Listener(Protocol):
    async def revoked(self, lost: bool) -> None: ...

    def assigned(self, partitions: list[int]) -> None: ...


class _Unread(NamedTuple):
    what: batches.Damage
    reads: int
    again: float  # monotonic seconds


class Consumer:
    """One member of the group, reading one topic. All methods but the coroutines are immediate."""

    def __init__(self, s: Settings) -> None:
        self._s = s
        self._turn = 0
        self._unread: dict[int, _Unread] = {}  # by partition
        rebalance = max(s.session_timeout_ms, int(1000 * (s.drain_seconds + 10)))
        self._client = AIOKafkaConsumer(
            **connection(s), group_id=s.group, enable_auto_commit=False, auto_offset_reset="earliest",
            isolation_level="read_committed", session_timeout_ms=s.session_timeout_ms,
            heartbeat_interval_ms=max(100, min(3000, s.session_timeout_ms // 6)),
            max_poll_interval_ms=s.max_poll_interval_ms, rebalance_timeout_ms=rebalance,
            request_timeout_ms=max(40_000, rebalance + 5_000),  # a join waits for the slowest member's drain
            fetch_max_bytes=16 * 2**20, fetch_max_wait_ms=200,
        )  # fmt: skip

    async def start(self, listener: Listener) -> None:
        """Connect and join. Raises Away when no broker answers."""
        try:
            await self._client.start()
        except CLIENT_ERRORS as e:
            await self._client.stop()
            raise Away(f"Kafka at {self._s.brokers}: {brief(e)}") from None
        batches.install(self._client._fetcher, self._damage)
        self._client.subscribe([self._s.input_topic], listener=_Adapter(self, listener))

    async def poll(self, wanted: Mapping[int, int], timeout: float) -> list[Record]:
        """At most so many records of each partition, beginning with another one every time. Raises Away, Damaged.

        To be called all the time, with no partitions while paused: the call itself keeps the membership.
        """
        now = time.monotonic()
        for n, unread in list(self._unread.items()):
            if n in wanted and unread.reads >= READS:
                await self._give_up(n, unread)
        tps = [self._tp(n) for n in wanted if n not in self._unread or now >= self._unread[n].again]
        if tps:
            self._turn = (self._turn + 1) % len(tps)
            tps = tps[self._turn :] + tps[: self._turn]
        out: list[Record] = []
        try:
            for tp in tps:
                for found in (await self._client.getmany(tp, max_records=wanted[tp.partition])).values():
                    out += [_record(r) for r in found]
            if not out:
                most = min(wanted.values(), default=1)
                waited = await self._client.getmany(*(tps or (_NOBODY,)), timeout_ms=int(1000 * timeout), max_records=most)
                out += [_record(r) for found in waited.values() for r in found]
        except CLIENT_ERRORS as e:
            if not out:
                raise Away(f"reading {self._s.input_topic}: {brief(e)}") from None
        for r in out:
            self._unread.pop(r.partition, None)
        return out

    async def _give_up(self, partition: int, unread: _Unread) -> None:
        """Raises Damaged, unless it can be read by now."""
        offset = unread.what.offset
        try:
            async with asyncio.timeout(CALL_SECONDS):
                end = await damage.end_of(self._client, self._tp(partition), offset)
        except CLIENT_ERRORS as e:
            end, failed = None, brief(e)
        else:
            failed = ""
        if self._unread.get(partition) is not unread:
            return  # opened anew meanwhile
        if failed:  # other partitions go on; this one is read once more before that
            log.warning("%s-%d: where the damage at offset %d ends is asked again: %s", self._s.input_topic, partition, offset, failed)
            self._unread[partition] = unread._replace(reads=READS - 1, again=time.monotonic() + REREAD_SECONDS * 2**READS)
            return
        if end == offset:
            del self._unread[partition]
            return
        raise Damaged(self._s.input_topic, partition, offset, end, unread.what.why)

    def _damage(self, what: batches.Damage) -> None:
        """A damaged batch was met; its partition is left alone for a while, then read again."""
        # The broker may give the damaged batch in front of the next one for ever: a fetch has to reach past it.
        self._client._fetcher._max_partition_fetch_bytes = damage.WIDE
        known, now = self._unread.get(what.partition), time.monotonic()
        if known and known.what.offset != what.offset:
            known = None
        if known and now < known.again:
            return  # one waiting call of the client fetches again and again
        reads = known.reads + 1 if known else 1
        self._unread[what.partition] = _Unread(what, reads, now + REREAD_SECONDS * 2 ** (reads - 1))
        log.warning("%s-%d: offset %d cannot be read, %d times of %d: %s", self._s.input_topic, what.partition, what.offset, reads, READS, what.why)

    def pause(self, partitions: Iterable[int]) -> None:
        self._client.pause(*(tp for tp in map(self._tp, partitions) if tp in self._client.assignment()))

    def resume(self, partitions: Iterable[int]) -> None:
        self._client.resume(*(tp for tp in map(self._tp, partitions) if tp in self._client.assignment()))

    def seek(self, partition: int, offset: int) -> None:
        self._unread.pop(partition, None)
        self._client.seek(self._tp(partition), offset)

    def position(self, partition: int) -> int | None:
        """The next offset to be handed out; None while unknown."""
        state = self._state(partition)
        return state.position if state is not None and state.has_valid_position else None

    async def committed(self, partition: int) -> int | None:
        return await self._ask(self._client.committed(self._tp(partition)))

    async def beginning(self, partition: int) -> int:
        tp = self._tp(partition)
        return int((await self._ask(self._client.beginning_offsets([tp])))[tp])

    async def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Last stable offsets, asked of the broker."""
        tps = [self._tp(n) for n in partitions]
        return {tp.partition: end for tp, end in (await self._ask(self._client.end_offsets(tps))).items()}

    async def commit(self, offsets: Mapping[int, int], timeout: float = CALL_SECONDS) -> None:
        """Raises Rebalanced, Away."""
        try:
            async with asyncio.timeout(timeout):
                await self._client.commit({self._tp(n): offset for n, offset in offsets.items()})
        except (CommitFailedError, IllegalStateError) as e:
            raise Rebalanced(brief(e)) from None
        except CLIENT_ERRORS as e:
            raise Away(f"commit: {brief(e)}") from None

    async def is_member(self) -> bool:
        """Ask the coordinator now: a worker that was stopped for long does not know yet that it was expelled."""
        coordinator = self._client._coordinator
        if coordinator is None or self._expelled():
            return False
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return bool(await coordinator._do_heartbeat())
        except CLIENT_ERRORS:
            return False

    @property
    def broken(self) -> str | None:
        """Why the client can go on no more, or None."""
        task = self._client._coordinator and self._client._coordinator._coordination_task
        if not task or not task.done():
            return None
        return "the group coordination ended" if task.cancelled() else brief(task.exception())

    async def stop(self, timeout: float = 5.0) -> None:
        """Leave the group."""
        try:
            async with asyncio.timeout(timeout):
                await self._client.stop()
        except CLIENT_ERRORS as e:
            log.warning("leaving the group: %s", brief(e))

    def _expelled(self) -> bool:
        c = self._client._coordinator
        return c is None or c.generation < 0 or not c.member_id

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._s.input_topic, partition)

    def _state(self, partition: int) -> Any:
        subscription = self._client._subscription.subscription
        assignment = subscription and subscription.assignment
        return assignment.state_value(self._tp(partition)) if assignment else None

    async def _ask(self, work: Any) -> Any:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await work
        except CLIENT_ERRORS as e:
            raise Away(brief(e)) from None


class _Adapter(ConsumerRebalanceListener):
    def __init__(self, consumer: Consumer, listener: Listener) -> None:
        self._consumer, self._listener = consumer, listener

    async def on_partitions_revoked(self, revoked: Any) -> None:
        await self._listener.revoked(self._consumer._expelled())

    def on_partitions_assigned(self, assigned: Any) -> None:
        # no await before the pause: the fetcher is running already
        partitions = sorted(tp.partition for tp in assigned)
        self._consumer.pause(partitions)
        self._listener.assigned(partitions)


def _record(r: Any) -> Record:
    return Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
