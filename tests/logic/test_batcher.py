"""When the batcher closes a window, what it lets out, and what it shares."""

from __future__ import annotations

from batcher_items import item, work

from spinf_stream.stream.batcher import DECODING, Batcher, Window
from spinf_stream.stream.flow import Work
from spinf_stream.stream.partitions import Partition

MAX_WAIT = 2.0


def add(b: Batcher, w: Work) -> Work:
    for i in w.items:
        i.work = w
    b.add(w)
    return w


def test_a_window_closes_when_a_budgets_worth_waits() -> None:
    b = Batcher(100, MAX_WAIT)
    add(b, work("a", 60))
    assert b.take(0.0) is None
    add(b, work("b", 60))
    add(b, work("c", 30))
    window = b.take(0.0)
    assert window is not None and window.cause == "full"
    assert [w.prepared.digest for w in window.works] == ["a", "c"], "what does not fit waits, what fits goes along"
    assert window.tokens == 90 and b.tokens == 150 and b.waiting == 1


def test_a_window_closes_max_wait_after_its_oldest_article() -> None:
    b = Batcher(100, MAX_WAIT)
    add(b, work("a", 10, now=1.0))
    add(b, work("b", 10, now=2.5))
    assert b.due() == 3.0 and b.take(2.9) is None
    window = b.take(3.0)
    assert window is not None and window.cause == "timeout" and len(window.works) == 2
    assert b.due() is None


def test_at_most_two_passes_and_the_window_stays_open_meanwhile() -> None:
    b = Batcher(10, MAX_WAIT)
    for i in range(5):
        add(b, work(str(i), 10))
    first, second = b.take(0.0), b.take(0.0)
    assert first and second and b.take(99.0) is None and b.due() is None
    b.done(first)
    assert b.take(99.0) is not None
    assert b.tokens == 40


def test_alone_means_alone() -> None:
    b = Batcher(100, MAX_WAIT, passes=9)
    add(b, work("a", 10))
    add(b, work("long", 500, alone=True))
    add(b, work("b", 10))
    taken = [b.take(0.0) for _ in range(3)]
    assert [[w.prepared.digest for w in t.works] if t else None for t in taken] == [["a", "b"], ["long"], None]


def test_a_suspect_runs_while_nothing_else_does() -> None:
    """Who dies beside it would be counted as if it had done it."""
    b = Batcher(100, MAX_WAIT)
    add(b, work("a", 100))
    add(b, work("suspect", 10, attempts=3))
    add(b, work("second", 10, attempts=4))
    add(b, work("b", 100))
    first = b.take(0.0)
    assert first and [w.prepared.digest for w in first.works] == ["a"]
    for name in ("suspect", "second", "b"):
        assert b.take(99.0) is None and b.due() is None, "the one before it is still out"
        b.done(first)
        first = b.take(0.0)
        assert first is not None and [w.prepared.digest for w in first.works] == [name]
    add(b, work("c", 100))
    assert b.take(0.0) is not None, "two again"
    b.done(first)
    b.closed = True
    add(b, work("d", 100))
    assert b.take(99.0) is None and b.due() is None, "nor does anybody go out after the engine is gone"


def test_flush_and_pressure_close_at_once() -> None:
    b = Batcher(100, MAX_WAIT, passes=9)
    for cause in ("revoke", "shutdown"):
        add(b, work(cause, 10))
        b.flushing = cause  # type: ignore[assignment]
        window = b.take(0.0)
        assert window is not None and window.cause == cause
    b.flushing = None
    add(b, work("c", 10))
    b.pressed = True
    window = b.take(0.0)
    assert window is not None and window.cause == "bytes"


def test_equal_texts_share_one_work_until_the_last_is_out() -> None:
    b = Batcher(100, MAX_WAIT)
    w = add(b, work("a", 60))
    second = item()
    second.work = w
    w.items.append(second)
    assert b.find(":a") is w
    b.leave(w.items[0])
    assert b.find(":a") is w and b.tokens == 60
    b.leave(second)
    assert b.find(":a") is None and b.tokens == 0 and b.waiting == 0 and b.take(99.0) is None


def test_dropping_an_epoch_saves_its_passes_and_spares_the_others() -> None:
    b = Batcher(100, MAX_WAIT)
    old, new = Partition("t", 0, 1), Partition("t", 1, 2)
    shared, own = work("shared", 30), work("own", 30)
    shared.items, own.items = [item(old), item(new)], [item(old)]
    add(b, shared)
    add(b, own)
    old.close()
    assert b.drop(lambda i: i.partition.alive) == 2
    assert b.find(":own") is None and b.find(":shared") is shared
    assert [i.partition for i in shared.items] == [new] and b.tokens == 30


def taken(b: Batcher, *costs: int, now: float = MAX_WAIT) -> list[Window]:
    """A window for each cost, as long as places are free."""
    out = []
    for i, cost in enumerate(costs):
        add(b, work(f"{now}-{i}", cost, now - MAX_WAIT))
        if (window := b.take(now)) is not None:
            out.append(window)
    return out


def test_a_pass_that_only_decodes_gives_its_place_to_the_next() -> None:
    b = Batcher(100, MAX_WAIT)
    one, two = taken(b, 100, 30)
    add(b, work("waits", 40, 0.0))
    assert b.take(9.0) is None and b.tokens == 170
    b.read(one)
    assert b.running == 1 and b.tokens == 70, "what only decodes holds up nobody"
    (three,) = [b.take(9.0)]
    assert three is not None and b.running == 2
    b.done(one)
    assert (b.running, b.tokens, b.decoding) == (2, 70, {})
    b.done(two)
    b.done(three)
    assert (b.running, b.tokens) == (0, 0)


def test_no_more_is_decoded_than_may_be_kept() -> None:
    b = Batcher(100, MAX_WAIT)
    windows: list[Window] = []
    for n in range(9):
        if made := taken(b, 40, now=MAX_WAIT + n):
            windows += made
            b.read(made[0])
    assert len(b.decoding) == 2 and sum(b.decoding.values()) == 80 <= DECODING * b.budget
    assert b.running == 2 and b.waiting == 5, "two decode beside, two in their places, the others wait"
    b.done(windows[0])
    assert len(b.decoding) == 2 and b.running == 1, "another has given up its place now"
    large = taken(Batcher(100, MAX_WAIT), 900)
    assert large[0].tokens == 900
    alone = Batcher(100, MAX_WAIT)
    (only,) = taken(alone, 900)
    alone.read(only)
    assert alone.running == 0, "one alone may be of any size"


def test_a_pass_made_anew_is_out_again() -> None:
    b = Batcher(100, MAX_WAIT)
    (one,) = taken(b, 60)
    b.read(one)
    assert (b.running, b.tokens) == (0, 0)
    taken(b, 100, 100, now=9.0)
    b.again(one)
    assert (b.running, b.tokens) == (3, 260) and b.take(99.0) is None
    b.done(one)
    assert (b.running, b.tokens) == (2, 200)


def test_a_suspect_is_the_only_one_out_while_it_decodes_too() -> None:
    b = Batcher(100, MAX_WAIT)
    (one,) = taken(b, 60)
    b.read(one)
    add(b, work("suspect", 10, 0.0, attempts=4))
    assert b.take(9.0) is None, "somebody decodes"
    b.done(one)
    (suspect,) = [b.take(9.0)]
    assert suspect is not None
    b.read(suspect)
    add(b, work("next", 10, 0.0))
    assert b.running == 1 and b.take(99.0) is None
    b.done(suspect)
    assert b.take(99.0) is not None
