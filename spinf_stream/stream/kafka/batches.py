"""Reading a record batch that has a header key which is not UTF-8 (DECISIONS 11).

The client decodes header keys while it unpacks a batch; one bad key makes every fetch of that batch fail, for ever, and
takes the good records beside it along. Here the fast reader goes first; only a batch that it refuses is read again by
a subclass of the client's own plain reader, which keeps such bytes as surrogate escapes for the worker to refuse.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

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
            return iter(_AnyHeaders(self._data))

    def __next__(self) -> Any:
        return next(self._fast)  # the marker of a control batch


class _Records(_MemoryRecordsPy):
    """The client's splitter of a fetch answer into batches."""

    def next_batch(self, *_: Any) -> Any:
        data = self._next_slice
        batch = super().next_batch()
        return batch if batch is None or data is None else _Batch(batch, data)


def install(fetcher: Any) -> None:
    """From now on this consumer's fetcher reads so.

    The client offers no place to hook in, so its handler of fetch answers is bound again with one name meaning another
    class; other consumers of the process keep theirs.
    """
    theirs = type(fetcher)._proc_fetch_request
    ours = types.FunctionType(theirs.__code__, {**theirs.__globals__, "MemoryRecords": _Records}, theirs.__name__)
    fetcher._proc_fetch_request = types.MethodType(ours, fetcher)
