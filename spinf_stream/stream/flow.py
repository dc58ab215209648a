"""What crosses from stage to stage: one direction, no way back.

    Record -> Item -> Work -> verdict (Answer or Refused) -> Settled -> Outgoing

A Record is what the broker gave. An Item is a record that can be scored, in the epoch of its partition. Equal texts in
flight share one Work and so one pass. A Settled record has its outcome and knows what is to be published for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from spinf_stream.engine.scorer import Prepared
from spinf_stream.records import Answer, Article, Outcome, Reason, Refused

if TYPE_CHECKING:
    from spinf_stream.stream.partitions import Partition

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """A consumed record, undecoded. A header key that is not UTF-8 carries its bytes as surrogate escapes."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # ms since 1970, -1 = none
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value or b"") + sum(len(k) + len(v or b"") for k, v in self.headers)


class Outgoing(NamedTuple):
    """A record to publish. `partition` None = by key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None
    partition: int | None = None

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value or b"") + sum(len(k) + len(v or b"") for k, v in self.headers)


class Settled(NamedTuple):
    """A record with its outcome, waiting for its turn to be published."""

    record: Record
    outcome: Outcome
    out: Outgoing | None  # None: counted, nothing is published
    reason: Reason | None = None  # of the dead
    item: Item | None = None  # of those that had a work
    mark: Answer | None = None  # to be remembered under the item's digest once `out` is committed
    held: int = 0  # bytes of the answer that is held with it, for equal texts and for the mark

    @property
    def size(self) -> int:
        return 0 if self.out is None else self.out.size

    @property
    def weight(self) -> int:
        """Bytes in memory beside the record."""
        return self.size + self.held


@dataclass(eq=False, slots=True)
class Item:
    record: Record
    partition: Partition  # one epoch of it; work for an epoch that is over is dropped
    article: Article
    id: str
    content_type: str
    arrived: float  # monotonic seconds, when it was read
    work: Work | None = None


@dataclass(eq=False, slots=True)
class Work:
    """One content in flight and the items that wait for its answer; the first of them is `scored`, others `duplicate`."""

    prepared: Prepared
    arrived: float  # monotonic seconds, when it came into the batcher
    attempts: int = 0  # passes begun by workers that never said how they ended
    items: list[Item] = field(default_factory=list)  # those not yet published, in order of arrival
    verdict: Answer | Refused | None = None
    first: bool = True  # nobody has been answered yet
    said: bool = False  # an output was made for one of them
    through: object | None = None  # its pass, where that is traced

    @property
    def suspect(self) -> bool:
        return self.attempts >= ALONE_AFTER

    @property
    def alone(self) -> bool:
        return self.prepared.alone or self.suspect


ALONE_AFTER = 3  # attempts: then the content runs in a pass of its own, and no other beside it (DECISIONS 17)
DEAD_AFTER = 5  # attempts: then it is dead
