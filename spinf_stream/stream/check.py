"""`worker --check`: brokers, topics and Redis, one clear line each."""

from __future__ import annotations

import sys

from spinf_stream.config import Settings, shown
from spinf_stream.stream import kafka
from spinf_stream.stream.redis_client import RedisError, connect


async def check(settings: Settings) -> int:
    """Print a line for each dependency; 0 when all are there, else 3."""
    lines = [*await _topics(settings), await _redis(settings)]
    for ok, line in lines:
        print(f"{'ok  ' if ok else 'FAIL'} {line}", file=sys.stderr)
    return 0 if all(ok for ok, _ in lines) else 3


async def _topics(s: Settings) -> list[tuple[bool, str]]:
    names = (s.input_topic, s.output_topic, s.dlq_topic)
    try:
        facts = await kafka.topic_facts(s, names)
    except kafka.Away as e:
        return [(False, str(e))]
    lines = [(True, f"Kafka at {s.brokers}")]
    for name in names:
        if name in facts:
            lines.append((True, f"topic {name}: {facts[name].partitions} partitions, records up to {facts[name].max_bytes} bytes"))
        elif s.create_topics:
            lines.append((True, f"topic {name}: not there, the worker will make it"))
        else:
            lines.append((False, f"topic {name}: not there, run `spinf-stream topics create` or set create_topics = true"))
    return lines


async def _redis(s: Settings) -> tuple[bool, str]:
    if not s.redis_url:
        return True, "Redis: not configured, no dedup"
    where = shown("redis_url", s.redis_url)
    try:
        client = connect(s)
        try:
            await client.set("spinf:ping", b"1", ex=60)
        finally:
            await client.aclose()
    except (RedisError, OSError, ValueError) as e:
        return False, f"Redis at {where}: {type(e).__name__}"
    return True, f"Redis at {where}: writable"
