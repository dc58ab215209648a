"""A worker in a process of its own: `python worker_process.py JSON`.

JSON: {"settings": {...}, "budget", "seconds", "burst", "log_level", "stop": {"at": POINT, "after": N}}. With `questions` or `packs`
in the settings the engine is the real one, else the fake. At the N-th time that the point is reached the process stops
itself (SIGSTOP), as a machine does that was frozen right there; SIGUSR1 sets N to 1, counted from then on, and without
`after` nothing stops before that. The shipped worker knows nothing of such points (DECISIONS 26). Points: `before_send`, `before_offsets`, `before_commit`,
`after_commit` of a transaction, `before_pass`, `after_pass`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from aiokafka import AIOKafkaProducer
from fakes import FakeRunner, FakeScorer

from spinf_stream.config import Settings
from spinf_stream.stream.logs import set_up
from spinf_stream.stream.worker import serve


class StopPoint:
    def __init__(self, at: str = "", after: int = 0) -> None:
        self.at = at
        self.left = after
        signal.signal(signal.SIGUSR1, self.arm)

    def arm(self, *_: Any) -> None:
        self.left = 1

    def reached(self, point: str) -> None:
        if point and point == self.at and self.left > 0:
            self.left -= 1
            if self.left == 0:
                print(f"stopped {point}", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)


def around(owner: Any, name: str, before: str, after: str, points: StopPoint) -> None:
    real = getattr(owner, name)

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        points.reached(before)
        result = await real(*args, **kwargs)
        points.reached(after)
        return result

    setattr(owner, name, wrapped)


async def main(job: dict[str, Any]) -> int:
    points = StopPoint(**job.get("stop", {}))
    around(AIOKafkaProducer, "send", "before_send", "", points)
    around(AIOKafkaProducer, "send_offsets_to_transaction", "before_offsets", "", points)
    around(AIOKafkaProducer, "commit_transaction", "before_commit", "after_commit", points)
    settings = msgspec.convert({**job["settings"], "log_format": "json", "log_level": job.get("log_level", "info")}, Settings)
    set_up(settings)
    scorer: Any
    runner: Any
    if settings.questions or settings.packs:
        from spinf_stream.engine.live import open_live
        from spinf_stream.engine.runner import Runner

        scorer = open_live(settings)
        runner = Runner(scorer.engine)
    else:
        scorer = FakeScorer(job.get("budget", 2048))
        runner = FakeRunner(scorer, job.get("seconds", 0.0))
    around(runner, "run", "before_pass", "after_pass", points)
    logging.getLogger("test").info("process %d", os.getpid())
    return await serve(settings, scorer, runner, burst=job.get("burst", False))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(json.loads(sys.argv[1]))))
