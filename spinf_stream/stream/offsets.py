"""The offsets of one partition in one epoch: seen, settled, published, committed.

Offsets have holes (transaction markers, compaction), so nothing here counts `offset + 1`: the commit point is the oldest
unpublished offset that was *seen*, or the consumer's position when there is none. Records settle in any order and are
published in offset order.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Seen(NamedTuple):
    offset: int
    timestamp: int  # ms, the record's own


class Offsets(Generic[T]):
    """`start` is where reading began, `committed` what the broker holds (None = nothing yet)."""

    def __init__(self, start: int, committed: int | None = None) -> None:
        self.committed = committed
        self.published = 0  # records of this epoch that are out
        self.secured = 0  # of those, below the committed offset
        self._point = start
        self._last = start - 1
        self._waiting: deque[Seen] = deque()  # seen, not yet published
        self._settled: dict[int, T] = {}  # of those, with a result that was not yet taken
        self._taken = 0  # the oldest of _waiting that are being published

    def see(self, offset: int, timestamp: int = -1) -> None:
        """A record was read. Raises ValueError for an offset that goes backwards: that belongs to another epoch."""
        if offset <= self._last:
            raise ValueError(f"offset {offset} after {self._last} in one epoch")
        self._last = offset
        self._waiting.append(Seen(offset, timestamp))

    def settle(self, offset: int, result: T) -> None:
        self._settled[offset] = result

    def take(self, limit: int) -> list[T]:
        """The settled run that follows what was taken before, in offset order, at most `limit` long."""
        run: list[T] = []
        while len(run) < limit and self._taken < len(self._waiting):
            offset = self._waiting[self._taken].offset
            if offset not in self._settled:
                break
            run.append(self._settled.pop(offset))
            self._taken += 1
        return run

    def publish(self, count: int) -> None:
        """The oldest `count` of the taken are out, acknowledged by the broker."""
        if count > self._taken:
            raise ValueError(f"{count} published of {self._taken} taken")
        for _ in range(count):
            self._point = self._waiting.popleft().offset + 1
        self._taken -= count
        self.published += count
        if self._waiting:
            self._point = self._waiting[0].offset

    def point(self, position: int | None = None) -> int:
        """Where a new owner has to begin. `position` = the consumer's, counted only when nothing waits."""
        if position is not None and not self._waiting and position > self._last:
            self._point = max(self._point, position)
        return self._point

    def after(self, count: int) -> int:
        """The point as it will be once the oldest `count` are published."""
        if count < len(self._waiting):
            return self._waiting[count].offset
        return self._waiting[-1].offset + 1 if self._waiting else self._point

    @property
    def waiting(self) -> int:
        """Records seen past the finished prefix."""
        return len(self._waiting)

    @property
    def uncommitted(self) -> int:
        """Records published past the committed offset: what a sudden death repeats."""
        return self.published - self.secured

    @property
    def settled(self) -> int:
        """Records with a result that are not published."""
        return len(self._settled) + self._taken

    @property
    def publishable(self) -> bool:
        return self._taken < len(self._waiting) and self._waiting[self._taken].offset in self._settled

    @property
    def oldest(self) -> Seen | None:
        return self._waiting[0] if self._waiting else None
