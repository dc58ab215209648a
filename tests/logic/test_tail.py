"""`tail` and `dlq list` before records that nobody of ours wrote."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from spinf_stream import dlq_cli, tail_cli
from spinf_stream.records import MSGPACK, OptionScore, Origin, QueryScore, Scores, Tokens, encode
from spinf_stream.records import CombinationScore as Combination
from spinf_stream.stream import replay
from spinf_stream.stream.flow import Headers, Record
from spinf_stream.stream.kafka import topics

PACKED: Headers = (("content-type", MSGPACK.encode()),)
STEERING = "A\x1b[2J\x9b31m\rB"


def scores(words: str) -> bytes:
    question = QueryScore(words, [Combination({words: words}, [OptionScore(words, -1.0, 0.5, 0.5)], 0.0, 0.0)])
    return encode(Scores(
        id=words, outcome="scored", system_fingerprint="fp", bit_exact=False, model="m", questions_digest="d", scores=[question],
        slots=[{"id": words, "combinations": [{"values": {}, "answers": [{"text": words, "p": 0.5}]}]}], packs=[], tokens=Tokens(1, 2, 3, 4),
        truncated=False, origin=Origin("t", 0, 1, -1), source=None, published_at=None, lang=None, meta=None, scored_at="t", warnings=[words],
    ))  # fmt: skip


def tail(monkeypatch: pytest.MonkeyPatch, value: bytes | None, *argv: str, headers: Headers = (), key: bytes = b"k") -> int:
    async def read(*_: Any, **__: Any) -> AsyncGenerator[Record, None]:
        yield Record("scores", 0, 7, -1, key, value, headers)

    monkeypatch.setattr(topics, "read", read)
    parser = argparse.ArgumentParser()
    tail_cli.arguments(parser)
    return tail_cli.run(parser.parse_args([*argv]))


@pytest.mark.parametrize("argv", [[], ["--all-options"], ["--query", STEERING], ["--query", "another"], ["--json"]])
def test_an_articles_words_do_not_steer_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    tail(monkeypatch, scores(STEERING), *argv)
    out, err = capsys.readouterr()
    if argv == ["--json"]:
        assert msgspec.json.decode(out)["id"] == STEERING and "\x1b" not in out
        return
    assert (out + err).count("\n") >= 1 and "A\\x1b[2J\\x9b31m" in out + err
    assert all(c.isprintable() for c in (out + err).replace("\n", ""))


def test_nor_do_keys_and_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert tail(monkeypatch, None, key=STEERING.encode()) == 0
    assert tail(monkeypatch, scores("x").replace(b'"outcome":"scored"', b'"outcome":"\\u001b[2J"')) == 1
    out, err = capsys.readouterr()
    assert "tombstone" in out and "not a scores record" in err and all(c.isprintable() for c in (out + err).replace("\n", ""))


@pytest.mark.parametrize(("value", "headers"), [
    (b"[" * 100_000, ()), (b"[" * 5000 + b"]" * 5000, ()), (b"\x91" * 5000 + b"\x01", PACKED), (b"\xd4\x05\x01", PACKED),
    (msgspec.msgpack.encode({"a": msgspec.msgpack.Ext(5, b"x")}), PACKED),
], ids=["open", "deep", "deep msgpack", "ext", "ext inside"])  # fmt: skip
@pytest.mark.parametrize("argv", [[], ["--json"], ["--query", "q"]])
def test_what_is_no_record_costs_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: bytes, headers: Headers, argv: list[str]
) -> None:
    assert tail(monkeypatch, value, *argv, headers=headers) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("scores-0-7: not a scores record: ") and err.count("\n") == 1


def test_a_dead_letters_headers_do_not_steer_the_terminal_either(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def letters(*_: Any) -> AsyncGenerator[replay.Letter, None]:
        yield replay.Letter(Record("dlq", 0, 1, 2**62, None, b"", ()), STEERING, STEERING, STEERING, 0)

    monkeypatch.setattr(replay, "letters", letters)
    parser = argparse.ArgumentParser()
    dlq_cli.arguments(parser)
    assert dlq_cli.run(parser.parse_args(["list"])) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{2**62} ms  A\\x1b") and out.count("\n") == 1 and all(c.isprintable() for c in out.strip())


def test_a_draft_that_does_not_judge_is_shown_as_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    doc = msgspec.json.decode(scores("x"))
    doc["packs"] = [
        {"id": "my/draft", "version": "1", "context": "c", "calibrated": False, "categories": None, "decision": None},
        {"id": "my/fit", "version": "2", "context": "c", "calibrated": True, "categories": {"oil": {"score": 0.25, "flagged": True}}, "decision": {}},
    ]
    assert tail(monkeypatch, msgspec.json.encode(doc)) == 0
    out = capsys.readouterr().out
    assert "my/draft@1" in out and "does not judge: a draft" in out and "my/fit@2" in out and "oil flagged" in out and "0.250" in out


def test_an_empty_topic_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def read(*_: Any, **__: Any) -> AsyncGenerator[Record, None]:
        for nothing in ():
            yield nothing

    monkeypatch.setattr(topics, "read", read)
    parser = argparse.ArgumentParser()
    tail_cli.arguments(parser)
    assert tail_cli.run(parser.parse_args([])) == 0
    assert "topic scores holds no record" in capsys.readouterr().err
