"""`spinf-stream plan`: from articles a day, questions and length to GPUs and partitions, by rates that were measured.

    tokens an article = content + questions * tokens a question     (a question costs what its branch adds to the trie)
    GPUs              = articles a second * peak * tokens an article / (tokens a second of one GPU * use)

rates.json beside this file holds the measured rates, each with the result file and run that it comes from; --rates takes
another file of the same form, with figures of your own.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NamedTuple

import msgspec

from spinf_stream.errors import UsageError

RATES = Path(__file__).parent / "rates.json"
DAY = 86_400
LEAST_PARTITIONS = 8
MOST_PARTITIONS = 64  # that one worker takes in exactly-once mode (DECISIONS 16)


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens a second of one device, real ones of passes, none of padding."""

    gpu: str
    model: str
    tokens_per_second: float
    result: str
    engine: str
    shape: str


class PerQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    value: float
    source: str


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rates: tuple[Rate, ...]
    tokens_per_question: PerQuestion


class Load(NamedTuple):
    articles_per_day: float
    questions: int
    tokens: int  # of the content
    question_tokens: float
    peak: float  # the busiest hour over the mean
    use: float  # share of a device that may be planned away
    duplicates: float  # share of articles that cost no pass


class Plan(NamedTuple):
    tokens_per_article: float
    articles_per_second: float  # at the mean
    tokens_per_second: float  # at the peak
    gpus: int
    busy_mean: float
    busy_peak: float
    partitions: int
    most_per_day: float  # articles a day at which the planned use is reached, with these GPUs


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--articles-per-day", type=float, required=True, metavar="N")
    parser.add_argument("--questions", type=int, required=True, metavar="N", help="prompts asked of each article")
    parser.add_argument("--tokens", type=int, required=True, metavar="N", help="content tokens of an article")
    parser.add_argument("--gpu", default="h200", metavar="NAME", help="a device of the rates (default h200)")
    parser.add_argument("--question-tokens", type=float, metavar="X", help="tokens that a question adds (default: measured)")
    parser.add_argument("--peak", type=float, default=2.0, metavar="X", help="the busiest hour over the mean (default 2)")
    parser.add_argument("--use", type=float, default=0.7, metavar="X", help="share of a GPU to plan with, the rest for restarts and catching up (default 0.7)")
    parser.add_argument("--duplicates", type=float, default=0.0, metavar="X", help="share of articles that are copies (default 0)")
    parser.add_argument("--price", type=float, metavar="X", help="price of one GPU for an hour, in any currency")
    parser.add_argument("--rates", type=Path, default=RATES, metavar="FILE", help="measured rates of your own")


def run(args: argparse.Namespace) -> int:
    rates = read(args.rates)
    question_tokens = rates.tokens_per_question.value if args.question_tokens is None else args.question_tokens
    load = Load(args.articles_per_day, args.questions, args.tokens, question_tokens, args.peak, args.use, args.duplicates)
    _check(load)
    rate = next((r for r in rates.rates if r.gpu == args.gpu), None)
    if rate is None:
        raise UsageError(f"no measured rate of {args.gpu!r}; there is {', '.join(sorted(r.gpu for r in rates.rates))}: measure it and give --rates")
    p = plan(load, rate)
    said = "measured" if args.question_tokens is None else "given"
    print(f"an article   {load.tokens} + {load.questions} questions x {question_tokens:g} tokens ({said}) = {p.tokens_per_article:.0f} tokens")
    print(f"load         {p.articles_per_second:.1f} articles/s on average, {p.tokens_per_second:,.0f} tokens/s in the busiest hour (x {load.peak:g})")
    print(f"GPUs         {p.gpus} x {rate.gpu}")
    print(f"headroom     busy {p.busy_mean:.0%} on average, {p.busy_peak:.0%} in the busiest hour; up to {p.most_per_day:,.0f} articles/day at {load.use:.0%}")
    print(f"partitions   {p.partitions}: one worker a GPU, and room to double")
    if args.price is not None:
        day = 24 * p.gpus * args.price
        print(f"cost         {day:,.2f} a day, {1e6 * day / load.articles_per_day:,.2f} a million articles")
    print(f"rests on     {rate.tokens_per_second:,.0f} tokens/s of one {rate.gpu}: {rate.model}; {rate.shape}; {rate.engine} in {rate.result}")
    if args.question_tokens is None:
        print(f"             {rates.tokens_per_question.value:g} tokens a question: {rates.tokens_per_question.source}")
    return 0


def plan(load: Load, rate: Rate) -> Plan:
    per_article = load.tokens + load.questions * load.question_tokens
    articles = load.articles_per_day * (1 - load.duplicates) / DAY
    mean = articles * per_article
    gpus = max(1, math.ceil(mean * load.peak / (rate.tokens_per_second * load.use) - 1e-9))
    full = gpus * rate.tokens_per_second
    partitions = max(LEAST_PARTITIONS, 1 << (2 * gpus - 1).bit_length())
    most = load.articles_per_day * load.use * full / (mean * load.peak)
    return Plan(per_article, articles, mean * load.peak, gpus, mean / full, mean * load.peak / full, min(partitions, MOST_PARTITIONS * gpus), most)


def read(path: Path) -> Rates:
    """Raises UsageError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Rates)
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}") from None
    except msgspec.MsgspecError as e:
        raise UsageError(f"{path}: {e}") from None


def _check(load: Load) -> None:
    for name, ok, words in (
        ("--articles-per-day", load.articles_per_day > 0, "more than 0"),
        ("--questions", load.questions >= 1, "at least 1"),
        ("--tokens", load.tokens >= 1, "at least 1"),
        ("--question-tokens", load.question_tokens > 0, "more than 0"),
        ("--peak", load.peak >= 1, "at least 1"),
        ("--use", 0 < load.use <= 1, "more than 0 and at most 1"),
        ("--duplicates", 0 <= load.duplicates < 1, "at least 0 and less than 1"),
    ):
        if not ok:
            raise UsageError(f"{name} must be {words}")
