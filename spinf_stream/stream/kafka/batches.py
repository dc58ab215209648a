"""Reading record batches that the client cannot read, or reads at a price.

A header key that is not UTF-8 (DECISIONS 11): the client decodes header keys while it unpacks a batch; one bad key makes
every fetch of that batch fail, for ever, and takes the good records beside it along. Here the fast reader goes first;
only a batch that it refuses is read again by a subclass of the client's own plain reader, which keeps such bytes as
surrogate escapes for the worker to refuse.

A damaged batch (checksum, structure, compression): the client raises in the middle of collecting, which withholds the
good records before it and drops those of other partitions that were collected already. Here it is the end of what was
fetched, and reported; asking again fetches it again. Nothing its header says is believed: where it ends is where the next
batch that can be read begins. The broker believes the header, so it may give the damaged batch in front of that one for
ever: when the next one begins where reading is, the damaged one is passed over.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchPy, _DefaultRecordPy
from aiokafka.record.memory_records import _MemoryRecordsPy
from aiokafka.record.util import decode_varint


class _AnyHeaders(_DefaultRecordBatchPy):
    """The client's reader of one batch, but for the decoding of header keys."""

    _pos: int

    def _read_msg(self, decode_varint: Any = decode_varint) -> _DefaultRecordPy:
        at = self._pos
        length, at = decode_varint(self._buffer, at)
        end = at + length
        _, at = decode_varint(self._buffer, at)  # attributes: none are defined
        delta, at = decode_varint(self._buffer, at)
        offset, at = decode_varint(self._buffer, at)
        key, at = self._bytes(at)
        value, at = self._bytes(at)
        count, at = decode_varint(self._buffer, at)
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            name, at = self._bytes(at)
            content, at = self._bytes(at)
            headers.append(((name or b"").decode("utf-8", "surrogateescape"), content))
        if at != end or end > len(self._buffer):
            raise CorruptRecordException(f"record {self.base_offset + offset}: {at - end} bytes past its length")
        self._pos = at
        appended = self.timestamp_type == self.LOG_APPEND_TIME
        timestamp = self.max_timestamp if appended else self.first_timestamp + delta
        return _DefaultRecordPy(self.base_offset + offset, timestamp, self.timestamp_type, key, value, headers)

    def _bytes(self, at: int) -> tuple[bytes | None, int]:
        length, at = decode_varint(self._buffer, at)
        return (None, at) if length < 0 else (bytes(self._buffer[at : at + length]), at + length)


class _Batch:
    """The client's fast batch, with a second way to its records."""

    def __init__(self, fast: Any, data: memoryview) -> None:
        self._fast = fast
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fast, name)

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter(list(self._fast))
        except (CorruptRecordException, UnicodeDecodeError):
            return iter(list(_AnyHeaders(self._data)))  # all of it or nothing

    def __next__(self) -> Any:
        return next(self._fast)  # the marker of a control batch


class _Records(_MemoryRecordsPy):
    """The client's splitter of a fetch answer into batches."""

    _next_slice: memoryview | None
    _pos: int
    _remaining_bytes: int

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        # The broker never cuts the first batch of an answer: its length is damaged, or the broker's file is cut. The client
        # would take it for one that is too large, and step over one offset after another.
        self._cut = self._next_slice is None and len(data) > 0

    def has_next(self) -> bool:
        return self._cut or super().has_next()

    def next_batch(self, *_: Any) -> Any:
        data = self._next_slice
        if data is None and self._cut:
            self._cut = False
            raise CorruptRecordException("its length is wrong")
        batch = super().next_batch()
        return batch if batch is None or data is None else _Batch(batch, data)

    def skip_to_sound(self, offset: int) -> int | None:
        """Go to the next batch that can be read and reaches past `offset`, and say where it begins; None: there is none."""
        while (data := self._next_slice) is not None and len(data) >= self.MIN_SLICE:
            before = data, self._pos, self._remaining_bytes
            try:
                batch = self.next_batch()
                begin = _begin(batch)
                reaches = batch.next_offset > offset
            except Exception:  # what a decompressor raises is not the client's
                continue
            if reaches:
                self._next_slice, self._pos, self._remaining_bytes = before
                return begin
        return None

    @property
    def exhausted(self) -> bool:
        """The lengths of the batches led exactly to the end of the bytes."""
        return self._next_slice is None and not self._remaining_bytes


def _begin(batch: Any) -> int:
    """The offset at which a batch begins. Raises when it cannot be read."""
    if not batch.validate_crc():
        raise CorruptRecordException("CRC")
    records = [] if batch.is_control_batch else list(batch)
    return int(batch.base_offset if hasattr(batch, "base_offset") else records[0].offset)  # the oldest format has none


def sound_after(data: bytes, offset: int) -> tuple[int | None, bool]:
    """Where the first batch of a fetch answer begins that can be read and reaches past `offset`, or None; and whether
    the lengths of the batches before it, or of all where there is none, led there."""
    records = _Records(data)
    found = records.skip_to_sound(offset)
    return found, found is not None or records.exhausted


class Damage(NamedTuple):
    partition: int
    offset: int  # where reading stops
    end: int | None  # where the next batch begins that can be read; None when none was fetched
    why: str


class _Unpacked(PartitionRecords):
    """The client's walk through one partition's fetched batches, which ends before a damaged one."""

    def __init__(self, report: Callable[[Damage], None], *given: Any) -> None:
        super().__init__(*given)
        self._report = report
        self._given = False

    def __next__(self) -> Any:
        while True:
            try:
                record = super().__next__()
            except StopIteration:
                raise
            except Exception as e:  # what a decompressor raises is not the client's
                if self._given:  # what was read is handed out first, and the next fetch begins with the damage
                    raise StopIteration from None
                end = self._records.skip_to_sound(self.next_fetch_offset)
                if end is None or end > self.next_fetch_offset:
                    self._report(Damage(self._tp.partition, self.next_fetch_offset, end, _why(e)))
                    raise StopIteration from None
                self._records_iterator = self._unpack_records()
            else:
                self._given = True
                return record


def _why(e: Exception) -> str:
    if not isinstance(e, CorruptRecordException):
        return f"it does not unpack ({type(e).__name__})"
    return "its checksum does not match" if "CRC" in str(e) else f"it does not unpack ({e})"


def install(fetcher: Any, report: Callable[[Damage], None]) -> None:
    """From now on this consumer's fetcher reads so; `report` is told of a damaged batch each time it is met.

    The client offers no place to hook in, so its handler of fetch answers is bound again with two names meaning other
    classes; other consumers of the process keep theirs.
    """
    theirs = type(fetcher)._proc_fetch_request
    names = {**theirs.__globals__, "MemoryRecords": _Records, "PartitionRecords": functools.partial(_Unpacked, report)}
    ours = types.FunctionType(theirs.__code__, names, theirs.__name__)
    fetcher._proc_fetch_request = types.MethodType(ours, fetcher)
