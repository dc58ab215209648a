"""Kafka records that have stalled or wiped somebody's stream (`streaming.md` fault 25), each with what must become of it.

A row is a whole record. Produce each between two good ones in ONE producer batch (`sandwich`): the neighbours live.

    scored     its scores are published under its own id and key, outcome `scored`
    tombstone  forwarded to the scores topic with its key and a null value
    counted    only counted: nothing is published
    dead       in the dead letters with `reason`, the same key, and the same value byte for byte
"""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

import msgspec
from kafka_io import Header, RawKey, Rec

from spinf_stream.records import Reason

MSGPACK = (("content-type", b"application/msgpack"),)


class Poison(NamedTuple):
    name: str  # also the id of the article, where it has one
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    outcome: Literal["scored", "tombstone", "counted", "dead"]
    reason: Reason | None = None
    truncated: bool = False

    def record(self, partition: int | None = None) -> Rec:
        return Rec(self.value, self.key, self.headers, partition)


def good(name: str) -> Poison:
    return scored(name, f"A short note about {name}, and nothing else.")


def scored(name: str, text: str, headers: tuple[Header, ...] = (), truncated: bool = False) -> Poison:
    return Poison(name, name.encode(), json.dumps({"id": name, "text": text}).encode(), headers, "scored", None, truncated)


def as_sent(name: str, value: bytes, headers: tuple[Header, ...] = ()) -> Poison:
    return Poison(name, name.encode(), value, headers, "scored")


def dead(name: str, value: bytes, reason: Reason, headers: tuple[Header, ...] = ()) -> Poison:
    return Poison(name, name.encode(), value, headers, "dead", reason)


def article(name: str, rest: bytes) -> bytes:
    """`{"id": name` and the rest of the object as raw bytes."""
    return json.dumps({"id": name}).encode()[:-1] + b", " + rest


ROWS = [
    Poison("tombstone", b"tombstone", None, (), "tombstone"),
    Poison("null key and null value", None, None, (), "counted"),
    dead("no bytes", b"", "empty"),
    dead("invalid UTF-8", article("invalid UTF-8", b'"text": "a\xff"}'), "not_utf8"),
    dead("UTF-16 with its mark", '{"text": "sixteen"}'.encode("utf-16"), "not_utf8"),
    as_sent("UTF-8 mark", b"\xef\xbb\xbf" + article("UTF-8 mark", b'"text": "After a byte order mark."}')),
    as_sent("NUL in the text", article("NUL in the text", b'"text": "Before\\u0000after."}')),
    dead("lone surrogate", article("lone surrogate", b'"text": "\\ud800"}'), "not_json"),
    dead("100,000 brackets", b"[" * 100_000, "too_deep"),
    as_sent("duplicate keys", article("duplicate keys", b'"text": "The first.", "text": "The last one counts."}')),
    dead("trailing bytes", article("trailing bytes", b'"text": "a"} {"text": "b"}'), "not_json"),
    dead("NaN", article("NaN", b'"text": "a", "meta": {"n": NaN}}'), "not_json"),
    dead("10^400", article("10^400", b'"text": "a", "meta": {"n": 1' + b"0" * 400 + b"}}"), "schema"),
    dead("text is a number", article("text is a number", b'"text": 12}'), "schema"),
    dead("text is missing", article("text is missing", b'"title": "t"}'), "schema"),
    dead("an array", b'["text"]', "schema"),
    dead("text of 0 tokens", article("text of 0 tokens", b'"text": ""}'), "empty"),
    scored("text of 1 token", "a"),
    scored("longer than the context", "one two three four five six seven " * 1_000, truncated=True),
    scored("900 kB of text", "word " * 180_000, truncated=True),
    dead("header key not UTF-8", article("header key not UTF-8", b'"text": "a"}'), "bad_headers", ((RawKey.of(b"\xff\xfe"), b"x"), ("note", b"y"))),
    scored("header value None", "A header without a value.", (("note", None),)),
    scored("1,000 headers", "A thousand headers.", tuple((f"h{n}", b"%d" % n) for n in range(1_000))),
    scored("duplicate header keys", "The same header twice.", (("note", b"1"), ("note", b"2"))),
    dead("leading 0x00", b'\x00\x00\x00\x00\x07{"text": "framed"}', "schema_registry"),
    as_sent("msgpack", msgspec.msgpack.encode({"id": "msgpack", "text": "Packed, not written."}), MSGPACK),
    dead("msgpack cut short", msgspec.msgpack.encode({"text": "cut"})[:-1], "not_msgpack", MSGPACK),
    dead("msgpack NaN", msgspec.msgpack.encode({"text": "a", "meta": {"n": float("nan")}}), "nonfinite", MSGPACK),
]  # fmt: skip


def sandwich(row: Poison) -> list[Poison]:
    """A good record, the row, and another good one."""
    return [good(f"before {row.name}"), row, good(f"after {row.name}")]
