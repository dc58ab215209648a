"""Passes begun whose end nobody saw, as Redis holds them (dedup.py writes them): for each text a string of entries.

    begun   seconds (8 bytes) | process (4) | number (4) | hmac-sha256 over "begun", the key and those 16, its first 16
    ended   the same 16 bytes | hmac-sha256 over "ended", the key and those 16, its first 16

Entries are only ever appended, which is as atomic as a counter. A pass that came back deletes the whole string: its texts
do not bring the engine down. One that was cut short in good order proves nothing about its texts, so that it takes back
its own entry alone. What could not be written at its time is owed, and written once Redis answers again. What a process
wrote that is there still, this one or another (spinf:alive:<process>), does not count: no pass of it took it down. What is
left and counts is the passes of processes that are gone without a word, and of those that met EngineFatal.

The signature keeps who can only write to Redis from making a text look poisonous. Who can read there too can keep real
entries and put them back while they are fresh (an hour): enough of those, gathered from passes that ended well, make that
one text dead.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

SECONDS = 3600  # that an entry counts
ENTRY = 32  # bytes
MOST_ENTRIES = 256  # looked at, the newest: a text is dead long before
MOST_OWED = 10_000  # a few MB; the oldest are let go, and count until they are an hour old


class Entry(NamedTuple):
    name: str  # key in Redis
    body: bytes  # the first 16 bytes


class Attempts:
    """Those of this process: under way, owed; and what is read of all."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.process = secrets.token_bytes(4)
        self.begun = 0  # entries, as numbers
        self._open: dict[str, list[Entry]] = {}
        self._owed: dict[Entry, None] = {}  # in order

    def begin(self, names: Iterable[str]) -> list[tuple[str, bytes]]:
        """(key, what to append): a pass begins, and whatever becomes of the writing, it may have been done."""
        out = []
        for name in names:
            self.begun = (self.begun + 1) % 2**32
            entry = Entry(name, int(time.time()).to_bytes(8) + self.process + self.begun.to_bytes(4))
            self._open.setdefault(name, []).append(entry)
            out.append((name, entry.body + self._signature(b"begun", entry)))
        return out

    def take(self, names: Iterable[str]) -> list[Entry]:
        """The entries of a pass that is over."""
        return [entry for name in names for entry in self._open.pop(name, ())]

    def owe(self, entries: Iterable[Entry]) -> None:
        self._owed.update(dict.fromkeys(entries))
        while len(self._owed) > MOST_OWED:
            del self._owed[next(iter(self._owed))]

    def owed(self, most: int) -> list[Entry]:
        return list(islice(self._owed, most))

    def ended(self, entries: Iterable[Entry]) -> list[tuple[str, bytes]]:
        """(key, what to append)."""
        return [(e.name, e.body + self._signature(b"ended", e)) for e in entries]

    def paid(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._owed.pop(entry, None)

    def count(self, name: str, value: bytes) -> tuple[list[bytes], bool]:
        """For each pass of another process that nobody saw the end of, its process; and whether all that is there is
        signed, each pass begun once."""
        whole = len(value) // ENTRY
        begun: set[bytes] = set()
        ended: set[bytes] = set()
        clean = whole * ENTRY == len(value)
        for i in range(max(0, whole - MOST_ENTRIES), whole):
            entry = Entry(name, value[i * ENTRY : i * ENTRY + 16])
            signature = value[i * ENTRY + 16 : (i + 1) * ENTRY]
            if hmac.compare_digest(signature, self._signature(b"begun", entry)):
                clean &= entry.body not in begun
                begun.add(entry.body)
            elif hmac.compare_digest(signature, self._signature(b"ended", entry)):
                ended.add(entry.body)  # twice where the answer to the first came late
            else:
                clean = False
        return [b[8:12] for b in begun - ended if b[8:12] != self.process and self._fresh(b)], clean

    def _fresh(self, body: bytes) -> bool:
        return abs(time.time() - int.from_bytes(body[:8])) <= SECONDS  # older: kept by somebody and put back

    def _signature(self, what: bytes, entry: Entry) -> bytes:
        return hmac.digest(self._secret, what + b" " + entry.name.encode() + b" " + entry.body, "sha256")[:16]
