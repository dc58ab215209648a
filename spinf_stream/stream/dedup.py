"""Done marks and attempts in Redis: an optimisation that may be away, slow or wrong, never the source of truth.

    spinf:done:<fingerprint>:<questions>:<content>:<format>   a mark (sealed.py), for dedup_ttl_seconds
    spinf:tries:<fingerprint>:<questions>:<content>           passes begun whose end nobody saw (attempts.py), for an hour
    spinf:alive:<process>                                     kept by a worker that is there

A mark is written only after its output is committed. It carries its own key and is signed: a reply to another
question, a truncated or a foreign value is a miss. No command is ever cancelled from outside (its reply would be taken
for the next one's): deadlines are the connection's own. After an error Redis is left alone for a while, so that an
outage costs one deadline now and then, not one a record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from spinf_stream.config import Settings
from spinf_stream.engine.scorer import Scorer
from spinf_stream.metrics import Metrics
from spinf_stream.records import Answer
from spinf_stream.stream.attempts import SECONDS, Attempts
from spinf_stream.stream.flow import ALONE_AFTER, Record
from spinf_stream.stream.redis_client import Breaker, RedisError, connect
from spinf_stream.stream.sealed import Mark, Place, Sealed, seal, unseal

log = logging.getLogger(__name__)

PREFIX = "spinf:"
CHUNK = 16  # keys of one request: its whole answer has to arrive within the deadline
CHUNK_BYTES = 2**20  # of marks in one, but always one mark, for the same reason
ENDED_CHUNK = 256  # entries taken back in one
ALIVE_SECONDS = 10  # without a sign: a worker killed leaves its passes uncounted for so long
LAST_SECONDS = 0.2  # at the end, for what is owed
T = TypeVar("T")


class Known(NamedTuple):
    mark: Mark | None
    attempts: int


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
        self._attempts = Attempts(self._secret)
        self._paying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Never fails: a Redis that is away now may come back."""
        if self._s.redis_url:
            self._client = connect(self._s)

    async def close(self) -> None:
        """What is owed is tried once more, but not for long: then it counts against its texts for an hour."""
        client = self._client
        if client is None:
            return
        try:
            async with asyncio.timeout(LAST_SECONDS):
                if self._paying is not None:
                    await asyncio.wait([self._paying])
                await self._pay(last=True)
                if self._attempts.begun:  # else nobody will ask after this process
                    await self._write(lambda p: p.delete(_alive(self._attempts.process)), last=True)
        except TimeoutError:
            pass
        self._client = None
        await client.aclose()

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
        tried = [self._tried(name, value) for name, value in zip(names[1::2], found[1::2], strict=True)]
        if any(len(t) >= ALONE_AFTER for t in tried):
            tried = await self._gone(tried)
        return [Known(mark, len(t)) for mark, t in zip(opened, tried, strict=True)]

    async def _gone(self, tried: list[list[bytes]]) -> list[list[bytes]]:
        """Without the passes of processes that are there. Asked only where it matters: a text that is in every feed at
        once is in passes of many workers at once."""
        processes = sorted({process for t in tried for process in t})
        found = await self._ask(self._reads, lambda: self._client.mget([_alive(p) for p in processes]))
        if found is None:
            return [[] for _ in tried]
        gone = {p for p, there in zip(processes, found, strict=True) if there is None}
        return [[process for process in t if process in gone] for t in tried]

    async def begin(self, keys: Sequence[str]) -> None:
        """A pass with these texts is about to start."""
        if self._counting and self._writes.closed:
            entries = self._attempts.begin(map(self._tries, keys))
            await self._write(partial(_begin_all, _alive(self._attempts.process), entries))

    async def end(self, keys: Sequence[str]) -> None:
        """The pass has come back, whatever it said: these texts do not bring the engine down."""
        if not self._counting:
            return
        names = [self._tries(k) for k in keys]
        entries = self._attempts.take(names)
        written = False
        try:
            written = await self._write(lambda p: [p.delete(n) for n in names])
        finally:
            if not written:
                self._attempts.owe(entries)

    def withdraw(self, keys: Sequence[str]) -> None:
        """The pass was cut short and not by the engine. Waits for nothing: its caller is being cancelled."""
        self._attempts.owe(self._attempts.take(map(self._tries, keys)))
        self._pay_soon()

    def seal(self, marks: Sequence[tuple[str, Record, Answer]]) -> list[Sealed]:
        """(Prepared.key, record, answer) as they are written. For any thread."""
        return [seal(self._secret, Mark(self._done(key), self.place(record), answer)) for key, record, answer in marks]

    async def remember(self, marks: Sequence[Sealed]) -> None:
        """Of outputs that are committed."""
        if self._client is None:
            return
        for part in _parts(marks):
            asked = self._writes.closed
            ok = await self._write(partial(_set_all, part, self._s.dedup_ttl_seconds))
            self._metrics.marks.labels("written" if ok else "error" if asked else "skipped").inc(len(part))

    async def ping(self) -> None:
        """Every few seconds: this worker is there, and takes back what it owes. Raises RedisError."""
        if self._client is not None:
            await self._client.set(_alive(self._attempts.process), b"1", ex=ALIVE_SECONDS)
            self._pay_soon()

    def _pay_soon(self) -> None:
        if self._client is not None and self._attempts.owed(1) and (self._paying is None or self._paying.done()):
            self._paying = asyncio.ensure_future(self._pay())

    async def _pay(self, last: bool = False) -> None:
        while part := self._attempts.owed(ENDED_CHUNK):
            if not await self._write(partial(_append_all, self._attempts.ended(part)), last):
                return
            self._attempts.paid(part)

    async def _write(self, fill: Callable[[Any], Any], last: bool = False) -> bool:
        """`last`: there is no later, so that errors before do not keep it from being tried."""
        if self._client is None or not (self._writes.closed or last):
            return False
        pipe = self._client.pipeline(transaction=False)
        fill(pipe)
        return await self._ask(self._writes, pipe.execute) is not None

    async def _ask(self, breaker: Breaker, command: Callable[[], Awaitable[T]]) -> T | None:
        began = time.monotonic()
        try:
            asked = asyncio.ensure_future(command())
            asked.add_done_callback(lambda f: f.cancelled() or f.exception())  # nobody may be left to take it
            answer = await asyncio.shield(asked)
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

    def _tried(self, name: str, value: bytes | None) -> list[bytes]:
        if not value:
            return []
        attempts, clean = self._attempts.count(name, value)
        if not clean:
            self._metrics.attempts_refused.inc()
        return attempts

    def _open(self, name: str, value: bytes | None) -> Mark | None:
        mark = None if value is None else unseal(self._secret, name, value)
        self._metrics.dedup.labels("miss" if value is None else "mismatch" if mark is None else "hit").inc()
        return mark


def _alive(process: bytes) -> str:
    return f"{PREFIX}alive:{process.hex()}"


def _parts(marks: Sequence[Sealed]) -> Iterator[list[Sealed]]:
    part: list[Sealed] = []
    size = 0
    for mark in marks:
        if part and (len(part) >= CHUNK or size + len(mark.value) > CHUNK_BYTES):
            yield part
            part, size = [], 0
        part.append(mark)
        size += len(mark.value)
    if part:
        yield part


def _set_all(marks: Sequence[Sealed], seconds: int, pipe: Any) -> None:
    for name, value in marks:
        pipe.set(name, value, ex=seconds)


def _begin_all(alive: str, entries: Sequence[tuple[str, bytes]], pipe: Any) -> None:
    pipe.set(alive, b"1", ex=ALIVE_SECONDS)
    _append_all(entries, pipe)


def _append_all(entries: Sequence[tuple[str, bytes]], pipe: Any) -> None:
    for name, value in entries:
        pipe.append(name, value)
        pipe.expire(name, SECONDS)
