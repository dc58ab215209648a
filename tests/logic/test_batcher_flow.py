"""The batcher together with partitions and epochs, against a small model."""

from __future__ import annotations

from typing import Any

from batcher_items import item
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spinf_stream.engine.scorer import Prepared
from spinf_stream.stream.batcher import DECODING, Batcher, Window
from spinf_stream.stream.flow import Item, Record, Settled, Work
from spinf_stream.stream.partitions import Partition

MAX_WAIT = 2.0


class Flow(RuleBasedStateMachine):
    """Partitions come and go while records are read, scored and published; the clock and the engine are the test's."""

    BUDGET = 100

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.b = Batcher(self.BUDGET, MAX_WAIT)
        self.epoch = 0
        self.partitions: dict[int, Partition] = {}
        self.next: dict[int, int] = {0: 0, 1: 0}  # what a reader of the partition gets next
        self.committed: dict[int, int] = {0: 0, 1: 0}
        self.published: dict[int, list[int]] = {0: [], 1: []}
        self.windows: list[Window] = []
        self.encoding: list[Item] = []

    def assign(self, n: int) -> None:
        if n not in self.partitions:
            self.epoch += 1
            p = Partition("t", n, self.epoch)
            p.open(self.committed[n], self.committed[n])
            self.partitions[n] = p
            self.next[n] = self.committed[n]

    @rule(n=st.sampled_from([0, 1]), cost=st.integers(1, 120), text=st.integers(0, 30), gap=st.integers(0, 2), alone=st.booleans())
    def read(self, n: int, cost: int, text: int, gap: int, alone: bool) -> None:
        self.assign(n)
        p = self.partitions[n]
        offset = self.next[n] + gap
        self.next[n] = offset + 1
        p.see(Record("t", n, offset, -1, None, b"", ()))
        p.flying += 1
        i = item(p, offset)
        found = self.b.find(str(text))
        if found is None:
            found = Work(Prepared("", str(text), (), cost, cost, False, alone and text == 0, ()), self.now, 0, [])
            found.items.append(i)
            i.work = found
            self.b.add(found)
        else:
            found.items.append(i)
            i.work = found
            if found.verdict is not None:
                self.settle(i)

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.pump()

    @rule()
    def pump(self) -> None:
        before = self.b.running
        while (window := self.b.take(self.now)) is not None:
            self.windows.append(window)
        assert self.b.running - before <= 2

    @precondition(lambda self: self.windows)
    @rule(data=st.data())
    def pass_done(self, data: st.DataObject) -> None:
        self.encoded()
        window = self.windows.pop(data.draw(st.integers(0, len(self.windows) - 1)))
        for w in window.works:
            w.verdict = object()  # type: ignore[assignment]
            self.encoding += w.items
        self.b.done(window)

    @precondition(lambda self: self.windows)
    @rule(data=st.data())
    def read_out(self, data: st.DataObject) -> None:
        self.b.read(data.draw(st.sampled_from(self.windows)))

    @precondition(lambda self: self.encoding)
    @rule()
    def encoded(self) -> None:
        """In between an epoch may have ended."""
        for i in self.encoding:
            self.settle(i)
        self.encoding = []

    def settle(self, i: Item) -> None:
        i.partition.flying -= 1
        taken = i.partition.settle(Settled(i.record, "scored", None, None, i))
        assert taken == (self.partitions.get(i.partition.number) is i.partition), "an old epoch takes nothing in"
        if not taken:
            self.b.leave(i)

    @rule(n=st.sampled_from([0, 1]), limit=st.integers(1, 5))
    def publish(self, n: int, limit: int) -> None:
        p = self.partitions.get(n)
        if p is None or p.offsets is None:
            return
        unit = p.offsets.take(limit)
        assert all(s.item and s.item.partition is p for s in unit), "nothing of an old epoch is published"
        for s in unit:
            self.published[n].append(s.record.offset)
            assert s.item is not None
            self.b.leave(s.item)
        p.published(unit)

    @rule(n=st.sampled_from([0, 1]))
    def commit(self, n: int) -> None:
        p = self.partitions.get(n)
        if p is not None and p.offsets is not None:
            point = p.offsets.point(self.next[n])
            assert point >= self.committed[n], "an offset never goes backwards"
            self.committed[n] = point

    @rule(n=st.sampled_from([0, 1]), drained=st.booleans())
    def end(self, n: int, drained: bool) -> None:
        """Revoked after a commit, or lost without one: then what was published past it is published again."""
        p = self.partitions.get(n)
        if p is None or p.offsets is None:
            return
        if drained:
            self.committed[n] = p.offsets.point()
        p.close()
        del self.partitions[n]
        self.b.drop(lambda i: i.partition.alive)

    @invariant()
    def everything_below_the_commit_is_published(self) -> None:
        for n, p in self.partitions.items():
            assert p.offsets is not None
            unfinished = p.offsets.oldest
            assert unfinished is None or self.committed[n] <= unfinished.offset

    @invariant()
    def tokens_are_counted_and_bounded(self) -> None:
        waiting = sum(w.prepared.cost for w in self.b._waiting)
        assert self.b._waiting_tokens == waiting
        out = [w for w in self.windows if w not in self.b.decoding]
        assert self.b.tokens == waiting + sum(w.tokens for w in out)
        assert self.b.running == len(out) <= 2 and set(self.b.decoding) <= set(self.windows)
        assert sum(self.b.decoding.values()) <= DECODING * self.BUDGET or len(self.b.decoding) == 1
        assert all(w.tokens <= self.BUDGET or len(w.works) == 1 for w in self.windows)
        assert all(len(w.works) == 1 for w in self.windows if any(x.alone for x in w.works))

    @invariant()
    def a_window_closes_in_time(self) -> None:
        due = self.b.due()
        if due is not None and self.now >= due:
            probe: Any = self.b._cause(self.now)
            assert probe is not None

    @invariant()
    def nothing_waits_that_nobody_wants(self) -> None:
        assert all(w.items for w in self.b._waiting)
        assert all(i.partition.alive for w in self.b._flying.values() for i in w.items)


TestFlow = Flow.TestCase
TestFlow.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)

