"""Runs the real worker on a real broker, with the fake engine: `async with Stage(...) as w`, several at a time."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import kafka_io
import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import ConsumerRecord
from fakes import FakeRunner, FakeScorer, Fault, plain
from kafka_io import Rec

from spinf_stream.config import Settings
from spinf_stream.metrics import PREFIX, Metrics
from spinf_stream.records import Scores
from spinf_stream.stream.worker import serve

HERE = Path(__file__).resolve().parent
SECRET = "a test's secret"


class Topics:
    """Input, scores and dead letters of a test, with a group of their own."""

    def __init__(self, kafka: str, topics: Any, partitions: int = 1, **settings: Any) -> None:
        self.kafka = kafka
        self.source = topics(partitions, name="articles")
        self.scores = topics(partitions, name="scores")
        self.dlq = topics(1, name="dlq")
        self.group = f"g-{self.source}"
        self.fixed = settings

    def settings(self, **more: Any) -> Settings:
        values: dict[str, Any] = {
            "brokers": self.kafka, "input_topic": self.source, "output_topic": self.scores, "dlq_topic": self.dlq,
            "group": self.group, "port": 0, "max_wait_ms": 30, "commit_interval_ms": 100, "session_timeout_ms": 6000,
            "drain_seconds": 10.0, **self.fixed, **more,
        }  # fmt: skip
        if values.get("redis_url"):
            values.setdefault("dedup_secret", SECRET)
        return Settings(**values)

    async def fill(self, records: Iterable[Rec], **producer: Any) -> list[tuple[int, int]]:
        return await kafka_io.produce(self.kafka, self.source, records, **producer)

    async def out(self, count: int = 0, **more: Any) -> list[ConsumerRecord]:
        """The scores topic, once `count` records are there."""
        return await (kafka_io.wait_for(self.kafka, self.scores, count, **more) if count else kafka_io.read_all(self.kafka, self.scores))

    async def dead(self, count: int = 0, **more: Any) -> list[ConsumerRecord]:
        return await (kafka_io.wait_for(self.kafka, self.dlq, count, **more) if count else kafka_io.read_all(self.kafka, self.dlq))

    async def committed(self) -> dict[int, int | None]:
        return await kafka_io.committed(self.kafka, self.group, self.source)

    async def rewind(self, offsets: dict[int, int]) -> None:
        """As `kafka-consumer-groups --reset-offsets` does, while no member is there."""
        c = AIOKafkaConsumer(bootstrap_servers=self.kafka, group_id=self.group, enable_auto_commit=False)
        await c.start()
        try:
            parts = {TopicPartition(self.source, n): offset for n, offset in offsets.items()}
            c.assign(list(parts))
            await c.commit(parts)
        finally:
            await c.stop()


class Stage:
    """One worker in this process, in its own group membership; `code` is its exit code once it has left."""

    def __init__(
        self, settings: Settings, *, seconds: float = 0.0, fault: Fault = plain, scorer: FakeScorer | None = None,
        burst: bool = False, block: float = 0.0, ready: bool = True, live: tuple[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.scorer: FakeScorer = live[0] if live else scorer or FakeScorer()  # live: the real ones, whose caller closes them
        self.runner: FakeRunner = live[1] if live else FakeRunner(self.scorer, seconds, fault, block)
        self.reload = asyncio.Event()
        self.metrics = Metrics(self.scorer.engine.budget)
        self.stop = asyncio.Event()
        self.burst = burst
        self.code: int | None = None
        self._ready = ready
        self._task: asyncio.Task[int] | None = None

    async def __aenter__(self) -> Stage:
        self._task = asyncio.create_task(
            serve(self.settings, self.scorer, self.runner, burst=self.burst, stop=self.stop, reload=self.reload, metrics=self.metrics, start_seconds=10)
        )
        if self._ready and not self.burst:
            await self.until(lambda: self.value("assigned_partitions") > 0, 20)
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.leave()

    async def leave(self) -> int:
        """As on SIGTERM."""
        self.stop.set()
        return await self.ended()

    async def ended(self, seconds: float = 40.0) -> int:
        assert self._task is not None
        self.code = await asyncio.wait_for(asyncio.shield(self._task), seconds)
        return self.code

    async def until(self, true: Callable[[], bool], seconds: float = 20.0) -> None:
        assert self._task is not None
        end = time.monotonic() + seconds
        while not true():
            assert not self._task.done(), f"the worker ended with {self._task.result()}"
            assert time.monotonic() < end, f"not within {seconds:g} s"
            await asyncio.sleep(0.02)

    def value(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum(
            s.value
            for m in self.metrics.registry.collect()
            for s in m.samples
            if s.name == PREFIX + name and labels.items() <= s.labels.items()
        )


async def burst(settings: Settings, **more: Any) -> Stage:
    """A worker that runs to the end of what is there; it must leave with 0."""
    async with Stage(settings, burst=True, **more) as w:
        code = await w.ended(60)
        assert code == 0, code
    return w


def articles(ids: Sequence[str], words: int = 5, partitions: int | None = None) -> list[Rec]:
    """One distinct text an id, keyed by the id; over `partitions` in turn when given."""
    return [
        Rec(json.dumps({"id": i, "text": f"{i} " + "word " * words}).encode(), i.encode(), (), None if partitions is None else n % partitions)
        for n, i in enumerate(ids)
    ]


def scores(r: ConsumerRecord) -> Scores:
    headers = dict(r.headers)
    decode = msgspec.msgpack.decode if headers.get("content-type") == b"application/msgpack" else msgspec.json.decode
    return decode(r.value, type=Scores)


def ids(records: Iterable[ConsumerRecord]) -> list[str]:
    return [scores(r).id for r in records]


async def alter(kafka: str, topic: str, settings: dict[str, str]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])
    finally:
        await admin.close()


def page(port: int, path: str) -> tuple[int, str]:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return answer.status, answer.read().decode()


class Process:
    """A worker in a process of its own (worker_process.py), to be killed, stopped and gone on with."""

    def __init__(self, settings: Settings, **job: Any) -> None:
        values = {n: v for n in Settings.__struct_fields__ if (v := getattr(settings, n)) != getattr(Settings(), n)}
        self._job = msgspec.json.encode({"settings": values, **job}).decode()
        self._lines: list[str] = []
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Process:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(HERE / "worker_process.py"), self._job,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout and self._process.stderr
        self._readers = [asyncio.create_task(self._read(s)) for s in (self._process.stdout, self._process.stderr)]
        return self

    async def __aexit__(self, *_: Any) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await asyncio.gather(*self._readers)

    async def said(self, words: str, seconds: float = 30.0) -> None:
        """Wait until a line of its output holds the words."""
        end = time.monotonic() + seconds
        while words not in self.output:
            assert time.monotonic() < end, f"did not say {words!r} within {seconds:g} s; it said:\n{self.output[-3000:]}"
            assert self._process is not None
            assert self._process.returncode is None or any(not r.done() for r in self._readers), self.output[-3000:]
            await asyncio.sleep(0.02)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self, seconds: float = 30.0) -> int:
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), seconds)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def gone(self) -> bool:
        """It has ended, for whatever reason."""
        return self._process is None or self._process.returncode is not None

    @property
    def output(self) -> str:
        return "\n".join(self._lines)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self._lines.append(line.decode().rstrip("\n"))
