"""`spinf-stream topics create`: the input, scores and dead-letter topics, with settings that suit them."""

from __future__ import annotations

import argparse
import asyncio
import sys

from spinf_stream.config import Settings
from spinf_stream.errors import UsageError
from spinf_stream.settings_cli import KAFKA, add_settings, loaded
from spinf_stream.stream.kafka.topics import TopicPlan

DAY_MS = 24 * 3600 * 1000


def arguments(parser: argparse.ArgumentParser) -> None:
    sub = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = sub.add_parser("create", help="create those that are missing", allow_abbrev=False)
    create.add_argument("--partitions", type=int, default=8, help="of the articles and scores topics: the most workers that share them (default 8)")
    create.add_argument("--replication", type=int, help="copies of each partition (default: the broker's own)")
    create.add_argument("--retention-days", type=float, default=7, help="of articles and scores; dead letters stay 30 days (default 7)")
    create.add_argument(
        "--compact-scores", action="store_true", help="keep the latest scores of each key for ever; every article must then have a key"
    )
    add_settings(create, KAFKA)


def run(args: argparse.Namespace) -> int:
    from spinf_stream.stream.kafka import Away
    from spinf_stream.stream.kafka.topics import create

    if args.partitions < 1 or (args.replication is not None and args.replication < 1) or args.retention_days <= 0:
        raise UsageError("--partitions, --replication and --retention-days must be at least 1")
    settings = loaded(args).settings
    wanted = plans(settings, args.partitions, args.retention_days, args.compact_scores)
    try:
        made = asyncio.run(create(settings, wanted, args.replication))
    except Away as e:
        raise UsageError(str(e), 3) from None
    for plan, topic in zip(wanted, made, strict=True):
        if topic.error:
            print(f"{topic.name}: {topic.error}", file=sys.stderr)
        else:
            other = f", not {plan.partitions}" if topic.partitions != plan.partitions else ""
            print(f"{topic.name}: {'created' if topic.created else 'was there'}, {topic.partitions} partitions{other}")
    return 1 if any(topic.error for topic in made) else 0


def plans(s: Settings, partitions: int, retention_days: float = 7, compact: bool = False) -> list[TopicPlan]:
    """Scores have as many partitions as articles: a record without a key goes to its input partition's number.

    Compaction is off by default because a compacted topic refuses records without a key. Dead letters carry headers
    beside the bytes of a record that may itself be as large as the broker takes, so they may be 64 KiB larger.
    """
    keep = {"cleanup.policy": "delete", "retention.ms": str(int(retention_days * DAY_MS))}
    scores = {"cleanup.policy": "compact"} if compact else keep
    letters = {"cleanup.policy": "delete", "retention.ms": str(30 * DAY_MS), "max.message.bytes": str(1_048_588 + 65_536)}
    return [
        TopicPlan(s.input_topic, partitions, keep),
        TopicPlan(s.output_topic, partitions, scores),
        TopicPlan(s.dlq_topic, 1, letters),
    ]
