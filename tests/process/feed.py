"""What a chaos run feeds: records at an even pace, every hundredth of them poison of another kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time

from aiokafka import AIOKafkaProducer
from audit import Letter
from corpus.poison import ROWS
from kafka_io import RawKey

KEYS = 200
TRICKLE_SECONDS = 0.2  # from record to record, while windows shall stand open
# A key and a header of its own tell each from all others; a RawKey needs a batch built by hand (tests/broker/test_bad_input.py).
POISON = [r for r in ROWS if r.outcome == "dead" and not any(isinstance(k, RawKey) for k, _ in r.headers)]


class Feeder:
    def __init__(self, address: str, rng: random.Random, records: int, seconds: float, equal: bool) -> None:
        self.address, self.rng, self.records, self.seconds, self.equal = address, rng, records, seconds, equal
        self.sent: list[tuple[str, bytes]] = []  # id, key
        self.poison: list[Letter] = []
        self.trickle = False
        self.hurry = asyncio.Event()  # set when there are no more faults to come

    async def run(self) -> None:
        """For as long as there are faults, at least `records` of them."""
        producer = AIOKafkaProducer(bootstrap_servers=self.address, acks="all", enable_idempotence=True, request_timeout_ms=40_000)
        await producer.start()
        pace = self.seconds / max(1, self.records)
        began = time.monotonic()
        try:
            n = -1
            while (n := n + 1) < self.records or not self.hurry.is_set():
                key = b"k%d" % self.rng.randrange(KEYS)
                headers: tuple[tuple[str, bytes | None], ...] = ()
                value: bytes | None
                if n % 100 == 99:
                    row = POISON[len(self.poison) % len(POISON)]
                    key, value, headers = b"poison %d" % n, row.value, (*row.headers, ("nth", b"%d" % n))
                    self.poison.append(Letter(key, value, headers, str(row.reason)))
                else:
                    text = f"article {n // 5 if self.equal else n} " + "word " * self.rng.randint(3, 12)
                    value = json.dumps({"id": f"a{n}", "text": text}).encode()
                    self.sent.append((f"a{n}", key))
                sending = await producer.send("articles", value, key, headers=list(headers) or None)
                if n % 20 == 19:
                    await sending
                ahead = TRICKLE_SECONDS if self.trickle else began + n * pace - time.monotonic()
                if ahead > 0.02 and not self.hurry.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.hurry.wait(), ahead)
        finally:
            await producer.stop()
