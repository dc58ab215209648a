"""Dead letters: the record's own bytes, key and headers, plus why; and the limits that stop a worker gone wrong.

    spinf.error.reason       one of records.Reason          spinf.error.topic, .partition, .offset, .timestamp
    spinf.error.message      at most 1,000 bytes            spinf.error.attempts     passes begun
    spinf.error.worker       host:pid                       spinf.error.fingerprint

What does not fit into the topic leaves its value, then its headers, then its key behind: for each that is missing there
is spinf.error.<part>_sha256 and spinf.error.<part>_length. A null value with a null key cannot be sent: it becomes an
empty one with spinf.error.value_null. Headers whose keys are not UTF-8 go, all of them, into spinf.error.headers:
base64 of msgpack [[key, value], ...], both bytes.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from spinf_stream.records import Reason
from spinf_stream.stream.flow import Headers, Outgoing, Record

PREFIX = "spinf.error."
WORKER = f"{socket.gethostname()}:{os.getpid()}"
MESSAGE_BYTES = 1000
RATIO_WINDOW = 1000  # records

Size = Callable[[bytes | None, bytes | None, Headers], int]  # key, value, headers -> bytes in the topic


def usable(headers: Headers) -> bool:
    """All keys are UTF-8."""
    return not any("\udc80" <= c <= "\udcff" for key, _ in headers for c in key)


def dead_letter(
    record: Record, reason: Reason, message: str, topic: str, fingerprint: str, attempts: int, size: Size, limit: int
) -> Outgoing:
    """The record that goes to `topic`, made to fit in `limit` bytes as `size` counts them."""
    ours: list[tuple[str, bytes | None]] = [
        (PREFIX + "reason", reason.encode()),
        (PREFIX + "message", _clip(message)),
        (PREFIX + "topic", record.topic.encode()),
        (PREFIX + "partition", b"%d" % record.partition),
        (PREFIX + "offset", b"%d" % record.offset),
        (PREFIX + "timestamp", b"%d" % record.timestamp),
        (PREFIX + "attempts", b"%d" % attempts),
        (PREFIX + "worker", WORKER.encode()),
        (PREFIX + "fingerprint", fingerprint.encode()),
    ]
    key, value, theirs = record.key, record.value, record.headers
    packed = _pack(theirs)
    if not usable(theirs):
        theirs = ((PREFIX + "headers", base64.b64encode(packed)),)
    else:
        theirs = tuple(h for h in theirs if not h[0].startswith(PREFIX))
    if value is None and key is None:
        value = b""
        ours.append((PREFIX + "value_null", b"1"))
    if size(key, value, (*theirs, *ours)) > limit and value:
        ours += _digest("value", value)
        value = b""
    if size(key, value, (*theirs, *ours)) > limit and theirs:
        ours += _digest("headers", packed)
        theirs = ()
    if size(key, value, (*theirs, *ours)) > limit and key:
        ours += _digest("key", key)
        key, value = None, b"" if value is None else value
    return Outgoing(topic, key, value, (*theirs, *ours), record.timestamp if record.timestamp >= 0 else None)


class Limits:
    """Counts the dead among what the broker has acknowledged. `tripped` says why the worker must stop, or is None.

    max_run in a row, or more than max_ratio of the last 1,000: a bad deploy stops instead of pouring the topic out.
    """

    def __init__(self, max_run: int, max_ratio: float) -> None:
        self.max_run = max_run
        self.max_ratio = max_ratio
        self.tripped: str | None = None
        self._run = 0
        self._last: deque[bool] = deque(maxlen=RATIO_WINDOW)
        self._dead = 0

    def fits(self, under_way: Iterable[bool], unit: Sequence[bool]) -> int:
        """How many of a unit may be sent: up to the one that trips, at least one. What is under way is taken as
        acknowledged, so that many partitions together send no more than one would."""
        ahead = copy.copy(self)
        ahead._last = self._last.copy()
        for dead in under_way:
            ahead.count(dead)
        for n, dead in enumerate(unit, 1):
            ahead.count(dead)
            if ahead.tripped:
                return n
        return len(unit)

    def count(self, dead: bool) -> None:
        if len(self._last) == RATIO_WINDOW:
            self._dead -= self._last[0]
        self._last.append(dead)
        self._dead += dead
        self._run = self._run + 1 if dead else 0
        if self._run >= self.max_run:
            self.tripped = f"{self._run} dead letters in a row (dlq_max_run)"
        elif len(self._last) == RATIO_WINDOW and self._dead > self.max_ratio * RATIO_WINDOW:
            self.tripped = f"{self._dead} dead letters in the last {RATIO_WINDOW} records (dlq_max_ratio {self.max_ratio:g})"


def _clip(message: str) -> bytes:
    return message.encode("utf-8", "replace")[:MESSAGE_BYTES].decode("utf-8", "ignore").encode()


def _pack(headers: Headers) -> bytes:
    return msgspec.msgpack.encode([[k.encode("utf-8", "surrogateescape"), v] for k, v in headers])


def _digest(part: str, data: bytes) -> list[tuple[str, bytes | None]]:
    return [
        (f"{PREFIX}{part}_sha256", hashlib.sha256(data).hexdigest().encode()),
        (f"{PREFIX}{part}_length", b"%d" % len(data)),
    ]
