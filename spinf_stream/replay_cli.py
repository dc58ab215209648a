"""`spinf-stream replay --from TIME --to TIME`, or --all: score a span of the input again, in a group of its own, and exit."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec

from spinf_stream.errors import UsageError
from spinf_stream.settings_cli import ALL, add_settings, loaded


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="since", metavar="TIME", help="RFC 3339; records of this time and later (default: the first)")
    parser.add_argument("--to", dest="until", metavar="TIME", help="records before this time (default: up to now)")
    parser.add_argument("--all", action="store_true", help="without --from and --to: the whole topic")
    parser.add_argument("--replay-group", metavar="NAME", help="group of this replay; several workers of one replay name the same")
    parser.add_argument("--no-dedup", action="store_true", help="score everything again, whatever Redis remembers")
    add_settings(parser, ALL)


def run(args: argparse.Namespace) -> int:
    from spinf_stream.engine.open import open_scorer, something_asked
    from spinf_stream.engine.runner import Runner
    from spinf_stream.stream.kafka import Away
    from spinf_stream.stream.logs import set_up
    from spinf_stream.stream.replay import plan
    from spinf_stream.stream.worker import serve

    if not (args.since or args.until or args.all):
        raise UsageError("say which records, with --from, --to or --all")
    settings, origins = loaded(args)
    if "port" not in origins:  # a worker of the same machine has that one
        settings = msgspec.structs.replace(settings, port=0)
    something_asked(settings)
    set_up(settings)
    try:
        made = asyncio.run(plan(settings, *span(args), args.replay_group, not args.no_dedup))
    except Away as e:
        raise UsageError(str(e), 3) from None
    print(f"replaying up to {made.records} records in group {made.settings.group}", file=sys.stderr)
    scorer = open_scorer(made.settings, progress=sys.stderr.isatty())
    return asyncio.run(serve(made.settings, scorer, Runner(scorer.engine), burst=True, ends=made.ends))


def span(args: argparse.Namespace) -> tuple[int | None, int | None]:
    """--from and --to in ms. Raises UsageError."""
    from spinf_stream.stream.replay import moment

    out: list[int | None] = []
    for flag, text in (("--from", args.since), ("--to", args.until)):
        try:
            out.append(None if text is None else moment(text))
        except ValueError:
            raise UsageError(f"{flag} {text}: not a time such as 2026-01-31T12:00:00Z") from None
    if out[0] is not None and out[1] is not None and out[0] >= out[1]:
        raise UsageError("--from must be before --to")
    return out[0], out[1]
