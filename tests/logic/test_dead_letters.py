"""Dead letters that fit, and the limits that stop a worker."""

from __future__ import annotations

import base64
import hashlib

import msgspec
import pytest

from spinf_stream.stream.dead_letters import Limits, dead_letter, usable
from spinf_stream.stream.flow import Headers, Outgoing, Record
from spinf_stream.stream.kafka import size


def record(key: bytes | None = b"k", value: bytes | None = b"v", headers: Headers = ()) -> Record:
    return Record("articles", 3, 77, 1_700_000_000_000, key, value, headers)


def made(r: Record, limit: int = 1_000_000, message: str = "why") -> Outgoing:
    return dead_letter(r, "schema", message, "dlq", "fp_x", 2, size, limit)


def test_everything_that_was_sent_and_everything_we_know() -> None:
    out = made(record(headers=(("a", b"1"), ("a", None), ("spinf.error.reason", b"old"))))
    assert (out.topic, out.key, out.value, out.timestamp, out.partition) == ("dlq", b"k", b"v", 1_700_000_000_000, None)
    assert out.headers[:2] == (("a", b"1"), ("a", None))
    ours = dict(out.headers[2:])
    assert len(ours) == len(out.headers) - 2, "a replayed record's old reason is gone"
    assert ours.pop("spinf.error.worker")
    assert ours == {
        "spinf.error.reason": b"schema", "spinf.error.message": b"why", "spinf.error.topic": b"articles",
        "spinf.error.partition": b"3", "spinf.error.offset": b"77", "spinf.error.timestamp": b"1700000000000",
        "spinf.error.attempts": b"2", "spinf.error.fingerprint": b"fp_x",
    }  # fmt: skip


def test_a_long_message_is_cut_between_characters() -> None:
    message = dict(made(record(), message="é" * 900).headers)["spinf.error.message"]
    assert message is not None and len(message) == 1000 and message.decode() == "é" * 500
    message = dict(made(record(), message="a" + "é" * 900).headers)["spinf.error.message"]
    assert message is not None and len(message) == 999


def test_headers_of_any_bytes_travel_as_base64() -> None:
    headers: Headers = ((b"\xff\xfe".decode("utf-8", "surrogateescape"), b"x"), ("fine", None))
    assert not usable(headers) and usable((("é", b""),))
    out = made(record(headers=headers))
    packed = base64.b64decode(dict(out.headers)["spinf.error.headers"] or b"")
    assert msgspec.msgpack.decode(packed) == [[b"\xff\xfe", b"x"], [b"fine", None]]
    assert all(usable(((k, v),)) for k, v in out.headers)


@pytest.mark.parametrize(("room", "left_behind"), [(3000, ""), (2200, "value"), (1300, "value headers"), (600, "value headers key")])
def test_what_does_not_fit_is_named_by_its_digest(room: int, left_behind: str) -> None:
    r = record(b"k" * 700, b"v" * 800, (("note", b"n" * 800),))
    out = made(r, limit=room)
    h = dict(out.headers)
    assert size(out.key, out.value, out.headers) <= room or room == 600
    assert {n for n in ("value", "headers", "key") if f"spinf.error.{n}_sha256" in h} == set(left_behind.split())
    if left_behind:
        assert out.value == b"" and h["spinf.error.value_length"] == b"800"
        assert h["spinf.error.value_sha256"] == hashlib.sha256(r.value or b"").hexdigest().encode()
    assert (out.key == r.key) == ("key" not in left_behind.split())


def test_a_record_of_nothing_can_still_be_sent() -> None:
    out = made(record(None, None))
    assert out.value == b"" and dict(out.headers)["spinf.error.value_null"] == b"1"
    assert made(record(b"k", None)).value is None


def test_a_run_trips_at_its_limit_and_a_good_record_ends_it() -> None:
    limits = Limits(3, 1.0)
    for dead in (True, True, False, True, True):
        limits.count(dead)
    assert limits.tripped is None
    limits.count(True)
    assert limits.tripped == "3 dead letters in a row (dlq_max_run)"


def test_a_ratio_counts_the_last_thousand_only() -> None:
    limits = Limits(10**6, 0.1)
    for i in range(999):
        limits.count(i < 500)
    assert limits.tripped is None, "the window is not full"
    limits = Limits(10**6, 0.1)
    for i in range(5000):
        limits.count(i % 10 == 0)
    assert limits.tripped is None, "exactly a tenth is allowed"
    for _ in range(2):
        limits.count(True)
    assert limits.tripped and "dlq_max_ratio 0.1" in limits.tripped
