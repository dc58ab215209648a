"""Where a damaged batch ends, asked of the broker: what its own header says is worth nothing."""

from __future__ import annotations

from typing import Any

import aiokafka.errors
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.protocol.fetch import FetchRequest

from spinf_stream.stream.kafka.batches import sound_after

WIDE = 16 * 2**20  # bytes of one fetch: past a damaged batch of any usual size
NARROW = 2**20  # where one batch is enough: the broker gives the first one whole, however large
WAIT_MS = 100
STUMBLES = (aiokafka.errors.CorruptRecordException, aiokafka.errors.UnknownError)  # a broker's, over its own file


async def end_of(client: AIOKafkaConsumer, tp: TopicPartition, offset: int) -> int | None:
    """Where the first batch begins that can be read past `offset`, at which one cannot; that offset itself where it can
    now. The end of what is readable (the last stable offset) where nothing follows, never past it; None = not to be known.
    Raises the client's errors.

    Fetching there gives what follows in the same segment of the log. Where that does not help, offsets behind it are
    tried by halves: a broker that cannot step over the batch either still finds later ones through its index.
    """
    data, stable = await _fetch(client, tp, offset, WIDE)
    found, whole = sound_after(data, offset)
    if found is not None:
        return max(found, offset) if found <= stable else None
    bad, good, end = offset, stable, None
    while good - bad > 1:
        middle = (bad + good) // 2
        try:
            found, _ = sound_after((await _fetch(client, tp, middle, NARROW))[0], middle)
        except STUMBLES:
            found = None
        if found is None or found > stable:
            bad = middle
        else:
            good, end = middle, max(middle, found)  # from a batch's first offset the index may lead elsewhere than from its last
    if end is None and whole and data and stable > offset:  # nothing but damage up to there, and batches end there
        return stable
    return end


async def _fetch(client: AIOKafkaConsumer, tp: TopicPartition, offset: int, most: int) -> tuple[bytes, int]:
    """Bytes from that offset on, and the last stable offset."""
    node = client._client.cluster.leader_for_partition(tp)
    if node is None or node < 0:
        client._client.force_metadata_update()
        raise aiokafka.errors.LeaderNotAvailableError(tp)
    wanted = [(tp.topic, [(tp.partition, offset, most)])]
    answer: Any = await client._client.send(node, FetchRequest(WAIT_MS, 1, most, READ_COMMITTED, wanted))
    ((_, ((_, error, _, stable, *_, data),)),) = answer.topics
    if error:
        raise aiokafka.errors.for_code(error)(tp)
    return data or b"", stable
