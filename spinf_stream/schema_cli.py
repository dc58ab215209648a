"""`spinf-stream schema`: the JSON Schemas of what goes in, what comes out, and of a question file."""

from __future__ import annotations

import argparse
import json

import msgspec

from spinf_stream.records import Article, Scores


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", nargs="?", choices=("article", "scores", "questions", "all"), default="all")


def run(args: argparse.Namespace) -> int:
    from spinf_stream.questions.spec import QuestionFile

    types = {"article": Article, "scores": Scores, "questions": QuestionFile}
    if args.record == "all":
        print(json.dumps({name: msgspec.json.schema(t) for name, t in types.items()}, indent=2))
    else:
        print(json.dumps(msgspec.json.schema(types[args.record]), indent=2))
    return 0
