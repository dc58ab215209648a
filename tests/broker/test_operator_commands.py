"""topics create, produce and tail against a real broker, as a person would run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import kafka_io
import msgspec
import pytest
import services
from kafka_io import Rec

from spinf_stream.cli import main
from spinf_stream.records import (
    MSGPACK,
    CombinationScore,
    CompactPart,
    CompactScores,
    OptionScore,
    Origin,
    QueryScore,
    Scores,
    Tokens,
    encode,
)

pytestmark = pytest.mark.kafka


@pytest.fixture
def names(kafka: str) -> dict[str, str]:
    mark = f"{time.time_ns():x}"
    return {"input_topic": f"in-{mark}", "output_topic": f"out-{mark}", "dlq_topic": f"dlq-{mark}"}


def flags(kafka: str, names: dict[str, str]) -> list[str]:
    return ["--brokers", kafka, *(part for k, v in names.items() for part in (f"--{k.replace('_', '-')}", v))]


def scores(id_: str, **more: object) -> Scores:
    questions = [
        QueryScore("section", [CombinationScore({}, [OptionScore(" sport", -0.5, 0.75, 0.25), OptionScore(" tech", -2.0, 0.25, 0.75)], 0.3, 0.4)]),
        QueryScore("about", [CombinationScore({"topic": "money"}, [OptionScore(" Yes", -0.1, 0.9, None)], 0.1, None)]),
    ]
    base = Scores(
        id=id_, outcome="scored", system_fingerprint="fp_0", bit_exact=False, model="m", questions_digest="d" * 64, scores=questions,
        slots=[], packs=[], tokens=Tokens(12, 30, 0, 0), truncated=False, origin=Origin("articles", 1, 7, 0), source=None,
        published_at=None, lang=None, meta=None, scored_at="2030-01-01T00:00:00.000Z",
    )  # fmt: skip
    return msgspec.structs.replace(base, **more)


def test_topics_are_created_once_with_settings_that_suit_them(kafka: str, names: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "create", "--partitions", "3", *flags(kafka, names)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{names['input_topic']}: created, 3 partitions", f"{names['output_topic']}: created, 3 partitions", f"{names['dlq_topic']}: created, 1 partitions",
    ]  # fmt: skip
    assert main(["topics", "create", "--partitions", "5", *flags(kafka, names)]) == 0
    assert f"{names['input_topic']}: was there, 3 partitions, not 5" in capsys.readouterr().out
    kept = kafka_io.run(kafka_io.settings_of(kafka, names["dlq_topic"]))
    assert (kept["cleanup.policy"], kept["retention.ms"], kept["max.message.bytes"]) == ("delete", "2592000000", "1114124")


def test_compacted_scores(kafka: str, names: dict[str, str]) -> None:
    assert main(["topics", "create", "--compact-scores", *flags(kafka, names)]) == 0
    assert kafka_io.run(kafka_io.settings_of(kafka, names["output_topic"]))["cleanup.policy"] == "compact"
    assert kafka_io.run(kafka_io.settings_of(kafka, names["input_topic"]))["cleanup.policy"] == "delete"


def test_a_refused_topic_is_named(kafka: str, names: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "create", "--replication", "3", *flags(kafka, names)]) == 1
    assert names["input_topic"] in capsys.readouterr().err


def test_a_broker_that_is_away_is_exit_3_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text":"a"}\n')
    for command in (["topics", "create"], ["tail"], ["produce", str(tmp_path / "a.jsonl")]):
        assert main([*command, "--brokers", "127.0.0.1:1"]) == 3
        said = capsys.readouterr().err.strip()
        assert said.startswith(f"spinf-stream {command[0]}: ")
        assert "127.0.0.1:1" in said
        assert "\n" not in said


def test_a_missing_topic_names_the_command_that_makes_it(kafka: str, names: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text":"a"}\n')
    for command in (["tail"], ["produce", str(tmp_path / "a.jsonl")]):
        assert main([*command, *flags(kafka, names)]) == 3
        assert "spinf-stream topics create" in capsys.readouterr().err


def test_produce_sends_good_lines_as_they_stand_and_names_the_others(kafka: str, topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topic = topics(2)
    lines = [b'{"id":"a1", "text":"one",   "other":1}', b"", b'{"text":"no id"}', b"not json", b'{"id":"a2","text":"\xc3\xa9"}\r', b'{"text":""}']
    file = tmp_path / "articles.jsonl"
    file.write_bytes(b"\n".join(lines))
    assert main(["produce", str(file), "--brokers", kafka, "--input-topic", topic]) == 1
    said = capsys.readouterr().err
    assert "line 4: not_json" in said
    assert "line 6: empty" in said
    assert "3 records" in said
    assert "2 refused" in said
    back = {(r.key, r.value) for r in kafka_io.run(kafka_io.read_all(kafka, topic))}
    assert back == {(b"a1", lines[0]), (None, lines[2]), (b"a2", lines[4].rstrip(b"\r"))}


def test_produce_unchecked_from_standard_input_at_a_rate(kafka: str, topics) -> None:
    topic = topics(1)
    command = [sys.executable, "-m", "spinf_stream.cli", "produce", "-", "--unchecked", "--rate", "40", "--brokers", kafka, "--input-topic", topic]
    began = time.monotonic()
    done = subprocess.run(command, input=b"\n".join(b'{"text":"%d"}' % n for n in range(39)) + b"\nbad\n", capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began > 0.9
    back = [r.value for r in kafka_io.run(kafka_io.read_all(kafka, topic))]
    assert back == [b'{"text":"%d"}' % n for n in range(39)] + [b"bad"]


def tail(kafka: str, topic: str, *more: str) -> int:
    return main(["tail", "--brokers", kafka, "--output-topic", topic, *more])


def test_tail_is_a_table_with_lift(kafka: str, topics, capsys: pytest.CaptureFixture[str]) -> None:
    topic = topics(1)
    sent = [Rec(encode(scores("a1"), MSGPACK), b"a1", [("content-type", MSGPACK.encode())]), Rec(None, b"gone"), Rec(b"rubbish", b"x")]
    kafka_io.run(kafka_io.produce(kafka, topic, sent))
    assert tail(kafka, topic) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "a1 scored, 12 tokens [articles-1-7]       p  floor    lift",
        "  section            sport            0.750  0.250   3.00x",
        "  about topic=money  Yes              0.900      -       -",
        f"gone  tombstone  [{topic}-0-1]",
    ]
    assert f"{topic}-0-2: not a scores record" in err
    assert tail(kafka, topic, "--query", "section", "--all-options") == 1
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:3]] == [["section", "sport", "0.750", "0.250", "3.00x"], ["tech", "0.250", "0.750", "0.33x"]]
    assert tail(kafka, topic, "--json", "--last", "3") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == msgspec.to_builtins(scores("a1"))
    assert lines[1] == {"key": "gone", "outcome": "tombstone"}


def test_tail_says_which_questions_there_are(kafka: str, topics, capsys: pytest.CaptureFixture[str]) -> None:
    topic = topics(1)
    other = scores("a3", scores=[], slots=[{"id": "amount", "kind": "currency", "combinations": []}])
    sent = [Rec(encode(s), s.id.encode()) for s in (scores("a1"), scores("a2"), other)] + [Rec(None, b"gone")]
    kafka_io.run(kafka_io.produce(kafka, topic, sent))
    assert tail(kafka, topic, "--query", "secton") == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"gone  tombstone  [{topic}-0-3]"]
    assert err.splitlines() == [
        f"{topic}-0-0: there is no question 'secton'; there are: section, about", f"{topic}-0-2: there is no question 'secton'; there are: amount",
    ]  # fmt: skip
    assert tail(kafka, topic, "--query", "amount") == 1 and "a3 scored" in capsys.readouterr().out
    assert tail(kafka, topic, "--query", "amount", "--last", "2") == 0
    assert tail(kafka, topic, "--query", "amount", "--json") == 2


def test_replay_asks_for_a_span(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--brokers", "127.0.0.1:1"]) == 2
    assert "say which records, with --from, --to or --all" in capsys.readouterr().err
    assert main(["replay", "--all", "--brokers", "127.0.0.1:1"]) == 2
    assert "nothing to ask" in capsys.readouterr().err, "before the broker is asked for anything"
    for span in (["--all"], ["--from", "2026-01-01"], ["--to", "2026-01-01"]):
        assert main(["replay", *span, "--brokers", "127.0.0.1:1", "--questions", "q.toml"]) == 3


def test_schemas_describe_slots_and_packs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "scores"]) == 0
    found = json.loads(capsys.readouterr().out)
    inside = found["$defs"]
    assert {f.name for f in msgspec.structs.fields(Scores)} == set(inside["Scores"]["properties"])
    for name, struct in (("slots", "SlotScore"), ("packs", "PackScore")):
        assert inside["Scores"]["properties"][name]["items"] == {"$ref": f"#/$defs/{struct}"}
    assert "parts" not in inside["CompactScores"]["required"] and set(inside["CompactPart"]["required"]) == {"options", "prompts"}
    assert "start" in inside["SlotAnswer"]["required"] and "value" not in inside["SlotAnswer"]["required"]
    assert main(["schema"]) == 0 and set(json.loads(capsys.readouterr().out)) == {"article", "scores", "questions"}


def test_tail_shows_compact_scores_slots_and_packs(kafka: str, topics, capsys: pytest.CaptureFixture[str]) -> None:
    topic = topics(1)
    slots = [{"id": "who", "kind": "text", "combinations": [{"values": {}, "answers": [{"text": " Ada", "p": 0.5}], "mass": 0.6}]}]
    packs = [{"id": "p/x", "version": "1", "categories": {"spam": {"score": 0.125, "flagged": True}, "ham": {"score": 0.5, "flagged": None}}}]
    rich = scores("rich", scores=[], slots=slots, packs=packs)
    small = CompactScores(40, 20, b"", b"", b"", b"", b"")
    parts = [CompactPart(10, 5), CompactPart(30, 15, "p/x", "post")]
    sent = [rich, scores("small", scores=small), scores("parts", scores=msgspec.structs.replace(small, parts=parts))]
    kafka_io.run(kafka_io.produce(kafka, topic, [Rec(encode(s)) for s in sent]))
    assert tail(kafka, topic) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:4]] == [["who", "Ada", "0.500"], ["pack", "p/x@1", "spam", "flagged", "0.125"], ["ham", "0.500"]]
    assert lines[5].strip() == f"20 questions, 40 options, compact; questions {'d' * 16}"
    assert lines[7].strip() == f"20 questions, 40 options, compact; 15 of p/x in post; questions {'d' * 16}"


def test_tail_counts_over_partitions_and_skips_transaction_markers(kafka: str, topics, capsys: pytest.CaptureFixture[str]) -> None:
    from aiokafka import AIOKafkaProducer

    topic = topics(3)

    async def transactions() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=topic)
        await producer.start()
        for n in range(12):
            async with producer.transaction():
                await producer.send_and_wait(topic, encode(scores(f"n{n}")), partition=n % 3, timestamp_ms=1_000_000_000_000 + n)
        await producer.stop()

    kafka_io.run(transactions())
    for more, expect in (["--from-beginning"], range(12)), (["--last", "3"], range(9, 12)), (["--last", "0"], ()):
        assert tail(kafka, topic, "--json", *more) == 0
        assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == [f"n{n}" for n in expect]


def test_tail_follows_until_it_is_interrupted(kafka: str, topics) -> None:
    topic = topics(2)
    kafka_io.run(kafka_io.produce(kafka, topic, [Rec(encode(scores("before")), partition=0)]))
    command = [sys.executable, "-u", "-m", "spinf_stream.cli", "tail", "--follow", "--json", "--brokers", kafka, "--output-topic", topic]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=services.hear_ctrl_c
    )
    stop = threading.Timer(60, process.kill)
    stop.start()
    assert process.stdout is not None
    try:
        seen = [json.loads(process.stdout.readline())["id"]]
        kafka_io.run(kafka_io.produce(kafka, topic, [Rec(encode(scores(f"n{n}")), partition=n % 2) for n in range(4)]))
        seen += [json.loads(process.stdout.readline())["id"] for _ in range(4)]
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        stop.cancel()
        process.kill()
        process.communicate()
    assert seen[0] == "before"
    assert sorted(seen[1:]) == ["n0", "n1", "n2", "n3"]
