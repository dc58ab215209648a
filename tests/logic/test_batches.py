"""Reading record batches whose header keys are not UTF-8."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.memory_records import MemoryRecords
from kafka_io import RawKey

from spinf_stream.stream.kafka.batches import _Records


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


def test_a_broken_batch_stays_broken() -> None:
    data = bytearray(batch([(RawKey.of(b"\xff"), b"x")]))
    data[61] ^= 0x40  # the length of the first record
    with pytest.raises((CorruptRecordException, IndexError, ValueError)):
        list(_Records(bytes(data)).next_batch())
