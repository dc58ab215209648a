"""Done marks and attempts in Redis: an optimisation that may be away, slow or wrong, never the source of truth.

    spinf:done:<fingerprint>:<questions>:<content>:<format>   hmac-sha256 (32 bytes) | msgpack of Mark, for dedup_ttl
    spinf:tries:<fingerprint>:<questions>:<content>           passes begun whose end nobody saw, 32 bytes each, for an hour

A mark is written only after its output is committed. It carries its own key and is signed: a reply to another
question, a truncated or a foreign value is a miss. A pass begun is seconds (8 bytes) | random (8) | hmac-sha256 over key,
seconds and random (its first 16), written by APPEND: as atomic as a counter, and nobody without the secret can make a
text look poisonous. No command is ever cancelled from outside (its reply would be taken for the next one's): deadlines
are the connection's own. After an error Redis is left alone for a while, so that an outage costs one deadline now and
then, not one a record.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from spinf_stream.config import Settings
from spinf_stream.engine.scorer import Scorer
from spinf_stream.metrics import Metrics
from spinf_stream.records import Answer
from spinf_stream.stream.flow import Record
from spinf_stream.stream.redis_client import RedisError, connect

log = logging.getLogger(__name__)

PREFIX = "spinf:"
ATTEMPTS_SECONDS = 3600
ENTRY = 32  # bytes of a pass begun
MOST_ENTRIES = 64  # looked at: a text is dead long before
CHUNK = 16  # keys of one request: its whole answer has to arrive within the deadline
BACKOFF = (0.25, 10.0)  # seconds of leaving Redis alone, doubling from first to last
T = TypeVar("T")


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


class Known(NamedTuple):
    mark: Mark | None
    attempts: int


class Breaker:
    """Lets one request through now and then while the other side is away."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._wait = BACKOFF[0]

    @property
    def closed(self) -> bool:
        return self._clock() >= self._until

    def ok(self) -> None:
        self._until, self._wait = 0.0, BACKOFF[0]

    def failed(self) -> None:
        self._until = self._clock() + self._wait
        self._wait = min(2 * self._wait, BACKOFF[1])


class Dedup:
    """`redis_url` empty: everything is a miss and nothing is remembered."""

    def __init__(self, settings: Settings, scorer: Scorer, metrics: Metrics) -> None:
        self._s = settings
        self._metrics = metrics
        self._client: Any = None
        # what an embedded Redis counts is gone with the process whose end it should tell of
        self._counting = bool(settings.redis_url) and not settings.redis_url.startswith("embedded://")
        self._secret = (settings.dedup_secret or "embedded").encode()
        self._fingerprint = scorer.fingerprint_full
        self._reads, self._writes = Breaker(), Breaker()
        self._decoder = msgspec.msgpack.Decoder(Mark)

    async def start(self) -> None:
        """Never fails: a Redis that is away now may come back."""
        if self._s.redis_url:
            self._client = connect(self._s)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def place(self, r: Record) -> Place:
        return Place(self._s.group, r.topic, r.partition, r.offset, r.timestamp, self._s.output_topic)

    async def look_up(self, keys: Sequence[str]) -> list[Known]:
        """Of Prepared.key, in order. What cannot be read is a miss without attempts."""
        out: list[Known] = []
        for i in range(0, len(keys), CHUNK):
            out += await self._look_up(keys[i : i + CHUNK])
        return out

    async def _look_up(self, keys: Sequence[str]) -> list[Known]:
        nothing = [Known(None, 0)] * len(keys)
        if self._client is None or not keys:
            return nothing
        names = [n for k in keys for n in (self._done(k), self._tries(k))]
        found: list[bytes | None] | None = None
        if self._reads.closed:
            found = await self._ask(self._reads, lambda: self._client.mget(names))
            if found is None or len(found) != len(names):
                self._metrics.dedup.labels("error").inc(len(keys))
                return nothing
        if found is None:
            self._metrics.dedup.labels("skipped").inc(len(keys))
            return nothing
        marks = [(name, found[2 * i]) for i, name in enumerate(names[::2])]
        if any(value is not None for _, value in marks):  # checking and decoding answers is no work for the event loop
            opened = await asyncio.to_thread(lambda: [self._open(name, value) for name, value in marks])
        else:
            opened = [self._open(name, None) for name, _ in marks]
        return [Known(mark, self._attempts(names[2 * i + 1], found[2 * i + 1])) for i, mark in enumerate(opened)]

    async def begin(self, keys: Sequence[str]) -> None:
        """A pass with these texts is about to start."""
        if self._counting:
            names = [self._tries(k) for k in keys]
            await self._write(lambda p: [(p.append(n, self._begun(n)), p.expire(n, ATTEMPTS_SECONDS)) for n in names])

    async def end(self, keys: Sequence[str]) -> None:
        """The pass has come back, whatever it said: these texts do not bring the engine down."""
        if self._counting:
            await self._write(lambda p: [p.delete(self._tries(d)) for d in keys])

    async def remember(self, marks: Iterable[tuple[str, Record, Answer]]) -> None:
        """(Prepared.key, record, answer) of outputs that are committed."""
        if self._client is None:
            return
        marks = list(marks)
        for i in range(0, len(marks), CHUNK):
            signed = await asyncio.to_thread(self._seal_all, marks[i : i + CHUNK])
            asked = self._writes.closed
            ok = await self._write(partial(_set_all, signed, self._s.dedup_ttl_seconds))
            self._metrics.marks.labels("written" if ok else "error" if asked else "skipped").inc(len(signed))

    async def ping(self) -> None:
        """Raises RedisError."""
        if self._client is not None:
            await self._client.set(PREFIX + "ping", b"1", ex=60)

    async def _write(self, fill: Callable[[Any], Any]) -> bool:
        if self._client is None or not self._writes.closed:
            return False
        pipe = self._client.pipeline(transaction=False)
        fill(pipe)
        return await self._ask(self._writes, pipe.execute) is not None

    async def _ask(self, breaker: Breaker, command: Callable[[], Awaitable[T]]) -> T | None:
        began = time.monotonic()
        try:
            answer = await asyncio.shield(asyncio.ensure_future(command()))
        except (RedisError, OSError) as e:
            breaker.failed()
            self._metrics.redis_up.set(0)
            self._metrics.redis_errors.labels("read" if breaker is self._reads else "write").inc()
            log.warning("redis: %s; scoring goes on without it", type(e).__name__)
            return None
        finally:
            self._metrics.dedup_seconds.observe(time.monotonic() - began)
        breaker.ok()
        self._metrics.redis_up.set(1)
        return answer

    def _done(self, key: str) -> str:
        return f"{PREFIX}done:{self._fingerprint}:{key}:{self._s.scores_format}"

    def _tries(self, key: str) -> str:
        return f"{PREFIX}tries:{self._fingerprint}:{key}"

    def _begun(self, name: str) -> bytes:
        entry = int(time.time()).to_bytes(8) + secrets.token_bytes(8)
        return entry + self._signature(name, entry)

    def _signature(self, name: str, entry: bytes) -> bytes:
        return hmac.digest(self._secret, b"begun " + name.encode() + b" " + entry, "sha256")[:16]

    def _attempts(self, name: str, value: bytes | None) -> int:
        if not value:
            return 0
        entries = {value[i : i + ENTRY] for i in range(0, min(len(value), MOST_ENTRIES * ENTRY), ENTRY)}
        signed = [e for e in entries if hmac.compare_digest(e[16:], self._signature(name, e[:16]))]
        if len(signed) * ENTRY < len(value):
            self._metrics.attempts_refused.inc()
        return sum(abs(time.time() - int.from_bytes(e[:8])) <= ATTEMPTS_SECONDS for e in signed)  # older: kept and put back

    def _seal_all(self, marks: Sequence[tuple[str, Record, Answer]]) -> list[tuple[str, bytes]]:
        out = []
        for key, record, answer in marks:
            body = msgspec.msgpack.encode(Mark(self._done(key), self.place(record), answer))
            out.append((self._done(key), hmac.digest(self._secret, body, "sha256") + body))
        return out

    def _open(self, name: str, value: bytes | None) -> Mark | None:
        if value is None:
            self._metrics.dedup.labels("miss").inc()
            return None
        signature, body = value[:32], value[32:]
        if hmac.compare_digest(signature, hmac.digest(self._secret, body, "sha256")):
            try:
                mark = self._decoder.decode(body)
                if mark.key == name:
                    self._metrics.dedup.labels("hit").inc()
                    return mark
            except (msgspec.DecodeError, msgspec.ValidationError):
                pass  # signed by a worker of another version
        self._metrics.dedup.labels("mismatch").inc()
        return None


def _set_all(values: list[tuple[str, bytes]], seconds: int, pipe: Any) -> None:
    for key, value in values:
        pipe.set(key, value, ex=seconds)
