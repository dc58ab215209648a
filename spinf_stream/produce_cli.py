"""`spinf-stream produce FILE`: JSONL of input records to the articles topic. Key = the record's id; bytes as they stand.

Every line is decoded first, as the worker would: what the worker would refuse is named with its line and not sent,
unless `--unchecked` says so.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from spinf_stream.config import Settings
from spinf_stream.errors import UsageError
from spinf_stream.files import Line, source
from spinf_stream.records import Refused, decode_article
from spinf_stream.settings_cli import KAFKA, add_settings, loaded
from spinf_stream.stream.flow import Outgoing

UNIT = 500  # records between two waits for the broker's acknowledgement


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="JSONL of articles, - for standard input")
    parser.add_argument("--rate", type=float, metavar="N", help="records a second (default: as fast as they go)")
    parser.add_argument("--unchecked", action="store_true", help="send lines that the worker would refuse too, without a key")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    add_settings(parser, (*KAFKA, "compression", "producer_idempotence"))


class Sent(NamedTuple):
    records: int
    bytes: int
    refused: int


def run(args: argparse.Namespace) -> int:
    from spinf_stream.stream.kafka import Away, PublishFailed

    if args.rate is not None and args.rate <= 0:
        raise UsageError("--rate must be more than 0")
    settings = loaded(args).settings
    try:
        with source(args.file) as (lines, _):
            sent = asyncio.run(_produce(settings, lines, args))
    except Away as e:
        raise UsageError(str(e), 3) from None
    except PublishFailed as e:
        raise UsageError(f"topic {settings.input_topic}: {e}", 1) from None
    return 1 if sent.refused else 0


async def _produce(s: Settings, lines: Iterator[Line], args: argparse.Namespace) -> Sent:
    from spinf_stream.stream.kafka import Away, Producer, topic_facts

    facts = (await topic_facts(s, [s.input_topic])).get(s.input_topic)
    if facts is None:
        raise Away(f"there is no topic {s.input_topic}: run `spinf-stream topics create`")
    producer = Producer(s, facts.max_bytes)
    await producer.start()
    total, began = Sent(0, 0, 0), time.monotonic()
    try:
        records = _records(s.input_topic, lines, args.unchecked)
        unit_size = UNIT if args.rate is None else max(1, min(UNIT, int(args.rate / 10)))
        while unit := await asyncio.to_thread(lambda: list(itertools.islice(records, unit_size))):
            good = [r for r in unit if isinstance(r, Outgoing)]
            for refusal in (r for r in unit if isinstance(r, str)):
                print(f"\r{refusal}", file=sys.stderr)
            if good:
                await producer.send(good)
            total = Sent(total.records + len(good), total.bytes + sum(len(r.value or b"") for r in good), total.refused + len(unit) - len(good))
            if args.rate is not None:
                await asyncio.sleep(max(0.0, began + total.records / args.rate - time.monotonic()))
            if not args.quiet and sys.stderr.isatty():
                print(f"\r{_line(total, began)} ", end="", file=sys.stderr, flush=True)
    finally:
        await producer.stop()
        if not args.quiet:
            print(f"\r{_line(total, began)}, to {s.input_topic}", file=sys.stderr)
    return total


def _records(topic: str, lines: Iterable[Line], unchecked: bool) -> Iterator[Outgoing | str]:
    """What to send, or for a line that the worker would refuse, why."""
    for number, value, _ in lines:
        try:
            id_ = decode_article(value).id
        except Refused as e:
            if not unchecked:
                yield f"line {number}: {e}"
                continue
            id_ = None
        yield Outgoing(topic, id_.encode() if id_ else None, value, (("content-type", b"application/json"),), None)


def _line(total: Sent, began: float) -> str:
    rate = total.records / max(time.monotonic() - began, 1e-9)
    refused = f", {total.refused} refused" if total.refused else ""
    return f"{total.records} records, {total.bytes / 2**20:.1f} MiB, {rate:.0f} records/s{refused}"
