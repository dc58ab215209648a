"""A Redis in this process, for tests of what is asked of it and of what its failures cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spinf_stream.stream.redis_client import RedisError


class Store:
    """As much of redis.asyncio as is used. `fail` raises for every command."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.fail = False
        self.late = False  # commands are done, their answers come too late
        self.asked = 0

    async def mget(self, keys: list[str]) -> list[bytes | None]:
        self._touch()
        return [self.data.get(k) for k in keys]

    def pipeline(self, transaction: bool) -> Any:
        return Pipe(self)

    async def aclose(self) -> None:
        return None

    async def set(self, key: str, value: bytes, ex: int) -> None:
        self._touch()
        self.data[key] = value

    def _touch(self) -> None:
        self.asked += 1
        if self.fail:
            raise RedisError("away")


class Pipe:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.todo: list[Callable[[], object]] = []

    def set(self, key: str, value: bytes, ex: int) -> None:
        self.todo.append(lambda: self.store.data.__setitem__(key, value))

    def append(self, key: str, value: bytes) -> None:
        self.todo.append(lambda: self.store.data.__setitem__(key, self.store.data.get(key, b"") + value))

    def expire(self, key: str, seconds: int) -> None:
        assert seconds > 0

    def delete(self, key: str) -> None:
        self.todo.append(lambda: self.store.data.pop(key, None))

    async def execute(self) -> list[Any]:
        self.store._touch()
        for do in self.todo:
            do()
        if self.store.late:
            raise RedisError("timeout")
        return [None] * len(self.todo)
