"""Reading record batches whose header keys are not UTF-8."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from kafka_io import RawKey

from spinf_stream.stream.kafka.batches import Damage, _Records, _Unpacked


def batch(headers: list[Any], codec: int = 0) -> bytes:
    b = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, 0, 2**20)
    for i, h in enumerate([[], headers, [("ok", b"1"), ("none", None)]]):
        assert b.append(i, 1000 + i, None if i == 0 else b"k%d" % i, b"v%d" % i if i < 2 else None, h)
    return bytes(b.build())


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_batch_with_any_header_key_is_read_whole(codec: int) -> None:
    records = _Records(batch([(RawKey.of(b"\xff\xfe"), b"x"), ("fine", b"y")], codec))
    assert records.has_next()
    read = records.next_batch()
    assert read.validate_crc() and not read.is_control_batch and read.next_offset == 3
    first, bad, last = list(read)
    assert (first.offset, first.timestamp, first.key, first.value, first.headers) == (0, 1000, None, b"v0", [])
    assert (bad.offset, bad.timestamp, bad.key, bad.value) == (1, 1001, b"k1", b"v1")
    assert [(k.encode("utf-8", "surrogateescape"), v) for k, v in bad.headers] == [(b"\xff\xfe", b"x"), (b"fine", b"y")]
    assert (last.key, last.value, last.headers) == (b"k2", None, [("ok", b"1"), ("none", None)])
    assert not records.has_next()


def test_a_good_batch_is_read_as_the_client_reads_it() -> None:
    data = batch([("a", b"1")])
    ours, theirs = list(_Records(data).next_batch()), list(MemoryRecords(data).next_batch())  # type: ignore[arg-type]
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in ours] == [
        (r.offset, r.timestamp, r.key, r.value, r.headers) for r in theirs
    ]


def walk(data: bytes, offset: int) -> tuple[list[int], list[Damage]]:
    """What one fetch from `offset` gives, and what it reports."""
    damage: list[Damage] = []
    part = _Unpacked(damage.append, TopicPartition("t", 3), _Records(data), [], offset, None, None, True, READ_COMMITTED)
    return [r.offset for r in part], damage


@pytest.mark.parametrize("fault", ["checksum", "compression"])
def test_damage_ends_a_fetch_and_is_reported_once_it_comes_first(fault: str) -> None:
    good, bad = batch([("a", b"1")]), bytearray(batch([("a", b"1")], codec=1))
    bad[:8] = (3).to_bytes(8)  # its offsets follow
    bad[-12] ^= 0x55
    if fault == "compression":  # a broken compressor: the checksum is right
        bad[17:21] = calc_crc32c(bytes(bad[21:])).to_bytes(4)
    whole = good + bytes(bad) + good
    assert walk(whole, 0) == ([0, 1, 2], [])
    given, (damage,) = walk(bytes(bad) + good, 3)
    assert given == [] and damage[:3] == (3, 3, 6)
    assert damage.why.startswith("its checksum" if fault == "checksum" else "it does not unpack (")


def test_a_header_that_makes_no_sense_is_not_believed() -> None:
    bad = bytearray(batch([("a", b"1")]))
    bad[:8] = (100).to_bytes(8)  # outside the checksum
    bad[-1] ^= 0x55
    assert walk(bytes(bad), 3)[1][0][:3] == (3, 3, None)


def test_a_broken_batch_stays_broken() -> None:
    data = bytearray(batch([(RawKey.of(b"\xff"), b"x")]))
    data[61] ^= 0x40  # the length of the first record
    with pytest.raises((CorruptRecordException, IndexError, ValueError)):
        list(_Records(bytes(data)).next_batch())
