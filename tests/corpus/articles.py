"""Input values that must decode, and values that must be refused with the reason that stands beside them."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, NamedTuple

import msgspec

from spinf_stream.records import JSON, MSGPACK, Reason

pack = msgspec.msgpack.encode
HUGE = b"1" + b"0" * 400  # 10^400


class Accept(NamedTuple):
    name: str
    value: bytes
    expect: dict[str, Any]  # fields of the article
    content_type: str = JSON


class Reject(NamedTuple):
    name: str
    value: bytes
    reason: Reason
    content_type: str = JSON


def text(value: str, **more: Any) -> bytes:
    return json.dumps({"text": value, **more}, ensure_ascii=False).encode()


def meta(raw: bytes) -> bytes:
    return b'{"text":"a","meta":{"x":' + raw + b"}}"


def packed_meta(raw: bytes) -> bytes:
    return b"\x82" + pack("text") + pack("a") + pack("meta") + b"\x81" + pack("x") + raw


ACCEPT = [
    Accept("plain", b'{"text":"a"}', {"text": "a", "id": None, "title": None, "meta": None}),
    Accept("every field", text("a", id="1", title="t", published_at="2030-01-01T00:00:00Z", source="s", lang="en", parameters={"n": 1, "b": True}, meta={"k": [1, None]}),
           {"id": "1", "title": "t", "published_at": "2030-01-01T00:00:00Z", "source": "s", "lang": "en", "parameters": {"n": 1, "b": True}, "meta": {"k": [1, None]}}),
    Accept("unknown fields are ignored", b'{"text":"a","colour":"red","n":[1,2,{"a":3}]}', {"text": "a"}),
    Accept("nulls for optional fields", b'{"text":"a","id":null,"title":null,"meta":null}', {"id": None, "meta": None}),
    Accept("space around", b' \n{"text" : "a"}\r\n\t', {"text": "a"}),
    Accept("one byte of text", b'{"text":"."}', {"text": "."}),
    Accept("a title and no text", b'{"text":"","title":"t"}', {"text": "", "title": "t"}),
    Accept("UTF-8 byte order mark", b'\xef\xbb\xbf{"text":"a"}', {"text": "a"}),
    Accept("a byte order mark inside the text stays", text("\ufeffa"), {"text": "\ufeffa"}),
    Accept("NUL escaped", b'{"text":"a\\u0000b"}', {"text": "a\0b"}),
    Accept("duplicate keys: the last one counts", b'{"text":"a","text":"b"}', {"text": "b"}),
    Accept("duplicate keys in meta", b'{"text":"a","meta":{"k":1,"k":2}}', {"meta": {"k": 2}}),
    Accept("surrogate pair", b'{"text":"\\ud83d\\ude00"}', {"text": "\U0001f600"}),
    Accept("four-byte UTF-8", text("\U0001f600\U0010ffff"), {"text": "\U0001f600\U0010ffff"}),
    Accept("every escape", b'{"text":"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9"}', {"text": '"\\/\b\f\n\r\t\u00e9'}),
    Accept("100,000 brackets inside the text", text("[{" * 50_000), {"text": "[{" * 50_000}),
    Accept("brackets after an escaped quote", text('"' + "[" * 100), {"text": '"' + "[" * 100}),
    Accept("64 deep", meta(b"[" * 62 + b"]" * 62), {}),
    Accept("many shallow brackets", meta(b"[" + b"[]," * 1000 + b"[]]"), {"meta": {"x": [[]] * 1001}}),
    Accept("900 kB", text("word " * 180_000), {"text": "word " * 180_000}),
    Accept("largest integer", meta(b"18446744073709551615"), {"meta": {"x": 2**64 - 1}}),
    Accept("smallest integer", meta(b"-9223372036854775808"), {"meta": {"x": -(2**63)}}),
    Accept("10^400 in an unknown field", b'{"text":"a","n":' + HUGE + b"}", {"text": "a"}),
    Accept("minus zero", meta(b"-0.0"), {"meta": {"x": -0.0}}),
    Accept("msgpack", pack({"text": "a", "id": "1"}), {"text": "a", "id": "1"}, MSGPACK),
    Accept("msgpack duplicate keys", b"\x82" + (pack("text") + pack("a")) * 2, {"text": "a"}, MSGPACK),
    Accept("msgpack bytes and times in meta", packed_meta(pack([b"x", dt.datetime(2030, 1, 1, tzinfo=dt.UTC)])),
           {"meta": {"x": [b"x", dt.datetime(2030, 1, 1, tzinfo=dt.UTC)]}}, MSGPACK),
]  # fmt: skip

REJECT = [
    Reject("nothing", b"", "empty"),
    Reject("white space", b" \n\t ", "empty"),
    Reject("only a byte order mark", b"\xef\xbb\xbf", "empty"),
    Reject("text of 0 characters", b'{"text":""}', "empty"),
    Reject("text of white space", b'{"text":" \\n\\u00a0\\t","title":" "}', "empty"),
    Reject("invalid UTF-8 in the text", b'{"text":"\xff"}', "not_utf8"),
    Reject("invalid UTF-8 in an unknown field", b'{"text":"a","other":"\xff"}', "not_utf8"),
    Reject("invalid UTF-8 in an unknown key", b'{"text":"a","\xff":1}', "not_utf8"),
    Reject("cut in the middle of a character", b'{"text":"\xe2\x82"}', "not_utf8"),
    Reject("overlong UTF-8", b'{"text":"\xc0\xaf"}', "not_utf8"),
    Reject("surrogate in UTF-8", b'{"text":"\xed\xa0\x80"}', "not_utf8"),
    Reject("Latin-1", '{"text":"caf\u00e9"}'.encode("latin-1"), "not_utf8"),
    Reject("UTF-16 with its mark", '{"text":"a"}'.encode("utf-16"), "not_utf8"),
    Reject("UTF-16 big end first, with its mark", b"\xfe\xff" + '{"text":"a"}'.encode("utf-16-be"), "not_utf8"),
    Reject("UTF-32 with its mark", '{"text":"a"}'.encode("utf-32"), "not_utf8"),
    Reject("gzip", b"\x1f\x8b\x08\x00\x00", "not_utf8"),
    Reject("UTF-16 without its mark", '{"text":"a"}'.encode("utf-16-le"), "not_json"),
    Reject("two byte order marks", b'\xef\xbb\xbf\xef\xbb\xbf{"text":"a"}', "not_json"),
    Reject("lone high surrogate", b'{"text":"\\ud800"}', "not_json"),
    Reject("lone low surrogate", b'{"text":"\\udc00"}', "not_json"),
    Reject("lone surrogate in meta", b'{"text":"a","meta":{"k":"\\ud800"}}', "not_json"),
    Reject("trailing bytes", b'{"text":"a"}x', "not_json"),
    Reject("a second record", b'{"text":"a"}\n{"text":"b"}', "not_json"),
    Reject("trailing NUL", b'{"text":"a"}\x00', "not_json"),
    Reject("raw NUL in the text", b'{"text":"a\x00b"}', "not_json"),
    Reject("raw newline in the text", b'{"text":"a\nb"}', "not_json"),
    Reject("NaN", meta(b"NaN"), "not_json"),
    Reject("Infinity", meta(b"-Infinity"), "not_json"),
    Reject("leading zero", meta(b"01"), "not_json"),
    Reject("trailing comma", b'{"text":"a",}', "not_json"),
    Reject("single quotes", b"{'text':'a'}", "not_json"),
    Reject("comment", b'{"text":"a"}//', "not_json"),
    Reject("cut short", b'{"text":"a', "not_json"),
    Reject("cut after a backslash", b'{"text":"a\\', "not_json"),
    Reject("unknown escape", b'{"text":"\\x41"}', "not_json"),
    Reject("HTML", b"<html></html>", "not_json"),
    Reject("msgpack without its header", pack({"text": "a"}), "not_utf8"),
    Reject("10^400", meta(HUGE), "schema"),
    Reject("-10^400", meta(b"-" + HUGE), "schema"),
    Reject("10^400 in parameters", b'{"text":"a","parameters":{"n":' + HUGE + b"}}", "schema"),
    Reject("2^64", meta(b"18446744073709551616"), "schema"),
    Reject("5,000 digits", meta(b"9" * 5000), "schema"),
    Reject("1e400", meta(b"1e400"), "schema"),
    Reject("an array", b'[{"text":"a"}]', "schema"),
    Reject("a string", b'"text"', "schema"),
    Reject("null", b"null", "schema"),
    Reject("no text", b'{"title":"t"}', "schema"),
    Reject("text is null", b'{"text":null}', "schema"),
    Reject("text is a number", b'{"text":1}', "schema"),
    Reject("text is a list", b'{"text":["a"]}', "schema"),
    Reject("id is a number", b'{"text":"a","id":1}', "schema"),
    Reject("meta is a list", b'{"text":"a","meta":[]}', "schema"),
    Reject("a parameter is a list", b'{"text":"a","parameters":{"n":[1]}}', "schema"),
    Reject("Schema Registry framing", b'\x00\x00\x00\x00\x07{"text":"a"}', "schema_registry"),
    Reject("100,000 brackets", b"[" * 100_000, "too_deep"),
    Reject("100,000 brackets in an unknown field", b'{"text":"a","n":' + b"[" * 100_000, "too_deep"),
    Reject("100,000 braces closed again", meta(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "too_deep"),
    Reject("65 deep", meta(b"[" * 63 + b"]" * 63), "too_deep"),
    Reject("msgpack nothing", b"", "empty", MSGPACK),
    Reject("msgpack cut short", pack({"text": "abc"})[:-1], "not_msgpack", MSGPACK),
    Reject("msgpack trailing bytes", pack({"text": "a"}) + b"\x01", "not_msgpack", MSGPACK),
    Reject("msgpack unused byte", b"\xc1", "not_msgpack", MSGPACK),
    Reject("msgpack that claims 4 GiB of items", packed_meta(b"\xdd\xff\xff\xff\xff"), "not_msgpack", MSGPACK),
    Reject("msgpack invalid UTF-8", b"\x81" + pack("text") + b"\xa1\xff", "not_utf8", MSGPACK),
    Reject("msgpack 100,000 deep", packed_meta(b"\x91" * 100_000 + b"\x01"), "too_deep", MSGPACK),
    Reject("msgpack 65 deep", packed_meta(b"\x91" * 63 + b"\x01"), "too_deep", MSGPACK),
    Reject("msgpack NaN", packed_meta(pack(float("nan"))), "nonfinite", MSGPACK),
    Reject("msgpack infinite parameter", pack({"text": "a", "parameters": {"n": float("inf")}}), "nonfinite", MSGPACK),
    Reject("msgpack integer key", packed_meta(pack({1: 2})), "schema", MSGPACK),
    Reject("msgpack null key", packed_meta(pack({None: 2})), "schema", MSGPACK),
    Reject("msgpack extension", packed_meta(pack(msgspec.msgpack.Ext(9, b"a"))), "schema", MSGPACK),
    Reject("msgpack text as bytes", pack({"text": b"a"}), "schema", MSGPACK),
    Reject("JSON with msgpack's header", b'{"text":"a"}', "schema", MSGPACK),
]  # fmt: skip
