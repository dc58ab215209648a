"""Articles on their way, as the batcher gets them."""

from __future__ import annotations

from spinf_stream.engine.scorer import Prepared
from spinf_stream.records import Article
from spinf_stream.stream.flow import Item, Record, Work
from spinf_stream.stream.partitions import Partition


def work(digest: str, cost: int, now: float = 0.0, alone: bool = False, attempts: int = 0) -> Work:
    return Work(Prepared("", digest, (), cost, cost, False, alone, ()), now, attempts, [item()])


def item(partition: Partition | None = None, offset: int = 0) -> Item:
    p = partition or Partition("t", 0, 1)
    return Item(Record(p.topic, p.number, offset, -1, None, b"", ()), p, Article(text="x"), "id", "application/json", 0.0)
