"""`spinf-stream dlq list|replay`: look at the dead letters, and send them back to the input topic."""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import sys
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from spinf_stream.errors import UsageError
from spinf_stream.records import Reason
from spinf_stream.replay_cli import span
from spinf_stream.settings_cli import KAFKA, add_settings, loaded
from spinf_stream.table import printable

if TYPE_CHECKING:
    from spinf_stream.stream.replay import Letter


def arguments(parser: argparse.ArgumentParser) -> None:
    sub = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, line in (("list", "one line each: where from, when, why"), ("replay", "send them to the input topic again, at most 3 times each")):
        one = sub.add_parser(name, help=line, allow_abbrev=False)
        one.add_argument("--reason", action="append", default=[], choices=sorted(get_args(Reason)), help="only these; may be repeated")
        one.add_argument("--from", dest="since", metavar="TIME", help="RFC 3339, by the records' own time")
        one.add_argument("--to", dest="until", metavar="TIME", help="before this time")
        if name == "list":
            one.add_argument("--json", action="store_true", help="one line of JSON each, without the article")
        if name == "replay":
            one.add_argument("--all", action="store_true", help="without --reason or --from: everything in the topic")
            one.add_argument("--dry-run", action="store_true", help="count, send nothing")
        add_settings(one, (*KAFKA, "compression", "producer_idempotence"))


def run(args: argparse.Namespace) -> int:
    from spinf_stream.stream.kafka import Away, PublishFailed

    try:
        return asyncio.run(_list(args) if args.action == "list" else _replay(args))
    except Away as e:
        raise UsageError(str(e), 3) from None
    except PublishFailed as e:
        raise UsageError(f"sending failed, some may have been sent: {e}", 1) from None


async def _list(args: argparse.Namespace) -> int:
    from spinf_stream.stream.replay import letters

    count = 0
    async for letter in letters(loaded(args).settings, *span(args), args.reason):
        count += 1
        if args.json:
            print(msgspec.json.encode(described(letter)).decode())
            continue
        hops = f"  replayed {letter.hops} x" if letter.hops else ""
        print(f"{_when(letter.record.timestamp)}  {printable(f'{letter.reason:<17}  {letter.origin}  {letter.message}')}{hops}")
    print(f"{count} dead letters", file=sys.stderr)
    return 0


def _when(ms: int) -> str:
    """A producer may set any 64 bits as a record's time, calendars end earlier."""
    try:
        return f"{dt.datetime.fromtimestamp(max(ms, 0) / 1000, dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def described(letter: Letter) -> dict[str, Any]:
    """A dead letter without its value: where it is, where it came from, why, and whether it can be sent again."""
    r = letter.record
    return {
        "reason": letter.reason, "message": letter.message, "origin": letter.origin, "place": r.place, "timestamp": r.timestamp,
        "key": None if r.key is None else r.key.decode("utf-8", "backslashreplace"), "bytes": len(r.value or b""),
        "hops": letter.hops, "obstacle": letter.obstacle,
    }  # fmt: skip


async def _replay(args: argparse.Namespace) -> int:
    from spinf_stream.stream.replay import replay_letters

    if not (args.reason or args.since or args.all):
        raise UsageError("say which to replay, with --reason, --from or --all")
    done = await replay_letters(loaded(args).settings, *span(args), args.reason, args.dry_run)
    for why, count in done.left.items():
        print(f"{count} left: {why}", file=sys.stderr)
    print(f"{done.sent} {'would be sent' if args.dry_run else 'sent'} again", file=sys.stderr)
    return 0
