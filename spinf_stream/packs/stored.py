"""Answers of a pack out of stored scores records, so that a decision can be taken again without a forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import numpy as np

from spinf_stream.packs.file import Pack
from spinf_stream.questions.plan import F64
from spinf_stream.records import CompactPart, CompactScores, QueryScore

Scores = list[QueryScore] | CompactScores


class StoredError(ValueError):
    """A record whose scores do not answer the pack's questions; says which one, never a text."""


class Stored(NamedTuple):
    """Arrays [options] in the pack's order. NaN stands for null."""

    context: str
    p: F64
    logprob: F64


def decode_record(line: bytes) -> dict[str, Any]:
    """A line of a scores file. Raises StoredError."""
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError) as e:
        raise StoredError(f"is not JSON ({type(e).__name__})") from None
    if not isinstance(record, dict):
        raise StoredError("is not a JSON object")
    return record


def answers_of(record: dict[str, Any], pack: Pack, context: str | None = None, name: str | None = None) -> list[Stored]:
    """The pack's answers in every context the record was asked in, or in `context` alone; empty when it was not asked.

    `name`: the id that the record names it by, where the same questions have been given another since.
    Compact records name no question, only whose numbers follow whose. Raises StoredError.
    """
    raw = record.get("scores")
    if not raw:
        return []
    try:
        scores: Scores = msgspec.convert(raw, CompactScores) if isinstance(raw, dict) else msgspec.convert(raw, list[QueryScore])
    except msgspec.ValidationError as e:
        raise StoredError(f"$.scores: {e}") from None
    return answers_in(scores, [e for e in record.get("packs") or () if isinstance(e, dict)], pack, context, name)


def answers_in(scores: Scores, entries: Sequence[Mapping[str, Any]], pack: Pack, context: str | None = None, name: str | None = None) -> list[Stored]:
    """The same, of decoded scores and the record's `packs`. Raises StoredError."""
    name = name or pack.id
    if isinstance(scores, CompactScores):
        return _compact(scores, entries, pack, context, name)
    by_context: dict[str, list[QueryScore]] = {}
    for q in scores:
        if q.pack == name and q.context is not None and context in (None, q.context):
            by_context.setdefault(q.context, []).append(q)
    return [Stored(where, *_collect(asked, pack)) for where, asked in by_context.items()]


def _collect(asked: list[QueryScore], pack: Pack) -> tuple[F64, F64]:
    combinations = {(q.id, tuple(sorted(c.values.items()))): c for q in asked for c in q.combinations}
    p = np.empty(pack.options)
    logprob = np.empty(pack.options)
    for prompt in pack.prompts:
        got = combinations.get((prompt.query, tuple(sorted(prompt.values.items()))))
        if got is None:
            raise StoredError(f"has no answer to the query {prompt.query!r} of {pack.label}")
        if tuple([o.text for o in got.options]) != prompt.options:
            raise StoredError(f"has other options for the query {prompt.query!r} than {pack.label}")
        at = slice(prompt.first, prompt.first + len(prompt.options))
        p[at] = [o.p for o in got.options]
        logprob[at] = [np.nan if o.logprob is None else o.logprob for o in got.options]
    return p, logprob


def _compact(scores: CompactScores, entries: Sequence[Mapping[str, Any]], pack: Pack, context: str | None, name: str) -> list[Stored]:
    parts = scores.parts or _whole(scores, entries, pack, name)
    starts = list(accumulate((part.options for part in parts), initial=0))
    mine = [(part, slice(at, at + part.options)) for part, at in zip(parts, starts) if part.pack == name and context in (None, part.context)]
    if not mine:
        return []
    p, logprob = (np.frombuffer(b, "<f4").astype(np.float64) for b in (scores.p, scores.logprob))
    if not len(p) == len(logprob) == scores.options == starts[-1]:
        raise StoredError("is compact, and its arrays do not have the length it states")
    for part, _ in mine:
        if (part.options, part.prompts) != (pack.options, len(pack.prompts)):
            raise StoredError(f"is compact, and has {part.options} options of {part.prompts} questions of {name}, which are not those of {pack.label}")
    return [Stored(str(part.context), p[at], logprob[at]) for part, at in mine]


def _whole(scores: CompactScores, entries: Sequence[Mapping[str, Any]], pack: Pack, name: str) -> list[CompactPart]:
    """A record from before compact scores said their parts: clear only where it holds one pack alone."""
    if not any(e.get("id") == name for e in entries):
        return []
    if len(entries) != 1 or scores.options != pack.options or scores.prompts != len(pack.prompts):
        raise StoredError(f"is compact, names no parts, and holds more than {pack.label}: score it again, or store full records to take its decision again")
    return [CompactPart(scores.options, scores.prompts, name, str(entries[0].get("context")))]
