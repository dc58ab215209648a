"""How to connect to Redis: TLS and ACL from the address, deadlines on the connection, no retries behind our back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from spinf_stream.config import Settings

__all__ = ["Breaker", "RedisError", "connect"]

BACKOFF = (0.25, 10.0)  # seconds of leaving Redis alone, doubling from first to last


def connect(s: Settings) -> Any:
    """A client of redis://, rediss:// (`?ssl_ca_certs=FILE`), or of an embedded one. Nothing is sent yet.

    The embedded one lives in this process and is gone with it (DECISIONS 13).
    """
    if s.redis_url.startswith("embedded://"):
        from burner_redis import BurnerRedis

        return _Embedded(BurnerRedis())
    seconds = s.redis_timeout_ms / 1000
    more: dict[str, Any] = {"password": s.redis_password} if s.redis_password else {}
    return Redis.from_url(
        s.redis_url, socket_timeout=seconds, socket_connect_timeout=seconds, retry=Retry(NoBackoff(), 0),
        client_name="spinf-stream", **more,
    )  # fmt: skip


class _Embedded:
    """BurnerRedis as far as done marks need it, in the shape of redis-py."""

    def __init__(self, db: Any) -> None:
        self._db = db

    async def mget(self, keys: list[str]) -> list[bytes | None]:
        return list(await self._db.mget(*keys))

    async def set(self, key: str, value: bytes, ex: int) -> Any:
        return await self._db.set(key, value, ex=ex)

    def pipeline(self, transaction: bool = False) -> Any:
        return self._db.pipeline()

    async def aclose(self) -> None:
        return None


class Breaker:
    """Lets one request through now and then while the other side is away."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._wait = BACKOFF[0]

    @property
    def closed(self) -> bool:
        return self._clock() >= self._until

    def ok(self) -> None:
        self._until, self._wait = 0.0, BACKOFF[0]

    def failed(self) -> None:
        self._until = self._clock() + self._wait
        self._wait = min(2 * self._wait, BACKOFF[1])
