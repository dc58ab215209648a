"""The numbers and amounts that stand in an article, with their character offsets, and where an answer stands in it.

Offsets are code points of the content as it was assembled (title, blank line, text; the text alone without a title).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from spinf_stream.slots.currency import SYMBOLS
from spinf_stream.slots.grammar import QUOTES, SIGNS, SPACES, NumberKind, automaton
from spinf_stream.slots.regular import DEAD
from spinf_stream.slots.value import Parsed, parse

LONGEST = 64  # characters; what is longer is data, not a number that anybody asks for
_ORDINAL = re.compile(r"(st|nd|rd|th|s)(?![^\W\d_])")
_LETTER_SCALE = re.compile(r"[kKmMbBT]\Z")


class Span(NamedTuple):
    start: int
    end: int
    text: str  # as it stands there; without its brackets where they are read as prose
    parsed: Parsed


def numbers(text: str, kind: NumberKind) -> list[Span]:
    """Every number (or amount) of a text, in order; where one spelling can be read in two ways, both.

    Amounts are spans with a currency; in a text that names none, all its numbers.
    """
    found = [s for s in _found(text, kind) if kind == "n" or s.parsed.currency is not None]
    return found if found or kind == "n" else list(_found(text, "n"))


def _found(text: str, kind: NumberKind) -> Iterator[Span]:
    """Longest spans first come, first served, each followed by its other readings."""
    begin = automaton(kind).next[0].keys() - set(SPACES)
    at = last = 0
    while at < len(text):
        if text[at] == "(" and text[last:at] == " " and last:
            at += 1  # $16bn (£8.5bn): the same again in another currency, not a negative amount
        if text[at : at + 1] and text[at] in begin and _left(text, at):
            ends = [e for e in _ends(text, at, kind) if _right(text, e)]
            if ends:
                span = _span(text, at, max(ends), kind)
                if span is not None:
                    yield span
                    yield from _others(text, span, kind)
                    at = last = span.end
                    continue
        at += 1


def _ends(text: str, at: int, kind: NumberKind) -> Iterator[int]:
    dfa, state = automaton(kind), 0
    for i in range(at, len(text)):
        state = dfa.next[state].get(text[i], DEAD)
        if state == DEAD:
            return
        if dfa.final[state] and text[i] != ".":  # a sentence's end, not a decimal point
            yield i + 1


def _others(text: str, span: Span, kind: NumberKind) -> Iterator[Span]:
    """Other readings: in prose a bracket is no minus, spaces separate two numbers, and the m of 100m may be metres."""
    if span.text[0] == "(" and span.text[-1] == ")":
        yield from _within(text, span.start + 1, span.end - 1, kind)
    elif span.text[0] == "(":  # (5) million: what is read without the brackets stands in one piece only with them
        plain = span.text[1:].replace(")", "", 1)
        parsed = parse(plain, kind)
        if parsed is not None:
            yield Span(span.start, span.end, plain, parsed)
    elif " " in span.text and (pieces := re.split(r"(?<=\d) (?=\d{3})", span.text))[1:]:
        at = span.start
        for piece in pieces:
            yield from _within(text, at, at + len(piece), kind)
            at += len(piece) + 1
    elif kind == "n" and _LETTER_SCALE.search(span.text) and text[span.start - 1 : span.start] not in set(SYMBOLS):
        yield from _within(text, span.start, span.end - 1, kind)


def _within(text: str, start: int, end: int, kind: NumberKind) -> Iterator[Span]:
    span = _span(text, start, end, kind)
    if span is not None:
        yield span


def _span(text: str, start: int, end: int, kind: NumberKind) -> Span | None:
    parsed = parse(text[start:end], kind) if end - start <= LONGEST else None
    return None if parsed is None else Span(start, end, text[start:end], parsed)


def _left(text: str, at: int) -> bool:
    """Nothing before it that it would be torn from."""
    if at == 0:
        return True
    before, here = text[at - 1], text[at]
    if here in SIGNS or here == "(":
        return before.isspace() or before in "([\"“'‘:;,—–"
    if before.isalnum():
        return False
    if before in ".:/," + QUOTES and at > 1 and text[at - 2].isdigit():  # 10:30, 12/05, 1.2.3
        return False
    return not (before == "." and here.isdigit())  # ".5" begins at its point


def _right(text: str, end: int) -> bool:
    if end == len(text):
        return True
    last, after = text[end - 1], text[end]
    if after.isalnum():
        # a unit may follow digits (10km), not an ordinal's ending (1st, 90s); a word's letters go on
        return last.isdigit() and after.isalpha() and not _ORDINAL.match(text, end)
    return not (after in ".:/," + QUOTES and end + 1 < len(text) and text[end + 1].isdigit() and last.isdigit())


def locate(text: str, answer: str) -> tuple[int, int] | None:
    """Where a text answer stands in an article: as it is, else without regard to case and to runs of white space.

    At word boundaries; the first place counts.
    """
    words = answer.split()
    if not words:
        return None
    exact = r"\s+".join(map(re.escape, words))
    head = r"(?<!\w)" if words[0][0].isalnum() else ""
    tail = r"(?!\w)" if words[-1][-1].isalnum() else ""
    for flags in (0, re.IGNORECASE):
        if found := re.search(head + exact + tail, text, flags):
            return found.span()
    return None


def locate_value(spans: list[Span], parsed: Parsed, answer: str) -> tuple[int, int] | None:
    """Where a number stands among an article's: the same spelling, else the same value. A percentage stands where one is, and
    an answer that names a currency where that currency is: what is not in the article must not read as grounded."""
    value, currency, percent = parsed
    same = [s for s in spans if (s.parsed.value, s.parsed.percent) == (value, percent) and currency in (None, s.parsed.currency)]
    if not same:
        return None
    best = next((s for s in same if s.text == answer.strip()), same[0])
    return best.start, best.end
