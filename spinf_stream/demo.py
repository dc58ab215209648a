"""`spinf-stream demo`: news articles through the whole worker, on an embedded broker and an embedded Redis.

    articles.jsonl -> embedded broker -> `spinf-stream worker` -> embedded broker -> this table
                                              embedded Redis inside

Then the same articles once more: duplicates, answered without a pass. Nothing is left running.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from spinf_stream import demo_broker
from spinf_stream.config import Settings
from spinf_stream.demo_worker import DemoWorker, Screen
from spinf_stream.errors import UsageError
from spinf_stream.records import Refused, Scores, decode_article
from spinf_stream.settings_cli import MODEL, add_settings, loaded
from spinf_stream.stream.flow import Outgoing, Record
from spinf_stream.table import block

SAMPLES = Path(__file__).parent / "samples"
PARTITIONS = 4
PATIENCE = 170.0  # seconds without a new score, loading of the model included


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--articles", metavar="FILE", type=Path, default=SAMPLES / "articles.jsonl", help="JSONL of articles of your own")
    parser.add_argument("--questions", dest="question_file", metavar="FILE", type=Path, default=SAMPLES / "questions.toml", help="a question file of your own")
    add_settings(parser, MODEL)


def run(args: argparse.Namespace) -> int:
    if gone := demo_broker.missing():
        raise UsageError(gone)
    model = {n: v for n, v in msgspec.to_builtins(loaded(args).settings).items() if n in MODEL and v is not None}
    settings = Settings(
        **model, questions=str(args.question_file.resolve()), redis_url="embedded://", producer_idempotence=False, port=0,
        session_timeout_ms=4000,  # the embedded broker lets the first member of a group wait for half of it
    )  # fmt: skip
    articles = read_articles(args.articles)
    with tempfile.TemporaryDirectory(prefix="spinf-demo-") as folder:
        try:
            return asyncio.run(_demo(settings, articles, Path(folder)))
        except asyncio.CancelledError:
            return 143


def read_articles(file: Path) -> list[Outgoing]:
    """One record a line, under its id. Raises UsageError at the first line that the worker would refuse."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as e:
        raise UsageError(f"{file}: {e.strerror or e}") from None
    out = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                id_ = decode_article(line).id
            except Refused as e:
                raise UsageError(f"{file}: line {number}: {e}") from None
            out.append(Outgoing("articles", id_.encode() if id_ else None, line, (), None))
    if not out:
        raise UsageError(f"{file}: no articles in it")
    return out


class Round(NamedTuple):
    scores: list[Scores]
    seconds: float
    passes: int


async def _demo(settings: Settings, articles: list[Outgoing], folder: Path) -> int:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, me.cancel)
    screen = Screen()
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        child, broker = await demo_broker.start(folder)
        stack.push_async_callback(child.stop, 5.0)
        settings = msgspec.structs.replace(settings, brokers=broker)
        screen.say(f"broker   Tansu, in memory, at {broker}")
        await _topics(settings)
        worker = await DemoWorker.start(settings, folder)
        stack.push_async_callback(worker.child.stop)
        found = await stack.enter_async_context(contextlib.aclosing(_scores(settings)))
        await screen.until(worker.ready(), lambda: f"worker   {worker.status()}", PATIENCE)
        screen.say(f"worker   {worker.status()}")

        first = await _round(settings, articles, found, worker, screen)
        _print(first.scores)
        again = await _round(settings, articles, found, worker, screen)
        code = await worker.child.stop()
        screen.say(_summary(first, again, time.monotonic() - began))
        if code:
            raise UsageError(f"the worker ended with {code}: {worker.status()}", 1)
        return 0 if again.passes == 0 and {s.outcome for s in again.scores} == {"duplicate"} else 1


async def _topics(s: Settings) -> None:
    from spinf_stream.stream.kafka.topics import create
    from spinf_stream.topics_cli import plans

    for made in await create(s, plans(s, PARTITIONS), replication=1):
        if made.error:
            raise UsageError(f"topic {made.name}: {made.error}", 1)


async def _round(
    s: Settings, articles: list[Outgoing], found: AsyncIterator[Scores], worker: DemoWorker, screen: Screen
) -> Round:
    """All articles in, all their scores out."""
    began, passes = time.monotonic(), await worker.passes()
    await _produce(s, articles)
    scores: list[Scores] = []
    while len(scores) < len(articles):
        coming = asyncio.ensure_future(anext(found))
        await screen.until(coming, lambda: f"scoring  {len(scores)}/{len(articles)} articles", PATIENCE, worker)
        scores.append(coming.result())
    screen.clear()
    return Round(scores, time.monotonic() - began, await worker.passes() - passes)


async def _produce(s: Settings, articles: list[Outgoing]) -> None:
    from spinf_stream.stream.kafka import Producer

    producer = Producer(s, 2**20)
    await producer.start()
    try:
        await producer.send(articles)
    finally:
        await producer.stop()


async def _scores(s: Settings) -> AsyncGenerator[Scores, None]:
    from spinf_stream.stream.kafka.topics import read

    decoder = msgspec.json.Decoder(Scores)
    records: AsyncGenerator[Record, None] = read(s, s.output_topic, last=None, follow=True)
    async with contextlib.aclosing(records):
        async for record in records:
            yield decoder.decode(record.value or b"")


def _print(scores: list[Scores]) -> None:
    width = shutil.get_terminal_size((120, 24)).columns
    for s in sorted(scores, key=lambda s: s.id):
        print("\n" + "\n".join(block(s, width=width)))
    print(
        "\np = the model's probability among the options; floor = the same with no article; lift = p / floor.\n"
        "Where the article raised another option more than the likeliest one, the line says which.\n"
    )


def _summary(first: Round, again: Round, seconds: float) -> str:
    n = len(first.scores)
    prompts = sum(len(q.combinations) for s in first.scores if isinstance(s.scores, list) for q in s.scores)
    tokens = sum(s.tokens.content + s.tokens.questions for s in first.scores)
    duplicates = sum(s.outcome == "duplicate" for s in again.scores)
    rows = [
        f"first    {n} articles, {prompts} questions, {tokens} tokens, {first.passes} passes in {first.seconds:.1f} s"
        f" ({prompts / max(first.seconds, 1e-9):.0f} questions/s)",
        f"again    {duplicates} of {n} are duplicates, {again.passes} passes in {again.seconds:.1f} s",
        f"stopped  worker drained, broker gone, {seconds:.0f} s in all; this broker has no idempotent producer and no"
        " transactions, Apache Kafka has both",
    ]
    return "\n".join(rows)

