"""The token-budget micro-batcher: synchronous, with the time handed in.

Works wait in order of arrival. A window closes when a budget's worth waits (`full`), when its oldest work has waited
`max_wait` seconds (`timeout`), when more cannot come (`bytes`), or at once while flushing (`revoke`, `shutdown`). It
opens for more as long as both passes are busy: waiting for the engine costs nothing but makes it fuller.

A pass whose reads are over and whose slots are still being decoded gives its place to the next, so that new articles never
wait for a long generation; but no more of them than the keys and values that they keep may take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from spinf_stream.stream.flow import Item, Work

Cause = Literal["full", "timeout", "revoke", "shutdown", "bytes"]
DECODING = 1.0  # budgets of content tokens in windows that have given up their places; more keep them
LOOK_AHEAD = 512  # works looked at to fill a window; the oldest is always in it, so nobody starves


class Window(NamedTuple):
    works: tuple[Work, ...]
    tokens: int
    cause: Cause


class Batcher:
    """At most `passes` windows are out at a time; each holds at most `budget` tokens, or one work alone. A suspect's is the
    only one out: if the engine dies of it, nobody else is counted as having been there."""

    def __init__(self, budget: int, max_wait: float, passes: int = 2) -> None:
        self.budget = budget
        self.max_wait = max_wait
        self.passes = passes
        self._suspect_out = False
        self.tokens = 0  # waiting and in passes, those left out that only decode
        self.decoding: dict[Window, int] = {}  # that have given up their places: their content tokens
        self._places: dict[Window, bool] = {}  # windows in passes: whether only slots are left to decode
        self.closed = False  # the engine is gone: whoever went out now would be counted with what it died of
        self.flushing: Cause | None = None
        self.pressed = False  # the limit of bytes in flight is reached
        self._waiting: list[Work] = []
        self._waiting_tokens = 0
        self._flying: dict[str, Work] = {}  # by Prepared.key, until the last item is published or dropped

    def find(self, key: str) -> Work | None:
        """The work of an equal text in flight: join it instead of adding another."""
        return self._flying.get(key)

    def add(self, work: Work) -> None:
        self._flying[work.prepared.key] = work
        self._waiting.append(work)
        self._waiting_tokens += work.prepared.cost
        self.tokens += work.prepared.cost

    def take(self, now: float) -> Window | None:
        """The next window, if one closes now and a pass is free."""
        cause = self._cause(now)
        if cause is None:
            return None
        oldest = self._waiting[0]
        chosen, tokens = [oldest], oldest.prepared.cost
        if not oldest.alone:
            for work in self._waiting[1:LOOK_AHEAD]:
                if not work.alone and tokens + work.prepared.cost <= self.budget:
                    chosen.append(work)
                    tokens += work.prepared.cost
        out = set(map(id, chosen))
        self._waiting = [w for w in self._waiting if id(w) not in out]
        self._waiting_tokens -= tokens
        self._suspect_out = oldest.suspect
        window = Window(tuple(chosen), tokens, cause)
        self._places[window] = False
        return window

    def read(self, window: Window) -> None:
        """Nothing of the window is left but slots to decode. A suspect keeps its place: it stays the only one out."""
        if window in self._places and not self._suspect_out:
            self._places[window] = True
            self._give_up()

    def again(self, window: Window) -> None:
        """The window's pass is made anew: it is out again, even beside as many as may be."""
        if window in self.decoding:
            del self.decoding[window]
            self.tokens += window.tokens
        self._places[window] = False

    def done(self, window: Window) -> None:
        """The window's pass is over, whatever came of it."""
        if window in self._places:
            del self._places[window]
            self._suspect_out = False  # it was the only one
            self.tokens -= window.tokens
        else:
            del self.decoding[window]
        self._give_up()

    def due(self) -> float | None:
        """When `take` may next return a window because of its age; None while no pass is free or nothing waits."""
        if not self._open():
            return None
        return self._waiting[0].arrived + self.max_wait

    def leave(self, item: Item) -> None:
        """The item is published or dropped. The work goes with its last item; if it still waits, its pass is saved."""
        work = item.work
        if work is None or item not in work.items:
            return
        work.items.remove(item)
        if work.items or self._flying.get(work.prepared.key) is not work:
            return
        del self._flying[work.prepared.key]
        if work in self._waiting:
            self._waiting.remove(work)
            self._waiting_tokens -= work.prepared.cost
            self.tokens -= work.prepared.cost

    def drop(self, keep: Callable[[Item], bool]) -> int:
        """Drop every item that `keep` refuses (its partition's epoch is over); how many were dropped."""
        gone = [i for w in self._flying.values() for i in w.items if not keep(i)]
        for item in gone:
            self.leave(item)
        return len(gone)

    @property
    def running(self) -> int:
        """Windows in their places."""
        return len(self._places)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _open(self) -> bool:
        """A window may go out, once it has reason to."""
        if self.closed or not self._waiting or self.running >= self.passes or self._suspect_out:
            return False
        return not (self._places or self.decoding) or not self._waiting[0].suspect

    def _give_up(self) -> None:
        for window in [w for w, read in self._places.items() if read]:
            content = sum(w.prepared.content_tokens for w in window.works)
            if self.decoding and sum(self.decoding.values()) + content > DECODING * self.budget:
                return
            del self._places[window]
            self.decoding[window] = content
            self.tokens -= window.tokens

    def _cause(self, now: float) -> Cause | None:
        if not self._open():
            return None
        oldest = self._waiting[0]
        if self._waiting_tokens >= self.budget or oldest.alone:
            return "full"
        if self.flushing is not None:
            return self.flushing
        if self.pressed:
            return "bytes"
        return "timeout" if now >= oldest.arrived + self.max_wait else None  # the same sum as in due()
