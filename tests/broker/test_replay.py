"""Dead letters sent again, and a span of the input scored again."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import kafka_io
import pytest
from kafka_io import RawKey, Rec
from stage import Stage, Topics, articles, burst, ids

from spinf_stream import dlq_cli
from spinf_stream.errors import UsageError
from spinf_stream.stream.replay import moment, plan

pytestmark = pytest.mark.kafka


def dlq(t: Topics, *argv: str) -> int:
    parser = argparse.ArgumentParser()
    dlq_cli.arguments(parser)
    where = ["--brokers", t.kafka, "--input-topic", t.source, "--output-topic", t.scores, "--dlq-topic", t.dlq]
    return dlq_cli.run(parser.parse_args([*argv, *where]))


def test_letters_are_listed_and_sent_again_at_most_three_times(kafka: str, topics: Any, capsys: pytest.CaptureFixture[str]) -> None:
    t = Topics(kafka, topics)
    broken = [True]

    def fault(texts: list[str]) -> None:
        if broken[0] and any(x.startswith("sick ") for x in texts):
            raise ZeroDivisionError

    async def fill() -> None:
        await t.fill([*articles(["well", "sick"]), Rec(b'{"text": 5}', b"schema", (("note", b"n"),)), Rec(b"{" + b"x" * 1_048_300, b"big")])
        await kafka_io.produce_batch(kafka, t.source, [Rec(b"{}", b"raw", ((RawKey.of(b"\xff"), b"x"),))])
        await burst(t.settings(), fault=fault)

    asyncio.run(fill())
    assert dlq(t, "list") == 0
    out = capsys.readouterr()
    lines = out.out.splitlines()
    assert len(lines) == 4 and "4 dead letters" in out.err
    assert "engine_error" in lines[0] and f"{t.source}-0-1" in lines[0] and "sick word" not in out.out
    assert dlq(t, "list", "--reason", "schema") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert dlq(t, "list", "--json") == 0
    said = capsys.readouterr().out
    listed = [json.loads(line) for line in said.splitlines()]
    assert [(x["reason"], x["origin"], x["key"]) for x in listed[:2]] == [("engine_error", f"{t.source}-0-1", "sick"), ("schema", f"{t.source}-0-2", "schema")]
    assert listed[1]["bytes"] == len(b'{"text": 5}') and listed[1]["obstacle"] is None and listed[1]["hops"] == 0
    assert all(x["place"].startswith(t.dlq) for x in listed) and sum(x["obstacle"] is not None for x in listed) == 2 and "sick word" not in said

    with pytest.raises(UsageError, match="say which"):
        dlq(t, "replay")
    assert dlq(t, "replay", "--all", "--dry-run") == 0
    assert "2 would be sent again" in capsys.readouterr().err

    broken[0] = False
    for hop, count in ((1, 2), (2, 3), (3, 5)):
        assert dlq(t, "replay", "--reason", "engine_error", "--reason", "schema", "--from", "2020-01-01") == 0
        said = capsys.readouterr().err
        asyncio.run(burst(t.settings(), fault=fault)).value("records_total")
        letters = asyncio.run(t.dead())
        assert f"{count} sent again" in said, "the letters stay, and what is still at fault comes back with a hop more"
        last = dict(letters[-1].headers)
        assert last["spinf.replay.hops"] == b"%d" % hop and last["note"] == b"n" and letters[-1].value == b'{"text": 5}'
    assert "sick" in ids(asyncio.run(t.out()))
    assert dlq(t, "replay", "--reason", "schema", "--dry-run") == 0
    assert "1 left: replayed 3 times already" in capsys.readouterr().err


@pytest.mark.parametrize("hops", [b"1" * 5000, b"many", b"-1", "\u0663".encode(), b""])
def test_an_input_records_own_count_of_replays_is_not_trusted(kafka: str, topics: Any, capsys: pytest.CaptureFixture[str], hops: bytes) -> None:
    t = Topics(kafka, topics)

    async def fill() -> None:
        await t.fill([Rec(b"rubbish", b"a", (("spinf.replay.hops", hops),)), Rec(b"rubbish", b"b"), Rec(b"rubbish", b"c", (("spinf.replay.hops", b"2"),))])
        await burst(t.settings())

    asyncio.run(fill())
    assert dlq(t, "list", "--json") == 0
    assert {x["key"]: x["hops"] for x in map(json.loads, capsys.readouterr().out.splitlines())} == {"a": 3, "b": 0, "c": 2}
    assert dlq(t, "replay", "--all", "--dry-run") == 0
    assert "2 would be sent again" in capsys.readouterr().err


def test_a_span_of_time_is_scored_again_in_a_group_of_its_own(kafka: str, topics: Any) -> None:
    async def main() -> None:
        t = Topics(kafka, topics, 2)
        base = moment("2026-01-01")
        records = [r._replace(timestamp_ms=base + 1000 * i) for i, r in enumerate(articles([f"r{i:02d}" for i in range(40)], partitions=2))]
        await t.fill(records)
        await burst(t.settings())
        made = await plan(t.settings(), moment("2026-01-01T00:00:10Z"), moment("2026-01-01T00:00:20"), None, True)
        assert made.records == 10 and made.settings.group != t.group
        w = Stage(made.settings, burst=True)
        from spinf_stream.stream.worker import serve

        assert await serve(made.settings, w.scorer, w.runner, burst=True, metrics=w.metrics, stop=w.stop, ends=made.ends) == 0
        out = ids(await t.out())
        assert sorted(out) == sorted([f"r{i:02d}" for i in range(40)] + [f"r{i:02d}" for i in range(10, 20)])
        assert await t.committed() == {0: 20, 1: 20}, "the group itself is not touched"

        later = await plan(t.settings(), moment("2027-01-01"), None, None, True)
        assert later.records == 0
        everything = await plan(t.settings(redis_url="embedded://"), None, None, "mine", False)
        assert (everything.records, everything.settings.redis_url, everything.settings.group) == (40, "", "mine")
        again = await plan(t.settings(), moment("2027-01-01"), None, "mine", True)
        assert (await kafka_io.committed(kafka, "mine", t.source)) == {0: 0, 1: 0}, "a replay that was begun is gone on with"
        assert again.records == 0

    asyncio.run(main())


def test_times() -> None:
    assert moment("1970-01-02") == 86_400_000
    assert moment("1970-01-01T01:00:00+01:00") == 0 and moment("1970-01-01T00:00:01Z") == 1000
    assert moment("0001-01-01T00:00:00Z") == moment("0001-01-01T00:00:00+14:00") == 0
    with pytest.raises(ValueError):
        moment("yesterday")


