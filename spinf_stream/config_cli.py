"""`spinf-stream config`: each setting, its value, and where it came from. Secrets are never shown."""

from __future__ import annotations

import argparse

from spinf_stream.settings_cli import ALL, add_settings, loaded
from spinf_stream.settings_help import meanings


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--explain", action="store_true", help="what each means, and what it may be")
    add_settings(parser, ALL)


def run(args: argparse.Namespace) -> int:
    rows = list(loaded(args).describe())
    wide = max(len(r.name) for r in rows)
    for r in rows:
        if args.explain:
            meaning = meanings()[r.name]
            print(f"\n# {meaning.words} [{meaning.values}]")
        print(f"{r.name:<{wide}} = {r.value}  # {r.origin}")
    return 0
