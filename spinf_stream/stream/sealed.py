"""Done marks as Redis holds them: hmac-sha256 (32 bytes) | msgpack of Mark, which names the key that it belongs under."""

from __future__ import annotations

import hmac
from typing import NamedTuple

import msgspec

from spinf_stream.records import Answer


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a text was scored. The same place again is a redelivery; timestamp and output tell a topic made anew."""

    group: str
    topic: str
    partition: int
    offset: int
    timestamp: int
    output: str


class Mark(msgspec.Struct, frozen=True, array_like=True):
    key: str
    place: Place
    answer: Answer


class Sealed(NamedTuple):
    name: str
    value: bytes


_decoder = msgspec.msgpack.Decoder(Mark)


def seal(secret: bytes, mark: Mark) -> Sealed:
    body = msgspec.msgpack.encode(mark)
    return Sealed(mark.key, hmac.digest(secret, body, "sha256") + body)


def unseal(secret: bytes, name: str, value: bytes) -> Mark | None:
    """None for what is not ours, or another key's: truncated, foreign, or the reply to another question."""
    signature, body = value[:32], value[32:]
    if not hmac.compare_digest(signature, hmac.digest(secret, body, "sha256")):
        return None
    try:
        mark = _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None  # signed by a worker of another version
    return mark if mark.key == name else None
