"""From endings to answers: texts, values, merging over spellings, places in the article (section 4.4 of the peer's description)."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from spinf_stream.engine.seam import Found
from spinf_stream.questions.questionset import SlotQuery
from spinf_stream.slots.automaton import folded
from spinf_stream.slots.grammar import NumberKind, longest
from spinf_stream.slots.spans import Span, locate, locate_value, numbers
from spinf_stream.slots.value import Parsed, parse

KINDS = {"*": "text", "n": "number", "$": "currency"}
_APART = str.maketrans(dict.fromkeys(string.punctuation + "’‘“”–—", " "))
_ARTICLES = frozenset(("a", "an", "the"))
_TINY = 1e-9

Decode = Callable[[Sequence[int]], str]


class Ended(NamedTuple):
    tokens: Sequence[int]
    p: float
    taken: int
    complete: bool


def endings(found: Found, slot: int) -> list[Ended]:
    out = []
    for e in range(int(found.ptr[slot]), int(found.ptr[slot + 1])):
        tokens = found.token[int(found.token_ptr[e]) : int(found.token_ptr[e + 1])].tolist()
        out.append(Ended(tokens, math.exp(found.logprob[e]), int(found.taken[e]), bool(found.complete[e])))
    return out


class Content:
    """What answers are grounded in: the content as it was read (without what truncation cut off)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._spans: dict[NumberKind, list[Span]] = {}

    def spans(self, kind: NumberKind) -> list[Span]:
        if kind not in self._spans:
            self._spans[kind] = numbers(self.text, kind)
        return self._spans[kind]

    def place(self, answer: str, parsed: Parsed | None) -> dict[str, Any]:
        if parsed is None:
            at = locate(self.text, answer)
        else:
            at = locate_value([*self.spans("$"), *self.spans("n")], parsed, answer)
        return {"grounded": at is not None, "start": at[0] if at else None, "end": at[1] if at else None}


def combination(query: SlotQuery, prompt: int, ended: Iterable[Ended], decode: Decode, content: Content) -> dict[str, Any]:
    """One prompt of a slot query, as it stands in the record."""
    out: dict[str, Any] = {"values": query.values[prompt]}
    if query.generate is not None:
        out["answers"] = [_generated(query, e, decode, content) for e in ended]
        return out
    texts: dict[str, float] = {}
    for e in ended:
        if text := _text(query, decode(e.tokens), e.taken):
            texts[text] = texts.get(text, 0.0) + e.p
    if query.mode == "copy_only" and query.kind == "*":  # a piece of the article may end within a word, and is no answer then
        texts = {text: p for text, p in texts.items() if content.place(text, None)["grounded"]}
    merged = _merge(query, texts)
    mass = math.fsum(texts.values())
    out["answers"] = [_answer(query, m, mass, content) for m in merged[: query.top_k]]
    out["mass"] = mass
    if query.kind != "*" and merged:
        out["p_negative"] = _negative(merged)
    if query.calibration is not None and merged:
        a, b = query.calibration
        p = min(max(merged[0].p, _TINY), 1 - _TINY)
        out["p_calibrated"] = 1 / (1 + math.exp(-(a * math.log(p / (1 - p)) + b)))
    return out


class Merged(NamedTuple):
    text: str  # the most probable spelling
    p: float
    parsed: Parsed | None


def _text(query: SlotQuery, text: str, taken: int) -> str:
    if query.kind != "*":
        return text[: longest(text, query.kind)].strip()  # type: ignore[arg-type]
    if taken:
        text = text[:-taken]
    if query.stop and (at := folded(text, query.stop).find(folded(query.stop, query.stop))) >= 0:
        text = text[:at]
    return text.strip()


def _merge(query: SlotQuery, texts: dict[str, float]) -> list[Merged]:
    """Most probable first."""
    groups: dict[Any, list[tuple[float, str, Parsed | None]]] = {}
    for text, p in texts.items():
        parsed = None
        if query.kind == "*":
            key: Any = text_key(text)
        else:
            parsed = parse(text, query.kind)  # type: ignore[arg-type]
            if parsed is None:
                continue
            key = (round(parsed.value, 9), parsed.currency, parsed.percent)
        groups.setdefault(key, []).append((p, text, parsed))
    merged = []
    for members in groups.values():
        _, text, parsed = max(members, key=lambda m: m[0])
        merged.append(Merged(text, math.fsum(m[0] for m in members), parsed))
    return sorted(merged, key=lambda m: -m.p)


def text_key(text: str) -> str:
    """Lower case without punctuation, articles and spaces; the text itself when nothing is left."""
    words = text.lower().translate(_APART).split()
    return "".join(w for w in words if w not in _ARTICLES) or text


def _answer(query: SlotQuery, m: Merged, mass: float, content: Content) -> dict[str, Any]:
    out: dict[str, Any] = {"text": m.text, "p": m.p, "share": m.p / mass if mass > 0 else 0.0}
    if m.parsed is not None:
        out["value"] = m.parsed.value
        if query.kind == "$":
            out["currency"] = m.parsed.currency
        if m.parsed.percent:
            out["percent"] = True
    return out | content.place(m.text, m.parsed)


def _negative(merged: Sequence[Merged]) -> float:
    """Of the answers as large as the best one, the share that is negative."""
    values = [(m.parsed.value, m.p) for m in merged if m.parsed is not None]
    size = abs(values[0][0])
    same = [(v, p) for v, p in values if abs(abs(v) - size) <= 1e-9 * max(size, abs(v))]
    total = math.fsum(p for _, p in same)
    return math.fsum(p for v, p in same if v < 0) / total if total > 0 else 0.0


def _generated(query: SlotQuery, e: Ended, decode: Decode, content: Content) -> dict[str, Any]:
    text = _text(query, decode(e.tokens), e.taken)
    if query.stop[:1] in ('"', "'") and query.stop:
        text = re.sub(r"[\"”]+\Z" if query.stop[0] == '"' else r"['’]+\Z", "", text).rstrip()
    return {"text": text, "finish": "stop" if e.complete else "length", **content.place(text, None)}


def record(query: SlotQuery, combinations: list[dict[str, Any]]) -> dict[str, Any]:
    """One slot query, as it stands in the record."""
    out: dict[str, Any] = {"id": query.id, "kind": KINDS[query.kind]}
    if query.generate is not None:
        out["generate"] = True
    if query.mode != "search":
        out["mode"] = query.mode
    if query.pack is not None:
        out |= {"pack": query.pack, "context": query.context}
    return out | {"combinations": combinations}
