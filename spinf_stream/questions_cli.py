"""`spinf-stream questions check FILE`: every problem of a question file, or what asking it will cost.

Exit code 1 with all problems, one a line, when the file cannot be asked.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.errors import UsageError
from spinf_stream.questions.cache import load_file
from spinf_stream.questions.problems import QuestionError
from spinf_stream.questions.questionset import QuestionSet
from spinf_stream.questions.spec import Limits
from spinf_stream.questions.warnings import warnings
from spinf_stream.settings_cli import add_settings, loaded


def arguments(parser: argparse.ArgumentParser) -> None:
    check = parser.add_subparsers(dest="action", metavar="ACTION", required=True).add_parser(
        "check", help="find every problem of a question file, or show what it costs", allow_abbrev=False
    )
    check.add_argument("file", metavar="FILE", type=Path, help="questions, .toml or JSON")
    check.add_argument("--tokenizer", metavar="FILE", type=Path, help="a tokenizer.json, instead of the model's")
    add_settings(check, ("model", "cache_dir", "max_slots"))


def run(args: argparse.Namespace) -> int:
    encoder = _encoder(args)
    try:
        questions = load_file(args.file, encoder, limits=Limits(max_slots=loaded(args).settings.max_slots))
    except OSError as e:
        raise UsageError(f"{args.file}: {e.strerror}") from None
    except QuestionError as e:
        for problem in e.problems:
            print(problem, file=sys.stderr)
        print(f"{args.file}: {_count(len(e.problems), 'problem')}", file=sys.stderr)
        return 1
    print(report(questions))
    return 0


def report(questions: QuestionSet) -> str:
    """A table of the queries, the warnings, and the totals. Ids and counts alone."""
    spellings = np.bincount(questions.plan.option_prompt[questions.plan.variant_option], minlength=questions.plan.prompts)
    rows = [("query", "prompts", "options", "spellings", "tokens", "")]
    for q, first in zip(questions.queries, questions.starts.prompt.tolist()):
        marks = (("floor", q.floor), ("any case", q.case_insensitive), ("ends", q.ends), ("no residual", not q.residual))
        said = ", ".join(name for name, on in marks if on)
        rows.append((q.name, str(len(q.values)), str(len(q.options)), str(spellings[first]), str(q.tokens), said))
    for s in questions.slots:
        how = "generated" if s.generate else "copied" if s.mode == "copy_only" else "searched"
        rows.append((s.name, str(len(s.values)), "", "", str(sum(map(len, s.tokens))), f"{{{s.kind}}} {how}, up to {s.max_tokens} tokens"))
    wide = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [
        f"{row[0]:<{wide[0]}}  " + "  ".join(f"{cell:>{w}}" for cell, w in zip(row[1:5], wide[1:])) + (f"  {row[5]}" if row[5] else "")
        for row in rows
    ]  # fmt: skip
    lines += (f"warning: query {w.query!r}: {w.code}: {w.message}" for w in warnings(questions))
    alone = sum(q.tokens for q in questions.queries)
    lines += (
        "",
        f"{_count(len(questions.queries), 'scored query', 'scored queries')}, {_count(questions.plan.prompts, 'prompt')}, "
        f"{_count(questions.plan.reads, 'read')}, {_count(len(questions.slots), 'slot query', 'slot queries')}",
        f"{questions.tokens} tokens an article in the trie, {alone} without sharing; the longest path has {questions.longest}",
        f"digest {questions.digest}",
    )
    return "\n".join(lines)


def _encoder(args: argparse.Namespace) -> Encoder:
    from spinf_stream.engine.cache import fetch
    from spinf_stream.engine.checkpoint import read_json
    from spinf_stream.engine.models import ModelAway, ModelError, describe

    try:
        if args.tokenizer is not None:
            return Encoder.from_file(args.tokenizer)
        settings = loaded(args).settings
        folder = fetch(settings.model, settings.cache()).folder
        spec = describe(read_json(folder / "config.json"))
        return Encoder.from_file(folder / "tokenizer.json", spec.bos, spec.vocab)
    except OSError as e:
        raise UsageError(f"{args.tokenizer or 'tokenizer'}: {e.strerror}") from None
    except ModelAway as e:
        raise UsageError(str(e), 3) from None
    except (ModelError, ValueError) as e:
        raise UsageError(str(e)) from None


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"
