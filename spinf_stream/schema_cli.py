"""`spinf-stream schema`: the JSON Schemas of what goes in, what comes out, and of a question file."""

from __future__ import annotations

import argparse
import json


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", nargs="?", choices=("article", "scores", "questions", "all"), default="all")


def run(args: argparse.Namespace) -> int:
    from spinf_stream.schema import schemas

    made = schemas()
    print(json.dumps(made if args.record == "all" else made[args.record], indent=2))
    return 0
