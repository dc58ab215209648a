"""Every offset that a group commits, as the broker itself wrote it down: the records of __consumer_offsets."""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple

import kafka_io

TOPIC = "__consumer_offsets"


class Commit(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int


def commit(key: bytes | None, value: bytes | None) -> Commit | None:
    """None for what is no commit: a group's own metadata, or an offset that was deleted."""
    if key is None or value is None or struct.unpack_from(">h", key)[0] not in (0, 1):
        return None
    at, names = 2, []
    for _ in range(2):
        (length,) = struct.unpack_from(">h", key, at)
        names.append(key[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return Commit(names[0], names[1], struct.unpack_from(">i", key, at)[0], struct.unpack_from(">q", value, 2)[0])


class Commits:
    """Of one group and topic. Asking for the committed offset twice a second would miss a dip that is soon made good."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self.address, self.group, self.topic = address, group, topic
        self.seen = 0
        self.backwards: list[tuple[int, int, int]] = []  # partition, from, to
        self.newest: dict[int, int] = {}

    async def read(self) -> None:
        """Until cancelled. Transactions' commits count once they are committed, as for the group itself."""
        await kafka_io.committed(self.address, self.group, self.topic)  # asking for the coordinator makes the topic
        async for r in kafka_io.follow(self.address, TOPIC):
            self.take(commit(r.key, r.value))

    def take(self, c: Commit | None) -> None:
        if c is None or (c.group, c.topic) != (self.group, self.topic):
            return
        self.seen += 1
        before = self.newest.get(c.partition, 0)
        if c.offset < before:
            self.backwards.append((c.partition, before, c.offset))
        self.newest[c.partition] = c.offset

    async def caught_up(self, seconds: float = 10.0) -> bool:
        """The newest read are those that the group answers: nothing was missed up to now."""
        for _ in range(int(5 * seconds)):
            now = await kafka_io.committed(self.address, self.group, self.topic)
            if self.seen and all(self.newest.get(n) == offset for n, offset in now.items() if offset is not None):
                return True
            await asyncio.sleep(0.2)
        return False
