"""Wire records: what comes in from the articles topic, what goes out to the scores topic and to the dead letters.

JSON by default, msgpack where the record's `content-type` header says `application/msgpack`. Schema evolution: fields
are only added, with defaults; unknown fields of an input are ignored. Floats are never rounded (DECISIONS 6).
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import re
from typing import Any, Literal

import msgspec

SCHEMA = "spinf-stream/scores/1"
MAX_NESTING = 64  # brackets deep, checked before decoding

Outcome = Literal["scored", "duplicate", "dead", "expired", "tombstone"]

# Why a record is dead. A closed list: a metric label and the header spinf.error.reason.
Reason = Literal[
    "not_utf8", "not_json", "not_msgpack", "too_deep", "schema", "schema_registry", "empty", "too_long", "too_large",
    "bad_headers", "bad_parameters", "nonfinite", "engine_error", "engine_crash", "publish_too_large",
]  # fmt: skip


class Refused(ValueError):
    """A record that can never be scored: it goes to the dead letters with this reason. `message` holds no article text."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason: Reason = reason
        self.message = message


class Article(msgspec.Struct, frozen=True, kw_only=True):
    """Input. Missing id = the record's key as UTF-8, else topic-partition-offset."""

    text: str
    id: str | None = None
    title: str | None = None
    published_at: str | None = None  # RFC 3339, carried through as sent
    source: str | None = None
    lang: str | None = None
    parameters: dict[str, str | int | float | bool] | None = None  # values for pack parameters
    meta: dict[str, Any] | None = None  # carried through


class OptionScore(msgspec.Struct, frozen=True):
    text: str  # the option as written
    logprob: float | None  # over the whole vocabulary; null with `residual: false`
    p: float  # softmax over the prompt's options
    floor_p: float | None  # the same on BOS + template alone; null when the floor is off


class CombinationScore(msgspec.Struct, frozen=True):
    values: dict[str, str]
    options: list[OptionScore]
    residual: float | None  # mass outside the options
    floor_residual: float | None


class QueryScore(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    combinations: list[CombinationScore]
    pack: str | None = None  # pack id, for a pack's question
    context: str | None = None


class CompactPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose numbers come next in the arrays of CompactScores, and how many."""

    options: int
    prompts: int
    pack: str | None = None  # none: the question file
    context: str | None = None


class CompactScores(msgspec.Struct, frozen=True):
    """`scores_format = "compact"`: little-endian float32, in the order of the question set (`questions_digest`).

    bytes: base64 in JSON, bin in msgpack. NaN stands for null.
    """

    options: int
    prompts: int
    logprob: bytes  # [options]
    p: bytes  # [options]
    floor_p: bytes  # [options]
    residual: bytes  # [prompts]
    floor_residual: bytes  # [prompts]
    parts: list[CompactPart] = msgspec.field(default_factory=list)  # side by side; empty in records from before there were parts


class Tokens(msgspec.Struct, frozen=True):
    content: int
    questions: int
    floors: int
    slots: int


class Origin(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    timestamp: int  # ms since 1970, the record's own; -1 when it has none


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """Output, one for each article with outcome scored, duplicate or expired."""

    schema: str = SCHEMA
    id: str
    outcome: Outcome
    system_fingerprint: str
    bit_exact: bool
    model: str
    questions_digest: str
    scores: list[QueryScore] | CompactScores
    slots: list[dict[str, Any]]
    packs: list[dict[str, Any]]
    tokens: Tokens
    truncated: bool
    origin: Origin
    source: str | None
    published_at: str | None
    lang: str | None
    meta: dict[str, Any] | None
    scored_at: str  # RFC 3339 UTC, milliseconds
    warnings: list[str] = msgspec.field(default_factory=list)  # codes, such as join_differs


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine found out about one content: everything of Scores that does not depend on the record.

    This is what a done mark caches, so that a duplicate is answered under its own id without a pass.
    """

    scores: list[QueryScore] | CompactScores
    slots: list[dict[str, Any]]
    packs: list[dict[str, Any]]
    tokens: Tokens
    truncated: bool
    warnings: list[str]
    scored_at: str
    questions_digest: str  # of the questions that were asked: a reload may have put others in their place since


def now() -> str:
    """RFC 3339 UTC in milliseconds."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_article_json = msgspec.json.Decoder(Article)
_article_msgpack = msgspec.msgpack.Decoder(Article)
_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()

JSON = "application/json"
MSGPACK = "application/msgpack"


def encode(record: msgspec.Struct, content_type: str = JSON) -> bytes:
    return _msgpack.encode(record) if content_type == MSGPACK else _json.encode(record)


def decode_article(value: bytes, content_type: str = JSON) -> Article:
    """Decode one input value. Raises Refused with the reason and, for a schema fault, the JSON path; never the text."""
    if not value:
        raise Refused("empty", "the value has 0 bytes")
    article = _from_msgpack(value) if content_type == MSGPACK else _from_json(value)
    if not article.text.strip() and not (article.title or "").strip():
        raise Refused("empty", "$.text is empty: nothing to score")
    _carriable(article.parameters, "$.parameters")
    _carriable(article.meta, "$.meta")
    return article


def _from_msgpack(value: bytes) -> Article:
    try:
        return _article_msgpack.decode(value)
    except msgspec.ValidationError as e:
        raise Refused("schema", str(e)) from None
    except RecursionError:
        raise Refused("too_deep", f"nested more than {MAX_NESTING} deep") from None
    except (msgspec.DecodeError, ValueError) as e:
        raise Refused("not_utf8" if "UTF-8" in str(e) else "not_msgpack", _brief(e)) from None


def _from_json(value: bytes) -> Article:
    if value[0] == 0:
        raise Refused("schema_registry", "the value starts with 0x00, like Schema Registry framing: produce plain JSON or msgpack")
    if value[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Refused("not_utf8", "the value starts with a UTF-16 byte order mark: produce UTF-8")
    try:
        value.decode("utf-8")  # the decoder skips unknown fields without looking at their bytes
    except UnicodeDecodeError as e:
        raise Refused("not_utf8", f"byte {e.start} is not UTF-8") from None
    value = value.removeprefix(b"\xef\xbb\xbf")
    if not value.strip():
        raise Refused("empty", "the value has no JSON in it")
    if _too_deep(value):
        raise Refused("too_deep", f"nested more than {MAX_NESTING} deep")
    try:
        return _article_json.decode(value)
    except msgspec.ValidationError as e:
        raise Refused("schema", str(e)) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as e:
        raise Refused("not_json", _brief(e)) from None


_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)  # an unfinished one too: no second look, linear time
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(set(range(256)) - set(_STEP))


def _too_deep(value: bytes) -> bool:
    """Nesting of JSON text, brackets inside strings left out. Before decoding: the decoder's own limit is the C stack."""
    if value.count(b"[") + value.count(b"{") <= MAX_NESTING:
        return False
    steps = map(_STEP.__getitem__, _STRING.sub(b"", value).translate(None, _NOT_BRACKETS))
    return max(itertools.accumulate(steps), default=0) > MAX_NESTING


def _carriable(value: Any, path: str, depth: int = 1) -> None:
    """What is carried to the output must fit both encodings: msgpack brings NaN, ext types and keys that JSON lacks,
    JSON brings integers that msgpack lacks."""
    if depth > MAX_NESTING:
        raise Refused("too_deep", f"{path} is nested more than {MAX_NESTING} deep")
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise Refused("schema", f"{path} has a key that is not a string but {type(key).__name__}")
            _carriable(part, path, depth + 1)
    elif isinstance(value, list):
        for part in value:
            _carriable(part, path, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Refused("nonfinite", f"{path} has a number that is not finite")
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise Refused("schema", f"{path} has an integer of more than 64 bits")
    elif not isinstance(value, str | bytes | dt.datetime | None):
        raise Refused("schema", f"{path} has a value of a kind that JSON cannot hold: {type(value).__name__}")


def _brief(e: Exception) -> str:
    """The decoder's message without bytes of the record: msgspec names positions, not content."""
    return str(e)[:200] or type(e).__name__
