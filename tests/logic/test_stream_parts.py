"""Small parts of the stream: content types, logs, metrics, settled records."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from fakes import FakeScorer

from spinf_stream.config import Settings
from spinf_stream.metrics import PREFIX, Metrics
from spinf_stream.records import Article, Scores
from spinf_stream.stream.batcher import Batcher
from spinf_stream.stream.flow import Headers, Item, Record, Work
from spinf_stream.stream.intake import Intake, _content_type, _key
from spinf_stream.stream.kafka import size
from spinf_stream.stream.logs import JsonLines, Text
from spinf_stream.stream.partitions import Partition
from spinf_stream.stream.settle import Settle, TopicFacts


def record(headers: Headers = (), key: bytes | None = b"k", partition: int = 0) -> Record:
    return Record("articles", partition, 5, 1000, key, b"v", headers)


@pytest.mark.parametrize(
    ("headers", "expect"),
    [
        ((), "application/json"),
        ((("content-type", b"application/msgpack"),), "application/msgpack"),
        ((("Content-Type", b" Application/MSGPACK; v=1"),), "application/msgpack"),
        ((("content-type", b"application/msgpack"), ("content-type", b"application/json")), "application/json"),
        ((("content-type", None),), "application/json"),
        ((("content-type", b"\xff"),), "application/json"),
    ],
)
def test_content_type(headers: Headers, expect: str) -> None:
    assert _content_type(record(headers)) == expect


def test_a_key_that_is_no_text_gives_no_id() -> None:
    assert (_key(record(key=b"\xff")), _key(record(key=None)), _key(record(key=b"")), _key(record(key="ü".encode()))) == (None, None, None, "ü")


def settle(max_bytes: int = 10**6, **more: object) -> Settle:
    facts = {"scores": TopicFacts(4, max_bytes), "articles.dlq": TopicFacts(1, max_bytes)}
    return Settle(Settings(**more), FakeScorer(), size, facts)  # type: ignore[arg-type]


def item(r: Record) -> Item:
    return Item(r, Partition(r.topic, r.partition, 1), Article(text="x y"), "id", "application/json", 0.0)


def test_a_null_key_goes_to_its_partitions_number_or_the_remainder() -> None:
    s = settle(redis_url="embedded://")
    answer = s.scorer.answers([s.scorer.prepare(Article(text="x y"))], None)[0]  # type: ignore[arg-type]
    for partition, expect in ((0, 0), (3, 3), (6, 2)):
        out = s.answered(item(record(key=None, partition=partition)), answer, "scored").out
        assert out is not None and out.partition == expect and out.key is None
    keyed = s.answered(item(record()), answer, "scored")
    assert keyed.out is not None and keyed.out.partition is None and keyed.mark == answer
    assert msgspec.json.decode(keyed.out.value or b"", type=Scores).origin.offset == 5
    assert s.answered(item(record()), answer, "duplicate").mark is None, "only what was scored is remembered"


def test_only_named_headers_are_carried() -> None:
    s = settle(carry_headers=("tenant",))
    sent: Headers = (("tracestate", b"t"), ("tenant", None), ("cookie", b"c"), ("content-type", b"text/plain"))
    out = s.tombstone(record(sent)).out
    assert out is not None and out.headers == (("tracestate", b"t"), ("tenant", None))


def test_logs_keep_the_trace_and_withhold_its_words() -> None:
    first, second = "text of " + "the article", "another " + "text"
    try:
        try:
            raise ValueError(first)
        except ValueError as e:
            raise RuntimeError(second) from e
    except RuntimeError:
        info = sys.exc_info()
    entry = logging.LogRecord("spinf_stream", logging.ERROR, "f", 1, "failed at %s", ("t-0-1",), info)
    entry.place = "t-0-1"
    line = json.loads(JsonLines().format(entry))
    assert line["message"] == "failed at t-0-1" and line["place"] == "t-0-1" and line["level"] == "error"
    for text in (line["trace"], Text().format(entry)):
        assert "test_stream_parts.py" in text and "ValueError" in text and "(message withheld)" in text
        assert first not in text and second not in text


def test_every_metric_is_named_and_helped_and_bounded() -> None:
    m = Metrics(32768)
    m.of_partition("articles", 0)
    families = list(m.registry.collect())
    ours = [f for f in families if not f.name.startswith("process_")]
    assert len(ours) > 40 and any(f.name == "process_resident_memory_bytes" for f in families)
    for f in ours:
        assert f.name.startswith(PREFIX) and len(f.documentation) > 8, f.name
        for s in f.samples:
            assert not set(s.labels) & {"id", "key", "offset", "question", "query", "option", "text", "digest"}, s
    samples = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}
    assert samples["spinf_stream_dead_letters_total", (("reason", "engine_crash"),)] == 0
    assert ("spinf_stream_published_bytes_bucket", (("le", "1.048576e+06"),)) in samples
    assert ("spinf_stream_batch_tokens_bucket", (("le", "32768.0"),)) in samples
    m.forget_partition("articles", 0)
    assert "spinf_stream_lag_records{" not in m.text().decode()
    assert Metrics(10).registry is not m.registry


def test_an_equal_text_that_comes_while_the_first_is_settled_is_left_out_too() -> None:
    """on_duplicate = skip: whether the first's output was made is known before the next is judged."""

    class Slow(Settle):
        def answered(self, *args: Any) -> Any:
            time.sleep(0.02)
            return super().answered(*args)

    async def main() -> None:
        s, p = settle(on_duplicate="skip"), Partition("articles", 0, 1)
        slow = Slow(s.settings, s.scorer, size, s.topics)
        intake = Intake(s.settings, s.scorer, slow, Batcher(100, 1.0), None, Metrics(100), ThreadPoolExecutor(2), lambda: None)  # type: ignore[arg-type]
        p.open(0, 0)
        prepared = s.scorer.prepare(Article(text="x y"))
        work = Work(prepared, 0.0, verdict=s.scorer.answers([prepared], None)[0])  # type: ignore[arg-type]
        for offset in range(2):
            r = Record("articles", 0, offset, 1000, b"k", b"v", ())
            p.see(r)
            p.flying += 1
            work.items.append(Item(r, p, Article(text="x y"), str(offset), "application/json", 0.0, work))
        await asyncio.gather(*(intake.answer([work], [i]) for i in list(work.items)))
        assert p.offsets is not None
        assert [(x.outcome, x.out is not None) for x in p.offsets.take(2)] == [("scored", True), ("duplicate", False)]

    asyncio.run(main())
