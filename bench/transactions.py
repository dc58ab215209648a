"""What exactly once costs: records/s under both guarantees on 1, 4 and 12 partitions, on real Kafka.

    python bench/transactions.py

The engine is a fake that sleeps 400 ms for each pass of 48 records, as a large model on a fast card would take; the rest
is the worker itself. Each run drains a topic that is filled before it starts. The two guarantees take turns, each first
in every second round, so that what slows the machine down for a while slows both; the medians of --repeat rounds are
compared (DECISIONS 25) and the spread is printed. Exit 1 when a loss is 10 % or more. Eleven minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "broker"))

import kafka_io
from fakes import FakeScorer
from results import Run, write_result
from services import Kafka
from stage import Stage, Topics, articles

PASS_SECONDS, PASS_RECORDS = 0.4, 48
WORDS = 12
BOTH = ("at_least_once", "exactly_once")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--records", type=int, default=48 * 40)
    p.add_argument("--repeat", type=int, default=5)
    args = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="spinf-txn-") as folder:
        kafka = Kafka(Path(folder))
        kafka.start()
        try:
            rates = asyncio.run(measure(kafka.address, args))
        finally:
            kafka.stop()
    losses = {}
    for n in (1, 4, 12):
        middle = {d: statistics.median(rates[d, n]) for d in BOTH}
        losses[n] = round(1 - middle["exactly_once"] / middle["at_least_once"], 4)
        rows = ", ".join(f"{d} {middle[d]:.1f} ({min(rates[d, n]):.1f} to {max(rates[d, n]):.1f})" for d in BOTH)
        print(f"{n:>3} partitions, records/s, median of {args.repeat} (spread): {rows}, loss {100 * losses[n]:.1f} %")
    runs = [Run(f"{d}-{n}", args.records, args.records, 0, [1e3 * args.records / r for r in found], None) for (d, n), found in rates.items()]
    write_result("transactions", {"loss": {str(n): v for n, v in losses.items()}, "pass_seconds": PASS_SECONDS, "pass_records": PASS_RECORDS}, runs)
    print(json.dumps(losses))
    return 0 if max(losses.values()) < 0.10 else 1


async def measure(address: str, args: argparse.Namespace) -> dict[tuple[str, int], list[float]]:
    rates: dict[tuple[str, int], list[float]] = {}
    made = itertools.count()

    def topics(partitions: int = 1, name: str = "t", **_: Any) -> str:
        topic = f"{name}-{next(made)}"
        kafka_io.run(kafka_io.create(address, {topic: partitions}))
        return topic

    for turn in range(args.repeat):
        for n, delivery in itertools.product((1, 4, 12), BOTH[:: -1 if turn % 2 else 1]):
            t = Topics(address, topics, n, delivery=delivery)
            await t.fill(articles([f"a{i:05d}" for i in range(args.records)], words=WORDS, partitions=n))
            scorer = FakeScorer(budget=PASS_RECORDS * (WORDS + 1 + 8))
            settings = t.settings(max_wait_ms=2000, commit_interval_ms=1000, session_timeout_ms=45_000)
            async with Stage(settings, scorer=scorer, seconds=PASS_SECONDS) as w:
                began = time.monotonic()
                await w.until(lambda: w.value("records_total", outcome="scored") == args.records, 300)
                seconds = time.monotonic() - began
            rates.setdefault((delivery, n), []).append(args.records / seconds)
    return rates


if __name__ == "__main__":
    sys.exit(main())
