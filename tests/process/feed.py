"""What a chaos run feeds: records at an even pace, every hundredth of them poison."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time

from aiokafka import AIOKafkaProducer

KEYS = 200


class Feeder:
    def __init__(self, address: str, rng: random.Random, records: int, seconds: float, equal: bool) -> None:
        self.address, self.rng, self.records, self.seconds, self.equal = address, rng, records, seconds, equal
        self.sent: list[tuple[str, bytes]] = []  # id, key
        self.poison: list[bytes] = []
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
                if n % 100 == 99:
                    value = b'{"text": "cut off %d' % n
                    self.poison.append(value)
                else:
                    text = f"article {n // 5 if self.equal else n} " + "word " * self.rng.randint(3, 12)
                    value = json.dumps({"id": f"a{n}", "text": text}).encode()
                    self.sent.append((f"a{n}", key))
                await producer.send_and_wait("articles", value, key) if n % 20 == 19 else await producer.send("articles", value, key)
                ahead = began + n * pace - time.monotonic()
                if ahead > 0.02 and not self.hurry.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.hurry.wait(), ahead)
        finally:
            await producer.stop()
