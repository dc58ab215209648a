"""`spinf-stream index`: scores records in, one row a day and category out, as CSV and a PNG."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spinf_stream.errors import UsageError
from spinf_stream.settings_cli import add_settings

EXAMPLES = """\
of a file, and of the scores topic:

  spinf-stream index scores.jsonl --csv index.csv --png index.png
  spinf-stream tail --from-beginning --json | spinf-stream index --csv index.csv

an index of a draft, with the band of the difference taken article by article:

  spinf-stream index scores.jsonl --raw spinf-stream/market-index --difference oil_up-oil_down
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="JSONL of scores records, - for standard input (default)")
    parser.add_argument("--csv", metavar="FILE", default="-", help="- for standard output (default)")
    parser.add_argument("--png", metavar="FILE", help="a plot, one panel a category; needs the extra `report` (matplotlib)")
    parser.add_argument("--share", action="store_true", help="plot the flagged share instead of the mean score")
    parser.add_argument("--time", choices=("published_at", "scored_at", "timestamp"), default="published_at", help="which time makes the day, UTC")
    parser.add_argument("--raw", metavar="PACK", help="the model's own probabilities of this pack, which a draft has too, instead of its judgement")
    parser.add_argument("--difference", action="append", default=[], metavar="UP-DOWN", help="a series of its own: category UP less category DOWN; repeatable")
    parser.add_argument("--only", action="append", default=[], metavar="PACK", help="packs to keep, by id; repeatable")
    parser.add_argument("--skip-duplicates", action="store_true", help="leave out records whose outcome is duplicate")
    parser.add_argument("--quiet", action="store_true", help="no summary")
    add_settings(parser, ("pack_sources", "cache_dir"))


def run(args: argparse.Namespace) -> int:
    from spinf_stream.files import lines
    from spinf_stream.packs import plots
    from spinf_stream.packs.index import Index, draw, fold, splits, write_csv
    from spinf_stream.packs.problems import PackError
    from spinf_stream.packs_cli import find

    try:
        raw = find(args, args.raw) if args.raw else None
    except PackError as e:
        raise UsageError(str(e), 1) from None
    if raw is not None and not raw.categories:
        raise UsageError(f"{raw.label} is a question set alone: it has no categories to follow")
    for text in args.difference:
        if not splits(text) or (raw is not None and not any({up, down} <= raw.categories.keys() for up, down in splits(text))):
            there = f"; {raw.label} has {', '.join(raw.categories)}" if raw is not None else ""
            raise UsageError(f"--difference {text}: write UP-DOWN, two categories of one pack{there}")
    if args.png and not plots.available():
        raise UsageError(plots.MISSING)

    def every(n: int) -> None:
        if not args.quiet and sys.stderr.isatty():
            print(f"\r{n} records ", end="", file=sys.stderr, flush=True)

    with lines(args.file) as records:
        index = fold(records, Index(args.time, raw, duplicates=not args.skip_duplicates, differences=args.difference), every)
    rows = [r for r in index.rows() if not args.only or r["pack"] in args.only]
    if args.csv == "-":
        write_csv(rows, sys.stdout)
    else:
        part = Path(args.csv + ".part")
        try:
            with open(part, "w", encoding="utf-8", newline="") as f:
                write_csv(rows, f)
            part.replace(args.csv)
        except OSError as e:
            raise UsageError(f"{args.csv}: {e.strerror}") from None
    if args.png and rows:
        draw(rows, Path(args.png), args.share)
    if not args.quiet:
        out = "".join(f", {n} left out ({why})" for why, n in index.left_out.items())
        print(f"{index.articles} articles, {len(rows)} rows{out}", file=sys.stderr)
        if not rows and index.left_out.get("no category scores"):
            why = f"none asks {args.raw}" if args.raw else "a draft's own probabilities are shown with --raw PACK"
            print(f"no pack judged these records: {why}", file=sys.stderr)
        if index.left_out.get("no published_at"):
            print("--time scored_at takes the time of scoring where an article says none", file=sys.stderr)
    for text in index.without_figures() if rows else ():
        print(f"--difference {text}: no record has both categories", file=sys.stderr)
    return 0 if rows and not index.without_figures() else 1
