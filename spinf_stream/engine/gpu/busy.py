"""Device time of passes and of decode steps, no moment of it counted twice.

Both run on one stream. Passes and the forwards of steps are launched whole, under a lock; the head of a step is not: it
waits for its numbers, and another thread may launch a pass between two of its kernels. So the span of a head may hold
passes, and the span of a pass some of a head.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple


class Span(NamedTuple):
    began: Any  # torch.cuda.Event with timing
    ended: Any

    @property
    def seconds(self) -> float:
        return float(self.began.elapsed_time(self.ended)) / 1e3


class Busy:
    """`head` and `whole` are called by one thread, once the span is over."""

    def __init__(self) -> None:
        self.passes: deque[Span] = deque(maxlen=32)  # launched last
        self.heads: deque[tuple[Span, list[Span]]] = deque(maxlen=32)  # counted last, each without these passes

    def launched(self, span: Span) -> None:
        """A pass; its events are recorded. By any thread."""
        self.passes.append(span)

    def head(self, span: Span) -> float:
        """Seconds of a step's head, without passes that are over: they are counted on their own."""
        over = [p for p in list(self.passes) if p.ended.query()]
        self.heads.append((span, over))
        return span.seconds - covered(span, over)

    def whole(self, span: Span) -> float:
        """Seconds of a pass, without what a head has counted of it."""
        return span.seconds - covered(span, [head for head, over in self.heads if all(p is not span for p in over)])


def covered(span: Span, others: Iterable[Span]) -> float:
    """Seconds of a span that lie in any of the others. Offsets are taken from its beginning: floats of small size."""
    parts = []
    for other in others:
        low = max(0.0, float(span.began.elapsed_time(other.began)) / 1e3)
        high = min(span.seconds, float(span.began.elapsed_time(other.ended)) / 1e3)
        if low < high:
            parts.append((low, high))
    total = at = 0.0
    for low, high in sorted(parts):
        total += max(0.0, high - max(low, at))
        at = max(at, high)
    return total
