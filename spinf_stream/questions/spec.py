"""A question file, as written: the peer's `scoring` object in JSON or TOML, and ours beside it (`ends`, `residual`,
`case_insensitive` on a query).

Reading collects every problem with its path instead of stopping at the first; unknown fields are problems.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import tomllib
import typing
from collections import Counter
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from spinf_stream.questions.problems import Problem, QuestionError, Reason

Label = Annotated[str, Meta(min_length=1, max_length=128)]
Option = Annotated[str, Meta(min_length=1, max_length=1024)]
Value = Annotated[str, Meta(max_length=256)]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]  # the bounds also refuse NaN


class Limits(NamedTuple):
    """The peer's defaults. Placeholders (5), combinations of "all" (1000) and value length (256) are fixed."""

    max_query_tokens: int = 256  # one filled template; packs are exempt
    max_prompts: int = 10_000  # queries x combinations
    max_answers: int = 1_000_000  # prompts x options, ours: beyond it neither a record nor a pass makes sense
    max_options: int = 1000  # of one query
    max_option_tokens: int = 5
    max_slots: int = 10  # extraction queries x combinations


LIMITS = Limits()


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """p_calibrated = sigmoid(a * logit(p) + b)."""

    a: Finite = 1.0
    b: Finite = 0.0


class Generate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=1, le=100)] | None = None  # null = 40 when temperature > 0, else 1
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    n: Annotated[int, Meta(ge=1, le=6)] = 1


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Label
    template: Annotated[str, Meta(max_length=65_536)]  # ends with its slot: {?} is scored, {*} {n} {$} extract
    options: tuple[Option, ...] | None = None  # required with {?}
    combinations: Literal["all"] | tuple[dict[str, Value], ...] | None = None
    values: dict[str, tuple[Value, ...]] | None = None  # with combinations "all" alone
    group: Label | None = None  # a label; changes no number
    # scored queries
    empty_floor: bool | None = None  # null = the file's
    case_insensitive: bool | None = None  # null = the file's
    ends: bool = False  # the option must also end there: the next token starts with no letter or digit
    residual: bool = True  # false: candidates only, no logprob and no residual
    # slots
    max_tokens: Annotated[int, Meta(ge=1, le=100)] | None = None  # null = 16; at most 64 unless generated
    top_k: Annotated[int, Meta(ge=1, le=20)] | None = None  # null = 5
    calibration: Calibration | None = None
    generate: bool | Generate | None = None  # {*} alone
    mode: Literal["search", "copy_only"] | None = None  # null = search; copy_only: nothing but what stands in the article


class QuestionFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    queries: tuple[Query, ...]
    empty_floor: bool = True
    case_insensitive: bool = True


class Placed(NamedTuple):
    query: Query
    path: str  # $.queries[3]


class Table(dict[str, Any]):
    """A JSON object that remembers keys written twice: the second would silently win."""

    twice: tuple[str, ...] = ()


def decode(data: bytes, toml: bool = False) -> object:
    """The bytes of a question file as plain objects. Raises QuestionError (not_json, not_toml) with the position."""
    reason: Reason = "not_toml" if toml else "not_json"
    try:
        text = data.decode("utf-8-sig")
        return tomllib.loads(text) if toml else json.loads(text, object_pairs_hook=_table, parse_constant=_no_constant)
    except UnicodeDecodeError as e:
        message = f"byte {e.start} is not UTF-8"
    except json.JSONDecodeError as e:
        message = f"{e.msg} at line {e.lineno}, column {e.colno}"
    except tomllib.TOMLDecodeError as e:
        place = re.search(r"\(at (.*)\)$", str(e))  # the rest of the message may quote the file
        message = f"cannot be read at {place.group(1)}" if place else "cannot be read"
    except (ValueError, RecursionError) as e:
        message = str(e) if isinstance(e, _Constant) else "nested too deep or a number too long"
    raise QuestionError([Problem(None, "$", reason, message)])


def read(raw: object, where: str, problems: list[Problem]) -> tuple[list[Placed], QuestionFile | None]:
    """Read a decoded scoring object that lies at `where`. Broken queries are left out, their problems appended; one that
    has nothing but an unknown field stays, for packs forgive that.

    The second value carries the file's own fields (its queries empty), None where the object itself is unusable.
    """
    if not isinstance(raw, dict):
        problems.append(Problem(None, where, "invalid_field", f"expected an object with `queries`, got {_kind(raw)}"))
        return [], None
    top = _fields({k: v for k, v in raw.items() if k != "queries"}, QuestionFile, where, None, problems, ("queries",))
    _twice(raw, where, None, problems)
    queries = raw.get("queries")
    if not isinstance(queries, list):
        hint = "; the file is the scoring object itself" if "scoring" in raw else ""
        reason: Reason = "invalid_field" if "queries" in raw else "missing_field"
        problems.append(Problem(None, f"{where}.queries", reason, f"expected a list of queries{hint}"))
        queries = []
    elif not queries:
        problems.append(Problem(None, f"{where}.queries", "empty_queries", "there is nothing to ask"))
    placed: list[Placed] = []
    for i, item in enumerate(queries):
        path = f"{where}.queries[{i}]"
        if not isinstance(item, dict):
            problems.append(Problem(None, path, "invalid_field", f"expected an object, got {_kind(item)}"))
            continue
        name = item.get("id")
        who = name if isinstance(name, str) and len(name) <= 128 and _sound(name) else None
        before = len(problems)
        got = _fields(item, Query, path, who, problems)
        if all(p.reason == "unknown_field" for p in problems[before:]):
            placed.append(Placed(Query(**got), path))
    return placed, QuestionFile(queries=(), **top)


def _fields(
    raw: dict[str, Any], kind: type[msgspec.Struct], path: str, who: str | None, problems: list[Problem], skip: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Convert each field by itself, so that one bad field does not hide another."""
    hints = _hints(kind)
    _twice(raw, path, who, problems)
    for name in raw:
        if name not in hints:
            near = difflib.get_close_matches(name, list(hints), 1)
            hint = "packs belong in the settings, under packs" if name == "packs" else f"did you mean {near[0]}?" if near else ""
            shown = name[:40] if _sound(name) else "?"
            problems.append(Problem(who, f"{path}.{shown}", "unknown_field", "there is no such field" + (f": {hint}" if hint else "")))
    good: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        here = f"{path}.{field.name}"
        if field.name in skip:
            continue
        if field.name not in raw:
            if field.required:
                problems.append(Problem(who, here, "missing_field", "is required"))
            continue
        value = raw[field.name]
        before = len(problems)
        if field.name == "generate" and isinstance(value, dict):
            got: Any = _fields(value, Generate, here, who, problems)
            value = Generate(**got) if len(problems) == before else None
        elif field.name == "calibration" and isinstance(value, dict):
            got = _fields(value, Calibration, here, who, problems)
            value = Calibration(**got) if len(problems) == before else None
        else:
            value = _convert(value, hints[field.name], here, who, problems)
        if len(problems) == before:
            good[field.name] = value
    return good


def _convert(value: Any, hint: Any, path: str, who: str | None, problems: list[Problem]) -> Any:
    """One value; lists and objects go element by element."""
    if isinstance(value, dict):
        _twice(value, path, who, problems)
    for arm in (hint, *typing.get_args(hint)):
        inner = typing.get_args(arm)
        if isinstance(value, list) and typing.get_origin(arm) is tuple:
            return tuple([_convert(v, inner[0], f"{path}[{i}]", who, problems) for i, v in enumerate(value)])
        if isinstance(value, dict) and typing.get_origin(arm) is dict:
            return {k: _convert(v, inner[1], f"{path}.{k[:40] if _sound(k) else '?'}", who, problems) for k, v in value.items()}
    if isinstance(value, str) and not _sound(value):
        problems.append(Problem(who, path, "invalid_field", "has a lone surrogate, which is not text"))
        return None
    try:
        return msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as e:
        message = str(e)
        if "enum value" in message:  # msgspec quotes the value there
            words = [w for arm in (hint, *typing.get_args(hint)) if typing.get_origin(arm) is typing.Literal for w in typing.get_args(arm)]
            others = "a list of objects or " if words == ["all"] else ""
            message = f"expected {others}" + " or ".join(f'"{w}"' for w in words)
        problems.append(Problem(who, path, "invalid_field", message))
        return None


@functools.cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _twice(raw: dict[str, Any], path: str, who: str | None, problems: list[Problem]) -> None:
    for name in getattr(raw, "twice", ()):
        problems.append(Problem(who, f"{path}.{name[:40] if _sound(name) else '?'}", "duplicate_key", "is written twice in one object"))


def _table(pairs: list[tuple[str, Any]]) -> Table:
    table = Table(pairs)
    if len(table) < len(pairs):
        table.twice = tuple(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
    return table


class _Constant(ValueError):
    pass


def _no_constant(name: str) -> Any:
    raise _Constant(f"{name} is not JSON")


def _sound(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
