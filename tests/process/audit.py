"""What a run of the chaos harness is judged by: the topics alone, read as any consumer reads them."""

from __future__ import annotations

import asyncio
import collections
import json
import time
from collections.abc import Sequence
from typing import NamedTuple

import kafka_io
from aiokafka.structs import ConsumerRecord
from commits import Commits

OURS = "spinf.error."


class Seen(NamedTuple):
    id: str
    key: bytes
    at: float  # monotonic seconds, when the auditor read it
    place: tuple[int, int]  # partition, offset in the scores topic


class Letter(NamedTuple):
    """A poisoned record as it was sent, and what its dead letter must say."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    reason: str


def letter(r: ConsumerRecord) -> Letter:
    """Of a dead letter: what it kept of the record, and its reason."""
    theirs = tuple(h for h in r.headers if not h[0].startswith(OURS))
    return Letter(r.key, r.value, theirs, (dict(r.headers).get(OURS + "reason") or b"").decode())


class Verdict(NamedTuple):
    lost: int
    duplicates: int
    order_breaks: int  # of a key: an article's first score after a later article's
    backwards: int  # committed offsets that went back
    commits: int  # seen, each of them
    commits_missed: bool  # the last ones seen are not the group's own
    dead_lost: int
    dead_duplicates: int
    dead_wrong: int  # dead letters that are no poison, or whose key, bytes, headers or reason differ


class Auditor:
    """Reads the scores topic with read_committed, and every commit of the group, for as long as the run lasts."""

    def __init__(self, address: str, scores: str, source: str, group: str) -> None:
        self.address, self.scores, self.source, self.group = address, scores, source, group
        self.seen: list[Seen] = []
        self.ids: collections.Counter[str] = collections.Counter()
        self.commits = Commits(address, group, source)
        self._newest: dict[int, float] = {}  # scores partition -> when its last score was read
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, partitions: int) -> None:
        self._newest = dict.fromkeys(range(partitions), 0.0)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self.commits.read())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def duplicates(self) -> int:
        return sum(n - 1 for n in self.ids.values())

    async def all_moving_after(self, moment: float, seconds: float) -> float:
        """Seconds from the moment until every partition has brought a score that was read after it. Raises TimeoutError."""
        while min(self._newest.values(), default=0.0) <= moment:
            if time.monotonic() - moment > seconds:
                raise TimeoutError(f"a partition brought no score within {seconds:g} s of a fault: {self._newest}")
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)
        return time.monotonic() - moment

    async def _read(self) -> None:
        async for r in kafka_io.follow(self.address, self.scores):
            if r.key is not None and r.value:
                id_ = json.loads(r.value)["id"]
                self.ids[id_] += 1
                self._newest[r.partition] = time.monotonic()
                self.seen.append(Seen(id_, r.key, time.monotonic(), (r.partition, r.offset)))

    async def verdict(self, sent: Sequence[tuple[str, bytes]], poison: Sequence[Letter], dead: Sequence[Letter]) -> Verdict:
        """sent: (id, key) in order of sending; dead: of the dead-letter topic. Once all workers are gone."""
        order = {id_: n for n, (id_, _) in enumerate(sent)}
        newest: dict[bytes, int] = {}
        breaks = 0
        counted: set[str] = set()
        for s in sorted(self.seen, key=lambda s: s.place):
            if s.id in counted or s.id not in order:
                continue
            counted.add(s.id)
            breaks += order[s.id] < newest.get(s.key, -1)
            newest[s.key] = max(order[s.id], newest.get(s.key, -1))
        wanted, got = collections.Counter(poison), collections.Counter(dead)
        missed = not await self.commits.caught_up()
        return Verdict(
            lost=sum(id_ not in self.ids for id_ in order),
            duplicates=self.duplicates,
            order_breaks=breaks,
            backwards=len(self.commits.backwards),
            commits=self.commits.seen,
            commits_missed=missed,
            dead_lost=sum((wanted - got).values()),
            dead_duplicates=sum(max(0, got[v] - n) for v, n in wanted.items()),
            dead_wrong=sum(n for v, n in got.items() if v not in wanted),
        )


async def hanging(address: str, topic: str, partitions: int) -> int:
    """Partitions whose last record a read_committed reader cannot reach: an open transaction holds it back."""
    ends = [kafka_io.Rec(b"", None, (), n) for n in range(partitions)]
    await kafka_io.produce(address, topic, ends)
    try:
        read = await kafka_io.read_all(address, topic, seconds=20)
    except TimeoutError:
        return partitions
    return partitions - sum(r.value == b"" for r in read)


async def uncommitted(address: str, group: str, topic: str) -> int:
    """Records of the input that the group has not committed."""
    points = await kafka_io.committed(address, group, topic)
    ends: collections.Counter[int] = collections.Counter()
    for r in await kafka_io.read_all(address, topic):
        ends[r.partition] = max(ends[r.partition], r.offset + 1)
    return sum(max(0, end - (points.get(n) or 0)) for n, end in ends.items())
