"""`spinf-stream score FILE`: JSONL of input records in, JSONL of output records out, in the order of the input.

A line that cannot be scored is a line too: `outcome` dead, with its reason. Exit code 1 when there was one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from spinf_stream.engine.runner import Runner
from spinf_stream.engine.scorer import Prepared, Scorer, record
from spinf_stream.errors import UsageError
from spinf_stream.records import Answer, Article, Origin, Refused, decode_article, encode
from spinf_stream.settings_cli import MODEL, QUESTIONS, add_settings, loaded


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="JSONL of articles, - for standard input")
    parser.add_argument("--out", metavar="FILE", default="-", help="JSONL of scores, - for standard output (default)")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    add_settings(parser, (*QUESTIONS, *MODEL))


def run(args: argparse.Namespace) -> int:
    from spinf_stream.engine.open import open_scorer

    settings = loaded(args).settings
    with _source(args.file) as (lines, size), _sink(args.out) as out:
        scorer = open_scorer(settings, progress=not args.quiet)
        total = asyncio.run(_score(lines, size, scorer, out, args.file, quiet=args.quiet))
    return 1 if total.dead else 0


class Total(NamedTuple):
    scored: int
    dead: int


class DeadLine(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the output for a line that could not be scored."""

    id: str | None
    outcome: str = "dead"
    reason: str
    message: str
    line: int


async def _score(lines: Iterator[bytes], size: int, scorer: Scorer, out: IO[bytes], name: str, *, quiet: bool) -> Total:
    runner = Runner(scorer.engine)
    began = time.monotonic()
    read = scored = dead = tokens = 0
    running: list[asyncio.Task[list[bytes]]] = []

    async def drain(keep: int) -> None:
        while len(running) > keep:
            for line in await running.pop(0):
                out.write(line + b"\n")
            if not quiet and sys.stderr.isatty():
                done = f"{100 * read // size:3d} %" if size else f"{read >> 10} KiB"
                rate = scored / max(time.monotonic() - began, 1e-9)
                print(f"\r{done}  {scored} articles, {dead} dead, {rate:.1f} articles/s ", end="", file=sys.stderr, flush=True)

    window: list[_Line] = []
    cost = 0
    for n, raw in enumerate(lines):
        read += len(raw)
        line = await asyncio.to_thread(_prepare, scorer, raw, n)
        if isinstance(line, DeadLine):
            dead += 1
        else:
            scored += 1
            tokens += line.prepared.cost
        need = 0 if isinstance(line, DeadLine) else line.prepared.cost
        if window and cost + need > scorer.engine.budget:
            running.append(asyncio.create_task(_pass(scorer, runner, window, name)))
            window, cost = [], 0
            await drain(1)
        window.append(line)
        cost += need
    running.append(asyncio.create_task(_pass(scorer, runner, window, name)))
    await drain(0)
    out.flush()
    await runner.close()
    if not quiet:
        seconds = time.monotonic() - began
        print(
            f"\r{scored} articles, {scored * scorer.questions} questions, {tokens} tokens in {seconds:.1f} s "
            f"({scored * scorer.questions / max(seconds, 1e-9):.0f} questions/s), {dead} dead, {scorer.fingerprint}",
            file=sys.stderr,
        )
    return Total(scored, dead)


class Scorable(NamedTuple):
    number: int
    article: Article
    prepared: Prepared


_Line = Scorable | DeadLine


def _prepare(scorer: Scorer, raw: bytes, number: int) -> _Line:
    article = None
    try:
        article = decode_article(raw)
        return Scorable(number, article, scorer.prepare(article))
    except Refused as e:
        return DeadLine(id=article.id if article else None, reason=e.reason, message=e.message, line=number + 1)


async def _pass(scorer: Scorer, runner: Runner, window: list[_Line], name: str) -> list[bytes]:
    items = [line for line in window if isinstance(line, Scorable)]
    answers = iter(scorer.answers([i.prepared for i in items], await runner.run(scorer.pack([i.prepared for i in items])))) if items else iter(())
    return [encode(line if isinstance(line, DeadLine) else _scores(scorer, line, next(answers), name)) for line in window]


def _scores(scorer: Scorer, line: Scorable, answer: Answer, name: str) -> msgspec.Struct:
    origin = Origin(topic="stdin" if name == "-" else os.path.basename(name), partition=0, offset=line.number, timestamp=-1)
    name = line.article.id if line.article.id is not None else f"{origin.topic}-0-{line.number}"
    return record(scorer, answer, "scored", name, origin, line.article)


@contextlib.contextmanager
def _source(name: str) -> Iterator[tuple[Iterator[bytes], int]]:
    """Non-empty lines, and the size in bytes where it is known."""
    if name == "-":
        yield (line.rstrip(b"\r\n") for line in sys.stdin.buffer if line.strip()), 0
        return
    try:
        size = Path(name).stat().st_size
        with open(name, "rb") as f:
            yield (line.rstrip(b"\r\n") for line in f if line.strip()), size
    except OSError as e:
        raise UsageError(f"{name}: {e.strerror or e}") from None


@contextlib.contextmanager
def _sink(name: str) -> Iterator[IO[bytes]]:
    """A file that only appears under its name when it is whole."""
    if name == "-":
        yield sys.stdout.buffer
        return
    part = Path(name + ".part")
    try:
        with open(part, "wb") as f:
            yield f
        part.replace(name)
    except OSError as e:
        raise UsageError(f"{name}: {e.strerror or e}") from None
