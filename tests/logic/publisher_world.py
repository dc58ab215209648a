"""One partition of a worker, with the real epoch, publisher and delivery, and a broker that answers when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

from fakes import FakeScorer

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.stream.batcher import Batcher
from spinf_stream.stream.delivery import Aborted, AtLeastOnce, ExactlyOnce
from spinf_stream.stream.flow import Outgoing, Record, Settled
from spinf_stream.stream.kafka import Away, PublishFailed, Rebalanced, size
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.publisher import LimitReached, Publisher
from spinf_stream.stream.settle import Settle, TopicFacts

RUN = 2  # dead letters in a row that stop the worker
FACTS = {"scores": TopicFacts(1, 10**6), "articles.dlq": TopicFacts(1, 10**6)}


class World:
    """One partition, its broker and one worker; time stands still between the steps."""

    def __init__(self, guarantee: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.exactly = guarantee == "exactly_once"
        self.settings = Settings(delivery=guarantee, dlq_max_run=RUN, dlq_max_ratio=1.0, commit_interval_ms=60_000)  # type: ignore[arg-type]
        self.kinds: list[str] = []  # of the input's records; record n has offset 2 n
        self.settled: set[int] = set()  # offsets, in any epoch
        self.log: list[int] = []  # offsets whose output is readable
        self.committed: int | None = None
        self.epoch = 0
        self.p: Partition | None = None
        self.task: asyncio.Task[None] | None = None
        self.read = 0  # records of the input, in this epoch
        self.out: set[int] = set()  # offsets acknowledged in this epoch
        self.asked: tuple[list[int], int | None, asyncio.Future[str]] | None = None  # what the broker has not yet answered
        self.answers_commits = "ok"
        self._worker()

    def _worker(self) -> None:
        metrics = Metrics(100)
        made: Any = ExactlyOnce if self.exactly else AtLeastOnce
        more = {"partitions": lambda: [self.p] if self.p else [], "commit_now": lambda: None}
        asks = inspect.signature(made).parameters
        self.delivery: Any = made(self.settings, self, metrics, lambda: 10**6, **{k: v for k, v in more.items() if k in asks})
        settle = Settle(self.settings, FakeScorer(), size, FACTS)  # type: ignore[arg-type]
        self.publisher = Publisher(self.settings, self.delivery, settle, Batcher(100, 1.0), metrics, self._refresh, lambda done: None)
        self.go(self.delivery.start())

    async def _refresh(self) -> None:
        pass

    def go(self, work: Any = None) -> Any:
        async def some() -> Any:
            result = await work if work is not None else None
            for _ in range(30):
                await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(some())

    # The broker, as the consumer and the producers of the worker see it.

    def position(self, number: int) -> int:
        return 2 * self.read - 1 if self.read else 0

    async def commit(self, offsets: dict[int, int], timeout: float) -> None:
        if self.answers_commits != "ok":
            raise {"rebalanced": Rebalanced, "away": Away}[self.answers_commits]("no")
        self._commits(offsets[0], ())

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def ready(self, topics: Any) -> None:
        pass

    async def send(self, unit: Sequence[Outgoing]) -> None:
        await self._take(unit, None)

    async def transact(self, unit: Sequence[Outgoing], partition: int, offset: int) -> None:
        await self._take(unit, offset)

    async def _take(self, unit: Sequence[Outgoing], offset: int | None) -> None:
        assert self.p is not None and self.p.alive, "an epoch that is over publishes"
        of = [tuple(map(int, (o.value or b"").split())) for o in unit]
        assert all(epoch == self.p.epoch for epoch, _ in of), "something of an old epoch is published"
        offsets = [o for _, o in of]
        begin = self.begin
        due = [o for o in range(begin, 2 * self.read, 2) if self.kinds[o // 2] != "duplicate" and o not in self.out]
        assert offsets == due[: len(offsets)], f"offsets {offsets} are sent, due are {due}"
        self.asked = offsets, offset, self.loop.create_future()
        said = await self.asked[2]
        if said in ("ok", "written but failed"):
            self._written(offsets, offset)
        if not unit and said in ("timestamp", "too_large"):
            said = "other"  # only a record is refused for that
        if said != "ok":
            raise PublishFailed(said if said in ("timestamp", "too_large") else "other", said)  # type: ignore[arg-type]
        self.out.update(offsets)

    def _written(self, offsets: Sequence[int], offset: int | None) -> None:
        assert not self.exactly or not set(offsets) & set(self.log), "published twice"
        self.log += offsets
        if offset is not None:
            self._commits(offset, offsets)

    def _commits(self, offset: int, with_it: Sequence[int]) -> None:
        missing = [
            o for o in range(0, min(offset, 2 * len(self.kinds)), 2)
            if o not in (self.settled if self.kinds[o // 2] == "duplicate" else {*self.log, *with_it})
        ]  # fmt: skip
        assert not missing, f"{offset} is committed, {missing} were not published"
        assert offset >= (self.committed or 0), "committed offsets go backwards"
        self.committed = offset

    # What happens to it.

    def open(self) -> None:
        if self.publisher._limits.tripped:
            self._worker()  # it had left
        self.epoch += 1
        self.begin = start = -(-(self.committed or 0) // 2) * 2
        self.read, self.out = start // 2, set()
        self.go(self.delivery.open(0))
        self.p = Partition("articles", 0, self.epoch)
        self.p.open(self.committed or 0, self.committed)
        self.task = self.loop.create_task(self.publisher.run(self.p))
        self.step()

    def see(self, kind: str) -> int:
        """The next record; what kind it is was settled when it was first read."""
        assert self.p is not None
        if self.read == len(self.kinds):
            self.kinds.append(kind)
        offset = 2 * self.read
        self.p.see(Record("articles", 0, offset, -1, b"k", b"v", ()))
        self.read += 1
        return offset

    def settle(self, offset: int) -> None:
        assert self.p is not None
        kind = self.kinds[offset // 2]
        topic = "articles.dlq" if kind == "dead" else "scores"
        out = None if kind == "duplicate" else Outgoing(topic, b"k", b"%d %d" % (self.p.epoch, offset), (), None)
        self.settled.add(offset)
        record = Record("articles", 0, offset, -1, b"k", b"v", ())
        self.p.settle(Settled(record, kind, out, "schema" if kind == "dead" else None))  # type: ignore[arg-type]
        self.step()

    def answer(self, said: str) -> None:
        if self.asked is not None and not self.asked[2].done():
            self.asked[2].set_result(said)
        self.asked = None
        self.step()

    def silence(self) -> None:
        """As Assignment.silence, when the worker ends in trouble."""
        if self.p is not None:
            self.p.admitting, self.p.silent = False, True
            self.p.changed.set()
        self.step()

    def commit_now(self, answer: str) -> None:
        self.answers_commits = answer
        self.go(self.delivery.commit([self.p] if self.p else []))

    def end(self, written: bool = False) -> None:
        """Revoked, lost or closed; what was on its way to the broker may have come there."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
        if self.p is not None:
            self.p.close()
        if written and self.asked is not None and not self.asked[2].done():
            self._written(self.asked[0], self.asked[1])
        self.asked = None
        with contextlib.suppress(asyncio.CancelledError, LimitReached, Aborted):
            if self.task is not None:
                self.go(self.task)
        self.p = self.task = None

    def step(self) -> None:
        self.go()
        if self.task is None or not self.task.done():
            return
        try:
            self.task.result()
        except Aborted:
            self.end()
        except LimitReached:
            if self.p is not None:
                self.p.silent = True
