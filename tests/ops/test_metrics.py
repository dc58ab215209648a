"""The metrics page itself: no series too many, a quick scrape, and a lag that is the broker's own."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))
from stage import Stage, Topics, articles

from spinf_stream.metrics import Metrics


def series(m: Metrics) -> int:
    return sum(not line.startswith("#") for line in m.text().decode().splitlines())


def test_series_stay_as_many_over_assignments_and_a_scrape_is_quick() -> None:
    """One process a GPU with its own registry: nothing is left of a partition or a worker that has gone."""
    m = Metrics(32_768)
    m.of_partition("articles", 0)
    before = series(m)
    for _ in range(200):
        m.of_partition("articles", 1)
        m.forget_partition("articles", 1)
    gone = {'spinf_stream_records_consumed_total{partition="1"', 'spinf_stream_consumed_bytes_total{partition="1"'}
    left = [line for line in m.text().decode().splitlines() if 'partition="1"' in line and "_created" not in line]
    assert {line.split(",")[0] for line in left} == gone, "what was counted stays, lag and offsets go"
    assert series(m) <= before + 4  # those two counters and when they began
    assert series(Metrics(32_768)) < before
    times = []
    for _ in range(10):
        began = time.perf_counter()
        m.text()
        times.append(time.perf_counter() - began)
    assert min(times) < 0.05


@pytest.mark.kafka
def test_lag_is_what_the_broker_says(kafka: str, topics: Any) -> None:
    """End of each partition minus its committed offset, within a commit interval and a look at the ends."""

    async def lag(t: Topics) -> int:
        client = AIOKafkaConsumer(bootstrap_servers=kafka)
        await client.start()
        try:
            ends = await client.end_offsets([TopicPartition(t.source, n) for n in (0, 1)])
        finally:
            await client.stop()
        committed = await t.committed()
        return sum(end - (committed[tp.partition] or 0) for tp, end in ends.items())

    async def main() -> None:
        t = Topics(kafka, topics, 2)
        await t.fill(articles([f"a{i}" for i in range(400)], partitions=2))
        async with Stage(t.settings(max_inflight_records=8), seconds=0.25) as w:
            await w.until(lambda: 30 <= w.value("records_total", outcome="scored") <= 350, 20)
            await w.until(lambda: w.value("lag_records") > 0, 5)
            before = await lag(t)
            shown = w.value("lag_records")
            after = await lag(t)
            slack = 2 * 8 * 4  # what is published in the moments between the three looks
            assert after - slack <= shown <= before + slack and before > 0, (before, shown, after)
            await w.until(lambda: w.value("lag_records") == 0, 30)
            await asyncio.sleep(0.3)  # one commit interval
            assert await lag(t) == 0

    asyncio.run(main())
