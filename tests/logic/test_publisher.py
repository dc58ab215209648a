"""Epoch, publisher and delivery over a broker that answers as it likes: nothing of an old epoch is published, nothing is
committed that was not published, each in offset order; exactly once also nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from fakes import FakeScorer
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.stream import delivery, publisher
from spinf_stream.stream.batcher import Batcher
from spinf_stream.stream.delivery import Aborted, AtLeastOnce, ExactlyOnce
from spinf_stream.stream.flow import Outgoing, Record, Settled
from spinf_stream.stream.kafka import Away, PublishFailed, Rebalanced, size
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.publisher import LimitReached, Publisher
from spinf_stream.stream.settle import Settle, TopicFacts

RUN = 2  # dead letters in a row that stop the worker
FACTS = {"scores": TopicFacts(1, 10**6), "articles.dlq": TopicFacts(1, 10**6)}
KINDS = ("scored", "dead", "dead", "duplicate")  # of a duplicate nothing is published
ANSWERS = ("ok", "ok", "other", "other", "timestamp", "too_large", "written but failed")


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
        self.delivery: Any = (ExactlyOnce if self.exactly else AtLeastOnce)(self.settings, self, metrics, lambda: 10**6)  # type: ignore[arg-type]
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


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: list[World] = []

    def make(guarantee: str) -> World:
        made.append(World.__new__(World))
        monkeypatch.setattr(delivery, "Producer", lambda *_: made[-1])
        monkeypatch.setattr(publisher, "BACKOFF", (0.0, 0.0))
        made[-1].__init__(guarantee)  # type: ignore[misc]
        return made[-1]

    yield make
    for w in made:
        if w.task is not None:
            w.task.cancel()
            w.go(asyncio.gather(w.task, return_exceptions=True))
        w.loop.close()


def test_what_follows_a_cut_waits_for_what_was_cut_off(world: Any) -> None:
    """The dead-letter limit cuts a unit; its first part fails while the worker falls silent. The rest must stay where it is:
    sent and counted off in the place of what was not sent, it would be committed past lost records."""
    w = world("at_least_once")
    w.open()
    offsets = [w.see(kind) for kind in ("dead",) * RUN + ("scored",) * 2]
    for offset in reversed(offsets):  # the oldest last: one unit
        w.settle(offset)
    assert w.asked is not None and w.asked[0] == offsets[:RUN], "cut at the limit"
    w.silence()
    w.answer("other")
    assert w.asked is None and w.log == []
    w.commit_now("ok")
    assert w.committed in (None, 0) and w.p.waiting == len(offsets)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_no_old_epoch_publishes_and_no_commit_passes_what_was_not_published(world: Any, guarantee: str) -> None:
    class Steps(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.w: World = world(guarantee)
            self.unsettled: list[int] = []

        @property
        def open(self) -> bool:
            return self.w.p is not None and self.w.p.alive

        @precondition(lambda self: not self.open)
        @rule()
        def opens(self) -> None:
            self.unsettled = []
            self.w.open()

        @precondition(lambda self: self.open and len(self.unsettled) < 12)
        @rule(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=6), order=st.sampled_from(["later", "as read", "reversed"]))
        def reads(self, kinds: list[str], order: str) -> None:
            """Settled from the newest to the oldest they are one unit."""
            if self.w.p is not None and self.w.p.admitting:
                new = [self.w.see(kind) for kind in kinds]
                self.unsettled += new
                if order != "later":
                    self.settle(self.unsettled[:: -1 if order == "reversed" else 1])

        @precondition(lambda self: self.open and self.unsettled)
        @rule(data=st.data())
        def settles(self, data: st.DataObject) -> None:
            self.settle([data.draw(st.sampled_from(self.unsettled))])

        def settle(self, offsets: list[int]) -> None:
            for offset in offsets:
                if self.open:
                    self.unsettled.remove(offset)
                    self.w.settle(offset)

        @precondition(lambda self: self.w.asked is not None)
        @rule(said=st.sampled_from(ANSWERS), silent=st.integers(0, 3))
        def broker_answers(self, said: str, silent: int) -> None:
            """At times the worker has fallen silent meanwhile."""
            if not silent:
                self.w.silence()
            self.w.answer(said)

        @rule(answer=st.sampled_from(["ok", "ok", "rebalanced", "away"]))
        def commits(self, answer: str) -> None:
            self.w.commit_now(answer)

        @precondition(lambda self: self.open and self.w.read > 4)
        @rule(written=st.booleans())
        def ends(self, written: bool) -> None:
            self.w.end(written)

    phases = (Phase.explicit, Phase.generate)  # what fails is short enough to read; shrinking would take minutes
    run_state_machine_as_test(
        Steps, settings=settings(max_examples=100, stateful_step_count=20, deadline=None, derandomize=True, phases=phases)
    )
