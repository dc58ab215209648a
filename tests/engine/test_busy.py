"""Device time of passes and decode steps: no moment of it is counted twice, and what is exported is not clipped."""

from __future__ import annotations

import random

from spinf_stream.engine.gpu.busy import Busy, Span, covered


class Event:
    def __init__(self, at: float, over: bool = True) -> None:
        self.at, self.over = at, over

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.at - self.at)

    def query(self) -> bool:
        return self.over


def span(began: float, ended: float) -> Span:
    return Span(Event(began), Event(ended))


def test_what_others_cover_is_counted_once() -> None:
    assert covered(span(10, 20), []) == 0
    assert covered(span(10, 20), [span(0, 10), span(20, 30)]) == 0
    assert round(covered(span(10, 20), [span(0, 12), span(11, 14), span(13, 13.5), span(19, 40)]), 9) == 5
    assert covered(span(10, 20), [span(0, 40)]) == 10


def test_a_pass_inside_a_head_is_the_pass_s_own() -> None:
    busy, inside = Busy(), span(2, 8)
    busy.launched(inside)
    assert round(busy.head(span(1, 9)), 9) == 2
    assert round(busy.whole(inside), 9) == 6


def test_a_pass_that_still_runs_leaves_out_what_the_head_has_counted() -> None:
    busy, running = Busy(), Span(Event(5), Event(20, over=False))
    busy.launched(running)
    assert round(busy.head(span(1, 9)), 9) == 8
    running.ended.over = True
    assert round(busy.whole(running), 9) == 11


def test_all_of_a_busy_stream_adds_up_to_the_time_of_the_clock() -> None:
    """Passes and heads of random lengths over one another: the sum is the union of them."""
    draw = random.Random(3)
    for _ in range(30):
        busy, spans, total, waiting = Busy(), [], 0.0, []
        at = 0.0
        for _ in range(40):
            low = at + draw.random()
            one = span(low, low + 2 * draw.random())
            spans.append(one)
            if draw.random() < 0.5:
                busy.launched(one)
                waiting.append(one)
                at = one.ended.at  # passes do not meet one another
            else:
                for p in busy.passes:
                    p.ended.over = p.ended.at <= one.ended.at
                total += busy.head(one)
                at = one.ended.at if draw.random() < 0.5 else low  # a pass may begin inside a head
                if at == low:
                    inner = span(low + 0.1, low + 0.1 + draw.random())
                    busy.launched(inner)
                    waiting.append(inner)
                    spans.append(inner)
                    at = max(one.ended.at, inner.ended.at)
        total += sum(map(busy.whole, waiting))
        edges = sorted((s.began.at, s.ended.at) for s in spans)
        union = end = 0.0
        for low, high in edges:
            union += max(0.0, high - max(low, end))
            end = max(end, high)
        assert abs(total - union) < 1e-6
