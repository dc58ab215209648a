"""The offsets of one partition against a small model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spinf_stream.stream.offsets import Offsets


def test_holes_are_no_obstacle_and_the_position_closes_the_end() -> None:
    o: Offsets[str] = Offsets(5)
    for offset in (6, 9, 10):  # 5, 7, 8 are markers
        o.see(offset)
    assert o.point(11) == 5, "nothing is published, so the position does not count"
    for offset in (10, 6, 9):
        o.settle(offset, str(offset))
    assert o.take(2) == ["6", "9"]
    assert o.after(2) == 10
    o.publish(1)
    assert o.point() == 9
    o.publish(1)
    assert o.point() == 10
    assert o.take(9) == ["10"]
    assert o.after(1) == 11
    o.publish(1)
    assert o.point() == 11
    assert o.point(14) == 14, "trailing markers: the consumer's position"
    assert o.point() == 14


def test_an_unsettled_record_holds_the_later_ones_back() -> None:
    o: Offsets[int] = Offsets(0)
    for offset in range(3):
        o.see(offset)
    o.settle(1, 1)
    o.settle(2, 2)
    assert o.take(9) == [] and not o.publishable and o.settled == 2
    o.settle(0, 0)
    assert o.publishable and o.take(9) == [0, 1, 2]


def test_going_backwards_is_another_epoch() -> None:
    o: Offsets[int] = Offsets(10)
    o.see(10)
    with pytest.raises(ValueError, match="offset 9 after 10"):
        o.see(9)
    with pytest.raises(ValueError, match="1 published of 0 taken"):
        o.publish(1)


class OffsetsMachine(RuleBasedStateMachine):
    """The model: a list of seen offsets and a set of those published."""

    def __init__(self) -> None:
        super().__init__()
        self.o: Offsets[int] = Offsets(3)
        self.seen: list[int] = []
        self.settled: set[int] = set()
        self.taken: list[int] = []
        self.out: list[int] = []
        self.points = [self.o.point()]

    @rule(gap=st.integers(0, 3))
    def see(self, gap: int) -> None:
        offset = (self.seen[-1] + 1 if self.seen else 3) + gap
        self.o.see(offset, offset * 10)
        self.seen.append(offset)

    @precondition(lambda self: len(self.settled) < len(self.seen))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([s for s in self.seen if s not in self.settled]))
        self.settled.add(offset)
        self.o.settle(offset, offset)

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        run = self.o.take(limit)
        rest = [s for s in self.seen if s not in self.out and s not in self.taken]
        expect = []
        while len(expect) < limit and rest and rest[0] in self.settled:
            expect.append(rest.pop(0))
        assert run == expect
        self.taken += run

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.taken)))
        after = self.o.after(count)
        self.o.publish(count)
        self.out += self.taken[:count]
        del self.taken[:count]
        assert self.o.point() == after

    @rule(ahead=st.integers(0, 4))
    def commit(self, ahead: int) -> None:
        """The consumer's position is past everything that it handed out."""
        self.points.append(self.o.point((self.seen[-1] + 1 if self.seen else 3) + ahead))
        if not self.o.waiting and ahead:  # what comes next comes after the position
            self.seen.append(self.points[-1] - 1)
            self.settled.add(self.points[-1] - 1)
            self.out.append(self.points[-1] - 1)

    @invariant()
    def never_past_an_unpublished_one_and_never_backwards(self) -> None:
        point = self.o.point()
        waiting = [s for s in self.seen if s not in self.out]
        assert not waiting or point <= waiting[0]
        assert all(s < point for s in self.out if not waiting or s < waiting[0])
        assert point >= self.points[-1]
        assert self.o.waiting == len(waiting)
        assert self.out == sorted(self.out)
        assert (self.o.oldest.offset if self.o.oldest else None) == (waiting[0] if waiting else None)


TestOffsetsMachine = OffsetsMachine.TestCase
TestOffsetsMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_any_order_of_settling_publishes_in_order(gaps: list[int], random) -> None:  # type: ignore[no-untyped-def]
    o: Offsets[int] = Offsets(0)
    offsets = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    for offset in offsets:
        o.see(offset)
    order = offsets[:]
    random.shuffle(order)
    out: list[int] = []
    for offset in order:
        o.settle(offset, offset)
        run = o.take(5)
        o.publish(len(run))
        out += run
    while run := o.take(5):
        o.publish(len(run))
        out += run
    assert out == offsets and o.point() == offsets[-1] + 1
