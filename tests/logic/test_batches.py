"""Reading record batches whose header keys are not UTF-8."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from kafka_io import RawKey

from spinf_stream.stream.kafka import damage
from spinf_stream.stream.kafka.batches import Damage, _Records, _Unpacked, sound_after


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


def walk(data: bytes | bytearray, offset: int) -> tuple[list[int], list[Damage]]:
    """What one fetch from `offset` gives, and what it reports."""
    damage: list[Damage] = []
    part = _Unpacked(damage.append, TopicPartition("t", 3), _Records(bytes(data)), [], offset, None, None, True, READ_COMMITTED)
    return [r.offset for r in part], damage


def at(base: int, codec: int = 0) -> bytearray:
    """A good batch of offsets base to base + 2."""
    data = bytearray(batch([("a", b"1")], codec))
    data[:8] = base.to_bytes(8)  # outside the checksum
    return data


def broken(base: int, delta: int = 2) -> bytearray:
    data = at(base)
    data[23:27] = delta.to_bytes(4, signed=True)  # lastOffsetDelta, inside the checksum
    data[-1] ^= 0x55
    return data


@pytest.mark.parametrize("fault", ["checksum", "compression"])
def test_damage_ends_a_fetch_and_is_reported_once_it_comes_first(fault: str) -> None:
    good, bad = at(0), at(3, codec=1)
    bad[-12] ^= 0x55
    if fault == "compression":  # a broken compressor: the checksum is right
        bad[17:21] = calc_crc32c(bytes(bad[21:])).to_bytes(4)
    assert walk(good + bad + at(6), 0) == ([0, 1, 2], [])
    given, (damage,) = walk(bad + at(6), 3)
    assert given == [] and damage[:3] == (3, 3, 6)
    assert damage.why.startswith("its checksum" if fault == "checksum" else "it does not unpack (")


@pytest.mark.parametrize("delta", [-4, 0, 5, 0x01000004])
def test_the_header_of_a_damaged_batch_is_not_believed(delta: int) -> None:
    assert walk(broken(3, delta), 3)[1][0][:3] == (3, 3, None), "nothing else was fetched"
    assert walk(broken(3, delta) + at(6) + at(9), 3)[1][0][:3] == (3, 3, 6)
    assert walk(broken(3, delta) + broken(6) + at(9), 3)[1][0][:3] == (3, 3, 9), "two in a row"
    assert walk(broken(100, delta) + at(6), 3)[1][0][:3] == (3, 3, 6)


@pytest.mark.parametrize("codec", [0, 1])
def test_a_damaged_batch_in_front_of_the_one_that_was_asked_for_is_passed_over(codec: int) -> None:
    """The broker believes its header, and so begins every answer with it."""
    assert walk(broken(3, 0x01000004) + at(6, codec) + at(9), 6) == ([6, 7, 8, 9, 10, 11], [])
    assert walk(broken(3, 5) + at(6, codec) + at(9), 7) == ([7, 8, 9, 10, 11], []), "in the middle of the next one"
    assert walk(broken(3, 5) + broken(6) + at(9, codec), 9) == ([9, 10, 11], [])


@pytest.mark.parametrize("length", [2**30, -12, -100, 0, 5, 30])
def test_a_wrong_length_is_damage_without_an_end(length: int) -> None:
    bad = at(3)
    bad[8:12] = length.to_bytes(4, signed=True)
    given, (damage,) = walk(bad + at(6), 3)
    assert given == [] and damage[:3] == (3, 3, None)
    assert sound_after(bytes(bad + at(6)), 3) == (None, False)


def test_where_lengths_lead_is_told() -> None:
    assert sound_after(b"", 3) == (None, True)
    assert sound_after(bytes(broken(3)), 3) == (None, True)
    assert sound_after(bytes(broken(3) + at(6)[:-1]), 3) == (None, False), "a cut batch follows"
    assert sound_after(bytes(broken(3) + at(6)), 3) == (6, True)
    assert sound_after(bytes(at(3)), 4) == (3, True)


def end(monkeypatch: pytest.MonkeyPatch, stable: int, answer: Callable[[int], bytes | bytearray]) -> int | None:
    """Where the damage at offset 3 ends, of a broker that answers so."""

    async def fetch(_: Any, __: Any, offset: int, ___: int) -> tuple[bytes, int]:
        return bytes(answer(offset)), stable

    monkeypatch.setattr(damage, "_fetch", fetch)
    return asyncio.run(damage.end_of(None, TopicPartition("t", 3), 3))  # type: ignore[arg-type]


def test_the_end_of_damage_is_where_the_broker_has_the_next_good_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = broken(3, 0x01000004)
    assert end(monkeypatch, 1000, lambda o: bad + at(6)) == 6, "in one answer"
    assert end(monkeypatch, 1000, lambda o: bad if o < 6 else at(o // 3 * 3)) == 6, "the next segment of the log"
    assert end(monkeypatch, 1000, lambda o: bad if o < 6 else at(max(21, o // 3 * 3))) == 21, "and a gap"
    assert end(monkeypatch, 1000, lambda o: at(3)) == 3, "mended meanwhile"


def test_the_end_of_damage_is_never_past_what_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = broken(3, 0x01000004)
    assert end(monkeypatch, 6, lambda o: bad if o < 6 else b"") == 6, "the last batch"
    assert end(monkeypatch, 9, lambda o: bad + broken(6) if o < 9 else b"") == 9, "the last two"
    assert end(monkeypatch, 9, lambda o: bad + at(100)) is None


def test_the_end_of_damage_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = at(3)
    bad[8:12] = (len(bad) - 22).to_bytes(4)

    def stumbles(offset: int) -> bytes | bytearray:
        if 3 < offset < 500:
            raise CorruptRecordException("the broker's")
        return bad + at(6) if offset < 500 else at(offset // 3 * 3)

    assert end(monkeypatch, 1000, lambda o: bad + at(6)) is None
    assert end(monkeypatch, 400, stumbles) is None
    assert end(monkeypatch, 1000, stumbles) == 500, "its index knows a later one"


def test_a_broken_batch_stays_broken() -> None:
    data = bytearray(batch([(RawKey.of(b"\xff"), b"x")]))
    data[61] ^= 0x40  # the length of the first record
    with pytest.raises((CorruptRecordException, IndexError, ValueError)):
        list(_Records(bytes(data)).next_batch())
