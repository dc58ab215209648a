"""`spinf-stream score FILE`: JSONL of input records in, JSONL of output records out, in the order of the input.

A line that cannot be scored is a line too: `outcome` dead, with its reason. Exit code 1 when there was one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Iterable
from typing import IO, NamedTuple

import msgspec

from spinf_stream.engine.runner import Runner
from spinf_stream.engine.scorer import Prepared, Scorer, record
from spinf_stream.engine.seam import EngineFatal, NonFinite
from spinf_stream.files import Line, sink, source
from spinf_stream.records import Answer, Article, Origin, Reason, Refused, decode_article, encode
from spinf_stream.settings_cli import MODEL, QUESTIONS, add_settings, loaded


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="JSONL of articles, - for standard input")
    parser.add_argument("--out", metavar="FILE", default="-", help="JSONL of scores, - for standard output (default)")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    add_settings(parser, (*QUESTIONS, *MODEL))


def run(args: argparse.Namespace) -> int:
    from spinf_stream.engine.open import open_scorer

    settings = loaded(args).settings
    with source(args.file) as (lines, size), sink(args.out) as out:
        scorer = open_scorer(settings, progress=not args.quiet)
        total = asyncio.run(score(lines, size, scorer, out, args.file, quiet=args.quiet))
    return 1 if total.dead else 0


def bar(share: float, width: int = 24) -> str:
    share = min(share, 1.0)  # of a file that grows
    full = int(share * width)
    return f"[{'#' * full}{'.' * (width - full)}] {int(100 * share):3d} %"


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


async def score(lines: Iterable[Line], size: int, scorer: Scorer, out: IO[bytes], name: str, *, quiet: bool) -> Total:
    runner = Runner(scorer.engine)
    began = time.monotonic()
    read = done = scored = dead = tokens = 0  # read and done: bytes of the input
    running: list[tuple[int, asyncio.Task[list[Out]]]] = []  # with where in the input each ends

    async def drain(keep: int) -> None:
        nonlocal done, scored, dead
        while len(running) > keep:
            done, task = running.pop(0)
            for line in await task:
                out.write(line.value + b"\n")
                scored, dead = scored + (not line.dead), dead + line.dead
            if not quiet and sys.stderr.isatty():
                far = bar(done / size) if size else f"{done >> 10} KiB"
                rate = scored / max(time.monotonic() - began, 1e-9)
                print(f"\r\033[K{far}  {scored} articles, {dead} dead, {rate:.1f} articles/s ", end="", file=sys.stderr, flush=True)

    window: list[_Line] = []
    cost = 0
    for n, raw in enumerate(lines):
        line = await asyncio.to_thread(_prepare, scorer, raw, n)
        if not isinstance(line, DeadLine):
            tokens += line.prepared.cost
        need = 0 if isinstance(line, DeadLine) else line.prepared.cost
        if window and cost + need > scorer.engine.budget:
            running.append((read, asyncio.create_task(_pass(scorer, runner, window, name))))
            window, cost = [], 0
            await drain(1)
        window.append(line)
        read = raw.end
        cost += need
    running.append((max(size, read), asyncio.create_task(_pass(scorer, runner, window, name))))  # blank lines at the end too
    await drain(0)
    out.flush()
    await runner.close()
    if not quiet:
        seconds = time.monotonic() - began
        print(
            ("\n" if sys.stderr.isatty() else "") + f"{scored} articles, {scored * scorer.questions} questions, {tokens} tokens in {seconds:.1f} s "
            f"({scored * scorer.questions / max(seconds, 1e-9):.0f} questions/s), {dead} dead, {scorer.fingerprint}",
            file=sys.stderr,
        )
    return Total(scored, dead)


class Scorable(NamedTuple):
    line: int  # in the file
    offset: int  # among its records
    article: Article
    prepared: Prepared


_Line = Scorable | DeadLine


def _prepare(scorer: Scorer, raw: Line, offset: int) -> _Line:
    try:
        article = decode_article(raw.value)
        return Scorable(raw.number, offset, article, scorer.prepare(article))
    except Refused as e:
        name = None if e.reason == "too_deep" else _name(raw.value)
        return DeadLine(id=name, reason=e.reason, message=e.message, line=raw.number)


class _Name(msgspec.Struct):
    id: str | None = None


def _name(value: bytes) -> str | None:
    """Of a record that may be no article but has an id."""
    try:
        return msgspec.json.decode(value.removeprefix(BOM_UTF8), type=_Name).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Out(NamedTuple):
    """One line of output."""

    value: bytes
    dead: bool


async def _pass(scorer: Scorer, runner: Runner, window: list[_Line], name: str) -> list[Out]:
    items = [line for line in window if isinstance(line, Scorable)]
    answers = iter(await _answers(scorer, runner, items))
    out: list[Out] = []
    for line in window:
        answer = next(answers) if isinstance(line, Scorable) else line
        said = _scores(scorer, line, answer, name) if isinstance(line, Scorable) and isinstance(answer, Answer) else answer
        out.append(Out(encode(said), isinstance(said, DeadLine)))
    return out


async def _answers(scorer: Scorer, runner: Runner, items: list[Scorable]) -> list[Answer | DeadLine]:
    """One pass; when it fails, halves of it, down to the line that is to blame. Raises EngineFatal."""
    if not items:
        return []
    prepared = [i.prepared for i in items]
    try:
        return list(scorer.answers(prepared, await runner.run(scorer.pack(prepared))))
    except EngineFatal:
        raise
    except Exception as e:
        if len(items) > 1:
            half = len(items) // 2
            return await _answers(scorer, runner, items[:half]) + await _answers(scorer, runner, items[half:])
        reason: Reason = "nonfinite" if isinstance(e, NonFinite) else "engine_error"
        return [DeadLine(id=items[0].article.id, reason=reason, message=type(e).__name__, line=items[0].line)]


def _scores(scorer: Scorer, line: Scorable, answer: Answer, name: str) -> msgspec.Struct:
    origin = Origin(topic="stdin" if name == "-" else os.path.basename(name), partition=0, offset=line.offset, timestamp=-1)
    name = line.article.id if line.article.id is not None else f"{origin.topic}-0-{line.offset}"
    return record(scorer, answer, "scored", name, origin, line.article)
