"""Epoch, publisher and delivery over a broker that answers as it likes: nothing of an old epoch is published, nothing is
committed that was not published, each in offset order; exactly once also nothing twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from publisher_world import RUN, World

from spinf_stream.stream import delivery, publisher

KINDS = ("scored", "dead", "dead", "duplicate")  # of a duplicate nothing is published
ANSWERS = ("ok", "ok", "other", "other", "timestamp", "too_large", "written but failed")


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
