"""One epoch of one assigned partition: from its opening until it is revoked, lost or aborted.

Every item in flight holds the Partition object it was read under. When the epoch is over the object is closed and what
still comes for it is dropped: nothing of an old epoch is published or committed.
"""

from __future__ import annotations

import asyncio

from spinf_stream.stream.flow import Record, Settled
from spinf_stream.stream.offsets import Offsets


class Partition:
    def __init__(self, topic: str, number: int, epoch: int) -> None:
        self.topic = topic
        self.number = number
        self.epoch = epoch  # grows with every opening of any partition in this worker
        self.offsets: Offsets[Settled] | None = None  # set when it is open
        self.alive = True
        self.admitting = True  # records read go on to the batcher; false from the start of a drain
        self.silent = False  # no unit is begun any more; the one under way may end
        self.flying = 0  # items admitted and not yet settled
        self.bytes = 0  # of the records seen and not yet published, of their outputs and answers
        self.publishing = False
        self.fruitful = False  # something of this epoch was published
        self.changed = asyncio.Event()  # something settled: the publisher looks

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.number}"

    def open(self, start: int, committed: int | None) -> None:
        self.offsets = Offsets(start, committed)

    def see(self, record: Record) -> None:
        assert self.offsets is not None
        self.offsets.see(record.offset, record.timestamp)
        self.bytes += record.size

    def settle(self, settled: Settled) -> bool:
        """Take a result in; False when the epoch is over and it was dropped."""
        if not self.alive or self.offsets is None:
            return False
        self.offsets.settle(settled.record.offset, settled)
        self.bytes += settled.weight
        self.changed.set()
        return True

    def published(self, unit: list[Settled]) -> None:
        """As it was settled, whatever became of it on its way out: what was added is taken away."""
        assert self.offsets is not None
        self.offsets.publish(len(unit))
        self.bytes -= sum(s.record.size + s.weight for s in unit)
        self.fruitful = True

    def close(self) -> None:
        self.alive = self.admitting = False
        self.bytes = 0
        self.changed.set()

    @property
    def waiting(self) -> int:
        return self.offsets.waiting if self.offsets is not None else 0

    @property
    def exposed(self) -> int:
        """Records read past the committed offset."""
        return self.offsets.waiting + self.offsets.uncommitted if self.offsets is not None else 0

    @property
    def drained(self) -> bool:
        """All that was admitted is settled, and all that can be published is; or the epoch is over."""
        return not self.alive or self.offsets is None or not (self.flying or self.publishing or self.offsets.publishable)
