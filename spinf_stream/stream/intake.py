"""From records to works: decode, tokenise, look for a done mark, join an equal text in flight or enter the batcher.

One task, in order of arrival, a few records at a time: their decoding and tokenising is one trip to a CPU thread, their
look-up one request to Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from spinf_stream.config import Settings
from spinf_stream.engine.scorer import Prepared, Scorer
from spinf_stream.metrics import Metrics
from spinf_stream.records import JSON, MSGPACK, Answer, Outcome, Refused, decode_article
from spinf_stream.stream.batcher import Batcher
from spinf_stream.stream.dead_letters import usable
from spinf_stream.stream.dedup import Dedup, Known
from spinf_stream.stream.flow import DEAD_AFTER, Item, Record, Settled, Work
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.settle import CONTENT_TYPE, Settle

log = logging.getLogger(__name__)

CHUNK = 32  # records a trip
MAX_VALUE = 16 * 2**20  # bytes, checked before decoding
MAX_HEADERS = (10_000, 2**20)  # how many, and their bytes
JUDGED = 2_000  # answers kept for the drift figure until its next turn: as many as it looks at
AHEAD = 4  # budgets of tokens in flight: two passes, and two more to fill windows well


class Read(NamedTuple):
    partition: Partition
    record: Record
    arrived: float  # monotonic


class Intake:
    """`wake` tells the pump that the batcher has something new."""

    def __init__(
        self, settings: Settings, scorer: Scorer, settle: Settle, batcher: Batcher, dedup: Dedup, metrics: Metrics,
        cpu: Executor, wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self._s = settings
        self._scorer = scorer
        self._settle = settle
        self._batcher = batcher
        self._dedup = dedup
        self._metrics = metrics
        self._cpu = cpu
        self._wake = wake
        self._queue: deque[Read] = deque()
        self._more = asyncio.Event()
        self.room = asyncio.Event()  # set when the batcher may have room again, and when a drain begins
        self.idle = True  # nothing in hand
        self._turn = asyncio.Lock()
        self.judged: deque[Answer] = deque(maxlen=JUDGED)  # fresh answers of packs, read by drift.py

    def put(self, partition: Partition, record: Record) -> None:
        self._queue.append(Read(partition, record, time.monotonic()))
        self._more.set()

    def forget(self) -> None:
        """Drop what is not begun: a drain has started, or an epoch is over. It is read again."""
        self._queue = deque(r for r in self._queue if r.partition.admitting)
        self.room.set()

    def __len__(self) -> int:
        return len(self._queue)

    async def run(self) -> None:
        while True:
            while not self._queue:
                self.idle = True
                self._more.clear()
                await self._more.wait()
            self.idle = False
            chunk = [self._queue.popleft() for _ in range(min(CHUNK, len(self._queue)))]
            began = time.monotonic()
            for r in chunk:
                self._metrics.stage.labels("queue").observe(began - r.arrived)
            read = await asyncio.get_running_loop().run_in_executor(self._cpu, self._read_all, chunk)
            prepared = [p for _, p in read if p is not None]
            known = await self._known(prepared)
            for entry, (result, p) in zip(chunk, read, strict=True):
                await self._route(entry.partition, result, p, known)

    def _read_all(self, chunk: Sequence[Read]) -> list[tuple[Settled | Item, Prepared | None]]:
        return [self._read(r) for r in chunk]

    def _read(self, r: Read) -> tuple[Settled | Item, Prepared | None]:
        """In a CPU thread. Everything that is wrong with the record itself ends here."""
        began = time.monotonic()
        try:
            _check(r.record)
            if r.record.value is None:
                return self._settle.tombstone(r.record), None
            item = _item(r)
            if self._too_old(r.record):
                return self._settle.expired(item), None
            return item, self._scorer.prepare(item.article)
        except Refused as e:
            return self._settle.dead(r.record, e.reason, e.message), None
        except Exception as e:  # a fault of ours that this record brings out
            log.warning("%s: preparing raised %s", r.record.place, type(e).__name__)
            return self._settle.dead(r.record, "engine_error", f"preparing this article raised {type(e).__name__}"), None
        finally:
            self._metrics.stage.labels("decode").observe(time.monotonic() - began)

    def _too_old(self, r: Record) -> bool:
        limit = self._s.max_age_seconds
        return limit is not None and r.timestamp >= 0 and time.time() - r.timestamp / 1000 > limit

    async def _known(self, prepared: Sequence[Prepared]) -> dict[str, Known]:
        keys = list({p.key for p in prepared if self._batcher.find(p.key) is None})
        began = time.monotonic()
        known = dict(zip(keys, await self._dedup.look_up(keys), strict=True))
        self._metrics.stage.labels("dedup").observe(time.monotonic() - began)
        return known

    async def _route(self, p: Partition, result: Settled | Item, prepared: Prepared | None, known: dict[str, Known]) -> None:
        if not p.admitting:
            return
        p.flying += 1
        if isinstance(result, Settled):
            self._done(p, result)
            return
        assert prepared is not None
        work = self._batcher.find(prepared.key)
        if work is not None:
            self._metrics.shared.inc()
            result.work = work
            work.items.append(result)
            if work.verdict is not None:
                await self.answer([work], [result])
            return
        mark, attempts = known.get(prepared.key, Known(None, 0))
        if mark is not None:
            again = mark.place == self._dedup.place(result.record)
            await self._finish([(result, mark.answer, "duplicate", 0, again)])
        elif attempts >= DEAD_AFTER:
            why = f"the engine went down in {attempts} passes with this text"
            self._done(p, self._settle.dead(result.record, "engine_crash", why, attempts=attempts, item=result))
        elif await self._may_enter(p):
            result.work = Work(prepared, time.monotonic(), attempts, [result])
            self._batcher.add(result.work)
            self._wake()
        else:
            p.flying -= 1

    async def _may_enter(self, p: Partition) -> bool:
        """Wait for room. False: a drain began meanwhile, the record will be read again."""
        while p.admitting and self._batcher.tokens >= AHEAD * self._batcher.budget:
            self.room.clear()
            await self.room.wait()
        return p.admitting

    async def deliver(self, works: Sequence[Work]) -> None:
        """Works got their verdict: settle the items that wait for them."""
        for work in works:
            if isinstance(work.verdict, Answer):
                if work.verdict.packs:
                    self.judged.append(work.verdict)
                for pack, prompts in (work.prepared.by or self._scorer).questions_by_pack.items():
                    self._metrics.questions.labels(pack).inc(prompts)
        await self.answer(works, [i for w in works for i in w.items])

    async def answer(self, works: Sequence[Work], items: Sequence[Item]) -> None:
        firsts = set()
        for work in works:
            if work.first and work.items:
                firsts.add(id(work.items[0]))
                work.first = False
        todo: list[tuple[Item, Answer | Refused, Outcome, int, bool]] = []
        for i in items:
            assert i.work is not None and i.work.verdict is not None
            outcome: Outcome = "scored" if id(i) in firsts else "duplicate"
            todo.append((i, i.work.verdict, outcome, i.work.attempts + 1, False))
        await self._finish(todo)

    async def _finish(self, todo: Sequence[tuple[Item, Answer | Refused, Outcome, int, bool]]) -> None:
        todo = [t for t in todo if t[0].partition.alive]
        # with `skip` what becomes of a first decides about the next, so that they are settled one after another
        async with self._turn if self._s.on_duplicate == "skip" else contextlib.nullcontext():
            settled = await asyncio.get_running_loop().run_in_executor(self._cpu, self._settle_all, todo)
        for (item, *_), s in zip(todo, settled, strict=True):
            self._done(item.partition, s)

    def _settle_all(self, todo: Sequence[tuple[Item, Answer | Refused, Outcome, int, bool]]) -> list[Settled]:
        """With `skip` an equal text is left out only where another's output was made: the first may have died of its size."""
        out = []
        for item, verdict, outcome, attempts, again in todo:
            if isinstance(verdict, Refused):
                out.append(self._settle.dead(item.record, verdict.reason, verdict.message, attempts=attempts, item=item))
            elif again or (outcome == "duplicate" and self._s.on_duplicate == "skip" and (item.work is None or item.work.said)):
                out.append(self._settle.counted(item))
            else:
                out.append(settled := self._settle.answered(item, verdict, outcome))
                if item.work is not None and settled.outcome != "dead":
                    item.work.said = True
        return out

    def _done(self, p: Partition, settled: Settled) -> None:
        p.flying -= 1
        if not p.settle(settled) and settled.item is not None:
            self._batcher.leave(settled.item)


def _check(r: Record) -> None:
    if not usable(r.headers):
        raise Refused("bad_headers", "a header key is not UTF-8")
    count, total = len(r.headers), sum(len(k) + len(v or b"") for k, v in r.headers)
    if count > MAX_HEADERS[0] or total > MAX_HEADERS[1]:
        raise Refused("bad_headers", f"{count} headers of {total} bytes, at most {MAX_HEADERS[0]} of {MAX_HEADERS[1]} are read")
    if r.value is not None and len(r.value) > MAX_VALUE:
        raise Refused("too_large", f"{len(r.value)} bytes, at most {MAX_VALUE} are read")


def _item(r: Read) -> Item:
    record = r.record
    content_type = _content_type(record)
    article = decode_article(record.value or b"", content_type)
    return Item(record, r.partition, article, article.id or _key(record) or record.place, content_type, r.arrived)


def _content_type(r: Record) -> str:
    """MSGPACK where the record says so, else JSON; the last such header counts."""
    said = b""
    for key, value in r.headers:
        if key.lower() == CONTENT_TYPE:
            said = value or b""
    return MSGPACK if said.split(b";")[0].strip().lower() == MSGPACK.encode() else JSON


def _key(r: Record) -> str | None:
    try:
        return r.key.decode("utf-8") if r.key else None
    except UnicodeDecodeError:
        return None
