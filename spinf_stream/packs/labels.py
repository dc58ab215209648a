"""Labelled data: rows, what their labels say of each category, the part held out, and what leaks into it.

A label says one of three things of a category: yes, no, or nothing. Nothing is never taken for no.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.questions.plan import F64, Bool

_WORD = re.compile(r"\w+")
SHINGLE = 5
NEAR = 0.5
SILENT = "?"  # after a category's name in a mapping


class LabelError(ValueError):
    """Labelled data that cannot be used; names the line and the field, never a text."""


class Row(NamedTuple):
    id: str
    key: str  # digest of the text, letters and digits alone: copies have the same
    shingles: frozenset[int]
    labels: tuple[str, ...] | dict[str, bool | None] | None  # None: no label at all


def read_rows(lines: Iterable[bytes], field: str | None, name: str = "data") -> list[Row]:
    """JSONL rows {id, text, title?, <field>: "label" | ["label", ...] | {"category": true | false | null}}.

    Raises LabelError. A row whose field is missing or null has no label.
    """
    out: list[Row] = []
    seen: dict[str, str] = {}
    for n, line in enumerate(lines, 1):
        if not line.strip():
            continue
        at = f"{name} line {n}"
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError):
            raise LabelError(f"{at}: is not JSON") from None
        if not isinstance(raw, dict):
            raise LabelError(f"{at}: is not a JSON object")
        row = _row(raw, field, at)
        if seen.setdefault(row.id, row.key) != row.key:
            raise LabelError(f"{at}: $.id stands on another line with another text")
        out.append(row)
    return out


def one_text_an_id(files: Iterable[tuple[str, list[Row]]]) -> None:
    """Raises LabelError where rows of several files meet the same scores by an id that has several texts."""
    seen: dict[str, tuple[str, str]] = {}
    for name, rows in files:
        for row in rows:
            first, key = seen.setdefault(row.id, (name, row.key))
            if key != row.key:
                raise LabelError(
                    f"the id {row.id[:80]!r} stands for one text in {first} and for another in {name}, and --scores name ids alone: "
                    "make the ids differ, or leave --scores out and each file is scored by itself"
                )


def _row(raw: dict[str, Any], field: str | None, at: str) -> Row:
    name = raw.get("id")
    if not isinstance(name, str) or not name:
        raise LabelError(f"{at}: $.id must be a non-empty string: labels and scores meet there")
    parts = [raw.get(k) for k in ("title", "text")]
    if not isinstance(parts[1], str) or not isinstance(parts[0], str | None):
        raise LabelError(f"{at}: $.text must be a string (and $.title too, where there is one)")
    words = _WORD.findall(" ".join(p for p in parts if p).casefold())
    key = hashlib.sha256(" ".join(words).encode("utf-8", "replace")).hexdigest()
    shingles = frozenset(hash(tuple(words[i : i + SHINGLE])) for i in range(max(1, len(words) - SHINGLE + 1)))
    value = raw.get(field) if field is not None else None
    labels: Any = None
    if isinstance(value, str):
        labels = (value,)
    elif isinstance(value, list) and all(isinstance(v, str) for v in value):
        labels = tuple(value)
    elif isinstance(value, dict) and all(isinstance(v, bool | None) for v in value.values()):
        labels = value
    elif value is not None:
        raise LabelError(f"{at}: $.{field} must be a string, a list of strings, or an object of true, false and null")
    return Row(name, key, shingles, labels)


def label_matrix(rows: list[Row], categories: Collection[str], mapping: Mapping[str, tuple[str, ...]]) -> F64:
    """[rows, categories]: 1 yes, 0 no, NaN nothing said. `mapping`: label -> categories, () = none of them.

    A word label says yes to its categories and no to every other category that some label of the data can say yes to;
    about the rest it says nothing, nor about a category that it is mapped to with a question mark: a text labelled "hate"
    may hold swear words or none (`hate=hate,profanity?`). Raises LabelError for a label that is neither a category nor mapped.
    """
    at = {name: i for i, name in enumerate(categories)}
    for names in mapping.values():
        for n in map(_bare, names):
            if n not in at:
                raise LabelError(f"--map: the pack has no category {n!r}; it has {', '.join(at)}")
    words: set[str] = set()
    for row in rows:
        if isinstance(row.labels, tuple):
            words.update(row.labels)
        elif isinstance(row.labels, dict) and not row.labels.keys() <= at.keys():
            raise LabelError(f"labels name a category that the pack does not have: {min(row.labels.keys() - at.keys())!r}")
    unknown = sorted(w for w in words if w not in mapping and w not in at)
    if unknown:
        shown = ", ".join(repr(w[:40]) for w in unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise LabelError(f"labels that are no category: {shown}; say what they mean with --map LABEL=CATEGORY, or --map LABEL= for none")
    spoken = sorted({at[c] for w in words for c in mapping.get(w, (w,)) if c == _bare(c)})
    out = np.full((len(rows), len(at)), np.nan)
    for i, row in enumerate(rows):
        if isinstance(row.labels, tuple):
            out[i, spoken] = 0.0
            said = [c for w in row.labels for c in mapping.get(w, (w,))]
            for c in sorted(said, key=lambda c: c == _bare(c)):  # a yes of another label outweighs a silence
                out[i, at[_bare(c)]] = 1.0 if c == _bare(c) else np.nan
        elif row.labels:
            for c, value in row.labels.items():
                if value is not None:
                    out[i, at[c]] = float(value)
    return out


def _bare(name: str) -> str:
    return name.removesuffix(SILENT)


def held_out(rows: list[Row], share: float, seed: int = 0) -> Bool:
    """[rows] True = held out. By the text's digest, so copies of a text are never on both sides."""
    marks = [int(hashlib.sha256(f"{seed}:{row.key}".encode()).hexdigest()[:12], 16) / 16**12 for row in rows]
    return np.array([m < share for m in marks], np.bool_)


class Leak(NamedTuple):
    copies: int  # held-out rows whose text stands in the fitting part, but for case and punctuation
    near: int  # held-out rows of which over half the five-word runs stand in one fitting row


def leakage(fit: list[Row], test: list[Row]) -> Leak:
    keys = {row.key for row in fit}
    places: dict[int, list[int]] = {}
    for i, row in enumerate(fit):
        for s in row.shingles:
            places.setdefault(s, []).append(i)
    copies = near = 0
    for row in test:
        if row.key in keys:
            copies += 1
            continue
        shared: dict[int, int] = {}
        for s in row.shingles:
            for i in places.get(s, ()):
                shared[i] = shared.get(i, 0) + 1
        near += bool(shared) and max(shared.values()) > NEAR * len(row.shingles)
    return Leak(copies, near)
