"""Wire records: what comes in from the articles topic, what goes out to the scores topic and to the dead letters.

JSON by default, msgpack where the record's `content-type` header says `application/msgpack`. Schema evolution: fields
are only added, with defaults; unknown fields of an input are ignored. Floats are never rounded (DECISIONS 6).
"""

from __future__ import annotations

import datetime as dt
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
    if content_type == MSGPACK:
        try:
            article = _article_msgpack.decode(value)
        except msgspec.ValidationError as e:
            raise Refused("schema", str(e)) from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError) as e:
            raise Refused("not_msgpack", _brief(e)) from None
        return _checked(article)
    if value[0] == 0:
        raise Refused("schema_registry", "the value starts with 0x00, like Schema Registry framing: produce plain JSON or msgpack")
    if value[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Refused("not_utf8", "the value starts with a UTF-16 byte order mark: produce UTF-8")
    value = value.removeprefix(b"\xef\xbb\xbf")
    if not value.strip():
        raise Refused("empty", "the value has no JSON in it")
    if _depth(value) > MAX_NESTING:
        raise Refused("too_deep", f"nested more than {MAX_NESTING} deep")
    try:
        article = _article_json.decode(value)
    except msgspec.ValidationError as e:
        raise Refused("schema", str(e)) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as e:
        try:
            value.decode("utf-8")
        except UnicodeDecodeError as u:
            raise Refused("not_utf8", f"byte {u.start} is not UTF-8") from None
        raise Refused("not_json", _brief(e)) from None
    return _checked(article)


def _checked(article: Article) -> Article:
    for name in ("text", "title", "id"):
        part = getattr(article, name)
        if part is not None:
            try:
                part.encode("utf-8")
            except UnicodeEncodeError as e:
                raise Refused("not_utf8", f"$.{name} has a lone surrogate at character {e.start}") from None
    if not article.text.strip() and not (article.title or "").strip():
        raise Refused("empty", "$.text is empty: nothing to score")
    return article


def _depth(value: bytes) -> int:
    """An upper bound of the nesting, brackets inside strings included: cheap, and only long runs of them pass 64."""
    if value.count(b"[") + value.count(b"{") <= MAX_NESTING:
        return 0
    depth = deepest = 0
    quoted = escaped = False
    for b in value:
        if quoted:
            if escaped:
                escaped = False
            elif b == 0x5C:
                escaped = True
            elif b == 0x22:
                quoted = False
        elif b == 0x22:
            quoted = True
        elif b in (0x5B, 0x7B):
            depth += 1
            if depth > MAX_NESTING:
                return depth
            deepest = max(deepest, depth)
        elif b in (0x5D, 0x7D):
            depth -= 1
    return deepest


def _brief(e: Exception) -> str:
    """The decoder's message without bytes of the record: msgspec names positions, not content."""
    return str(e)[:200] or type(e).__name__
