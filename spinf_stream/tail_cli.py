"""`spinf-stream tail`: the scores topic as a readable table, or as JSONL."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys

import msgspec

from spinf_stream.config import Settings
from spinf_stream.errors import UsageError
from spinf_stream.records import MSGPACK, CompactScores, Scores
from spinf_stream.settings_cli import KAFKA, add_settings, loaded
from spinf_stream.stream.flow import Record
from spinf_stream.table import block, printable

_json = msgspec.json.Decoder(Scores)
_msgpack = msgspec.msgpack.Decoder(Scores)


class NotShown(ValueError):
    """What can be decoded and still is no record."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", type=int, default=10, metavar="N", help="how many of the records that are there (default 10)")
    parser.add_argument("--from-beginning", action="store_true", help="all records that are there")
    parser.add_argument("--follow", action="store_true", help="go on with what comes in, until Ctrl-C")
    parser.add_argument("--query", metavar="ID", help="this question alone")
    parser.add_argument("--all-options", action="store_true", help="every option of a question, not only the likeliest")
    parser.add_argument("--json", action="store_true", help="one line of JSON a record, every field of it")
    add_settings(parser, KAFKA)


def run(args: argparse.Namespace) -> int:
    from spinf_stream.stream.kafka import Away

    if args.last < 0:
        raise UsageError("--last must be 0 or more")
    if args.query is not None and args.json:
        raise UsageError("--query shows a table, --json every field: keep one")
    settings = loaded(args).settings
    try:
        unread = asyncio.run(_tail(settings, args))
    except Away as e:
        raise UsageError(str(e), 3) from None
    return 1 if unread else 0


async def _tail(s: Settings, args: argparse.Namespace) -> int:
    """The number of records that are no scores, or do not have the question that is asked for."""
    from spinf_stream.stream.kafka.topics import read

    unread = seen = 0
    told: set[tuple[str, ...]] = set()
    last = None if args.from_beginning else args.last
    async with contextlib.aclosing(read(s, s.output_topic, last=last, follow=args.follow)) as records:
        async for record in records:
            seen += 1
            try:
                text = shown(record, args)
                names = () if args.query is None else lacking(record, args.query)
            except (msgspec.DecodeError, NotShown) as e:
                unread += 1
                print(f"{record.place}: not a scores record: {printable(str(e))}", file=sys.stderr)
                continue
            if names:
                unread += 1
                if names not in told:  # once for each set of questions
                    print(f"{record.place}: there is no question {args.query!r}; there are: {printable(', '.join(names))}", file=sys.stderr)
                told.add(names)
                continue
            print(text, flush=args.follow)
    if not seen:
        print(f"topic {s.output_topic} holds no record", file=sys.stderr)
    return unread


def lacking(record: Record, query: str) -> tuple[str, ...]:
    """The ids of the questions that a record has, if `query` is none of them. Compact scores do not name theirs."""
    scores = _decoded(record)
    if scores is None or isinstance(scores.scores, CompactScores):
        return ()
    names = dict.fromkeys([*(q.id for q in scores.scores), *(str(s.get("id")) for s in scores.slots)])
    return () if query in names else tuple(names)


def _decoded(record: Record) -> Scores | None:
    if record.value is None:
        return None
    return (_msgpack if _packed(record) else _json).decode(record.value)


def _packed(record: Record) -> bool:
    return dict(record.headers).get("content-type") == MSGPACK.encode()


def shown(record: Record, args: argparse.Namespace) -> str:
    """One record as a block of lines or as JSON. Raises msgspec.DecodeError, NotShown."""
    if record.value is None:
        key = (record.key or b"").decode("utf-8", "backslashreplace")
        if args.json:
            return msgspec.json.encode({"key": key, "outcome": "tombstone"}).decode()
        return f"{printable(key)}  tombstone  [{record.place}]"
    try:
        if args.json:
            return msgspec.json.encode((msgspec.msgpack.decode if _packed(record) else msgspec.json.decode)(record.value)).decode()
        scores = _decoded(record)
    except RecursionError:
        raise NotShown("nested too deep") from None
    except (TypeError, UnicodeError) as e:  # msgpack holds more than JSON can
        raise NotShown(str(e)) from None
    assert scores is not None
    return "\n".join(block(scores, args.query, args.all_options, shutil.get_terminal_size((120, 24)).columns))
