"""Input values: what decodes, what is refused and why, and that nothing of the text gets into the message."""

from __future__ import annotations

import json
import math
import re
import time

import msgspec
import pytest
from corpus import poison
from corpus.articles import ACCEPT, REJECT, Accept, Reject
from hypothesis import given, settings
from hypothesis import strategies as st

from spinf_stream.records import (
    JSON,
    MSGPACK,
    Article,
    CompactScores,
    OptionScore,
    Refused,
    decode_article,
    encode,
    now,
)


@pytest.mark.parametrize("row", ACCEPT, ids=lambda row: row.name)
def test_accepted(row: Accept) -> None:
    article = decode_article(row.value, row.content_type)
    assert {name: getattr(article, name) for name in row.expect} == row.expect
    for content_type in (JSON, MSGPACK):
        encode(article, content_type)


@pytest.mark.parametrize("row", REJECT, ids=lambda row: row.name)
def test_refused(row: Reject) -> None:
    with pytest.raises(Refused) as refused:
        decode_article(row.value, row.content_type)
    assert refused.value.reason == row.reason, refused.value.message
    assert 5 < len(refused.value.message) <= 200
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("row", poison.ROWS, ids=lambda row: row.name)
def test_the_poison_table_agrees_with_the_decoder(row: poison.Poison) -> None:
    content_type = MSGPACK if row.headers == poison.MSGPACK else JSON
    if row.value is None or row.reason == "bad_headers":
        assert row.outcome != "scored"
    elif row.outcome == "scored":
        assert decode_article(row.value, content_type).id == row.name
    else:
        with pytest.raises(Refused) as refused:
            decode_article(row.value, content_type)
        assert refused.value.reason == row.reason


def test_the_poison_table_names_each_record_once() -> None:
    assert len({row.name for row in poison.ROWS}) == len(poison.ROWS) >= 25


SECRET = "Zanzibarquartz"


@pytest.mark.parametrize(
    "value",
    [
        f'{{"text":"{SECRET}" "x"}}',
        f'{{"text":{SECRET}}}',
        f'{{"text":"{SECRET}","id":5}}',
        f'{{"text":5,"{SECRET}":1}}',
        f'{{"text":"a","meta":{{"{SECRET}":1e999}}}}',
        f'{{"text":"a","meta":{{"{SECRET}":99999999999999999999}}}}',
        f'{{"text":"a","parameters":{{"{SECRET}":["{SECRET}"]}}}}',
        f'{{"text":"{SECRET}',
        f'{{"text":"{SECRET}\\x"}}',
    ],
)
def test_a_refusal_says_nothing_of_the_record(value: str) -> None:
    with pytest.raises(Refused) as refused:
        decode_article(value.encode())
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        b'{"text":"' + b'\\"' * 450_000 + b"[" * 100,  # quotes that never close
        b'{"text":"' + b"[" * 100 + b"\\" * 900_001,
        b'"[' * 450_000,
        b'{"text":"a","n":[' + b"[]," * 300_000 + b"[]]}",
        json.dumps({"text": '["' * 300_000}).encode(),
    ],
    ids=["escaped quotes", "backslashes", "quotes", "pairs", "quoted brackets"],
)
def test_a_hostile_megabyte_costs_linear_time(value: bytes) -> None:
    began = time.perf_counter()
    try:
        decode_article(value)
    except Refused:
        pass
    assert time.perf_counter() - began < 2  # quadratic would be minutes


@settings(max_examples=400, deadline=None)
@given(value=st.binary(max_size=200), content_type=st.sampled_from([JSON, MSGPACK]))
def test_any_bytes_are_an_article_or_refused(value: bytes, content_type: str) -> None:
    _decodes_or_refuses(value, content_type)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_damaged_record_is_an_article_or_refused(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from([r for r in ACCEPT if len(r.value) < 500]))
    value = bytearray(row.value)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3)) or b"\x00"
    _decodes_or_refuses(bytes(value), row.content_type)


def _decodes_or_refuses(value: bytes, content_type: str) -> None:
    try:
        article = decode_article(value, content_type)
    except Refused:
        return
    (article.text + (article.title or "")).encode("utf-8")
    again = decode_article(encode(article, MSGPACK), MSGPACK)
    assert again == article
    assert msgspec.json.decode(encode(article, JSON))["text"] == article.text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_never_rounded(x: float) -> None:
    option = OptionScore(" a", -abs(x), x, None)
    for content_type, decode in ((JSON, msgspec.json.decode), (MSGPACK, msgspec.msgpack.decode)):
        assert decode(encode(option, content_type), type=OptionScore) == option


def test_compact_scores_are_base64_in_json_and_bytes_in_msgpack() -> None:
    compact = CompactScores(1, 1, b"\x00\x00\x80\x3f", b"", b"", b"", b"")
    assert msgspec.json.decode(encode(compact))["logprob"] == "AACAPw=="
    assert msgspec.msgpack.decode(encode(compact, MSGPACK))["logprob"] == b"\x00\x00\x80\x3f"


def test_a_nan_would_become_a_null() -> None:
    """Why NaN must never reach the encoder: JSON has no word for it and the encoder does not complain."""
    assert msgspec.json.decode(encode(OptionScore(" a", math.nan, 0.5, None)))["logprob"] is None


def test_now_is_utc_in_milliseconds() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", now())


def test_articles_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Article(text="a").text = "b"  # type: ignore[misc]
