"""A record's outcome and what is published for it. Plain functions of the record: no I/O, called in any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spinf_stream.config import Settings
from spinf_stream.engine.scorer import Scorer, record
from spinf_stream.records import Answer, Origin, Outcome, Reason, Tokens, encode, now
from spinf_stream.stream.dead_letters import Size, dead_letter
from spinf_stream.stream.flow import Headers, Item, Outgoing, Record, Settled

TRACE = ("traceparent", "tracestate")
CONTENT_TYPE = "content-type"
HELD = 5  # an answer's objects take this many times its encoded bytes, at most (tests/logic/test_inflight.py)


class TopicFacts(NamedTuple):
    partitions: int
    max_bytes: int  # of one record, as the size function counts it


class Settle:
    """`topics` holds the facts of the output and the dead-letter topic; it may be refreshed while running."""

    def __init__(self, settings: Settings, scorer: Scorer, size: Size, topics: Mapping[str, TopicFacts]) -> None:
        self.settings = settings
        self.scorer = scorer
        self.size = size
        self.topics = topics
        self.carried = frozenset((*TRACE, *settings.carry_headers))

    def answered(self, item: Item, answer: Answer, outcome: Outcome) -> Settled:
        """`scored`, `duplicate` or `expired`, published under the record's own id, key and headers; dead when too large."""
        r = item.record
        origin = Origin(r.topic, r.partition, r.offset, r.timestamp)
        value = encode(record(self.scorer, answer, outcome, item.id, origin, item.article), item.content_type)
        out = self._out(r, value, item.content_type)
        size, limit = self.size(out.key, out.value, out.headers), self.topics[out.topic].max_bytes
        if size > limit:
            why = f"the scores are {size} bytes, topic {out.topic} takes {limit}: set scores_format = compact or raise max.message.bytes"
            return self.dead(r, "publish_too_large", why, item=item)
        mark = answer if outcome == "scored" and self.settings.redis_url else None
        return Settled(r, outcome, out, None, item, mark, HELD * len(value) if outcome == "scored" else 0)

    def expired(self, item: Item) -> Settled:
        nothing = Answer(scores=[], slots=[], packs=[], tokens=Tokens(0, 0, 0, 0), truncated=False, warnings=[], scored_at=now(),
                         questions_digest=self.scorer.questions_digest)  # fmt: skip
        return self.answered(item, nothing, "expired")

    def counted(self, item: Item) -> Settled:
        """A duplicate of which nothing is published: a redelivery, or `on_duplicate = "skip"`."""
        return Settled(item.record, "duplicate", None, None, item)

    def tombstone(self, r: Record) -> Settled:
        """Forwarded with its key, so that compaction downstream works; without a key only counted."""
        return Settled(r, "tombstone", None if r.key is None else self._out(r, None, None))

    def dead(self, r: Record, reason: Reason, message: str, *, attempts: int = 0, item: Item | None = None) -> Settled:
        topic = self.settings.dlq_topic
        out = dead_letter(
            r, reason, message, topic, self.scorer.fingerprint, attempts, self.size, self.topics[topic].max_bytes
        )
        return Settled(r, "dead", out, reason, item)

    def _out(self, r: Record, value: bytes | None, content_type: str | None) -> Outgoing:
        topic = self.settings.output_topic
        headers: Headers = tuple(h for h in r.headers if h[0] in self.carried)
        if content_type is not None:
            headers = (*(h for h in headers if h[0] != CONTENT_TYPE), (CONTENT_TYPE, content_type.encode()))
        partition = r.partition % self.topics[topic].partitions if r.key is None else None
        return Outgoing(topic, r.key, value, headers, r.timestamp if r.timestamp >= 0 else None, partition)
