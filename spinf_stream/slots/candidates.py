"""What a copy-only slot may copy from an article, as token arrays.

An answer is spelled as the model would write it after the template: its first word behind a space, unless the template
ends in a space, an opening bracket, a quote or a currency sign.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spinf_stream.engine.seam import Copies
from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.questions.plan import I32, Bool
from spinf_stream.slots.automaton import Vocabulary
from spinf_stream.slots.grammar import NumberKind, automaton
from spinf_stream.slots.regular import DEAD
from spinf_stream.slots.spans import Span

_MONEY = set("$€£¥")
_OPEN = _MONEY | set("([{<\"'“‘«#@/-")


class Entry(NamedTuple):
    """One slot's entry of seam.Copies."""

    token: I32
    link: I32
    state: I32
    ends: Bool


def bare(template: str) -> bool:
    """Whether an answer follows this text without a space."""
    return template[-1:].isspace() or template[-1:] in _OPEN


def of_numbers(spans: Sequence[Span], kind: NumberKind, encoder: Encoder, words: Vocabulary, bare: bool) -> Entry:
    spelled = list(dict.fromkeys(s.text if bare else " " + s.text for s in spans))
    forest: dict[int, dict[int, int]] = {-1: {}}  # node -> token -> child, in order of arrival
    state: list[int] = []
    ends: set[int] = set()
    for text, ids in zip(spelled, encoder.encode_batch(spelled)):
        node, read = -1, ""
        for t in ids:
            read += words.texts[t]
            if t not in forest[node]:
                forest[node][t] = len(state)
                forest[len(state)] = {}
                state.append(_state(read, kind))
            node = forest[node][t]
        state[node] = _state(text, kind)  # a character of several tokens has no text before its last one
        ends.add(node)
    token: list[int] = []
    link: list[int] = []
    order: list[int] = []  # node at each place
    stack = [(child, t, -1) for t, child in reversed(forest[-1].items())]
    while stack:  # pre-order
        node, t, parent = stack.pop()
        stack += [(child, u, len(order)) for u, child in reversed(forest[node].items())]
        order.append(node)
        token.append(t)
        link.append(parent)
    return Entry(
        np.array(token, np.int32), np.array(link, np.int32), np.array([state[n] for n in order], np.int32),
        np.array([n in ends for n in order], np.bool_),
    )  # fmt: skip


def _state(text: str, kind: NumberKind) -> int:
    """0 where no number begins so: then nothing is read from the state."""
    found = automaton(kind).run(text)
    return 0 if found == DEAD else found


class Spaced(NamedTuple):
    """Tokens with and without a space before them."""

    with_: dict[int, int]
    without: dict[int, int]


def spaced(words: Vocabulary) -> Spaced:
    of = {t: i for i, t in reversed(list(enumerate(words.texts))) if t}
    pairs = [(of[t[1:]], i) for t, i in of.items() if t[0] == " " and t[1:] in of]
    return Spaced(dict(pairs), {b: a for a, b in pairs})


def of_text(content: str, encoder: Encoder, words: Vocabulary, forms: Spaced, bare: bool) -> Entry:
    """The content's lines, each with single spaces, a break after each. Answers begin at words."""
    lines = [" " + " ".join(line.split()) for line in re.split(r"[\r\n]+", content) if line.strip()]
    token: list[int] = []
    link: list[int] = []
    for ids in encoder.encode_batch(lines):
        before = " "
        for i, t in enumerate(ids):
            text = words.texts[t]
            token.append(t)
            link.append(_begin(t, text, before, forms, bare, last=i + 1 == len(ids)))
            before = text
        token.append(-1)
        link.append(-1)
    n = len(token)
    return Entry(np.array(token, np.int32), np.array(link, np.int32), np.zeros(n, np.int32), np.zeros(n, np.bool_))


def _begin(token: int, text: str, before: str, forms: Spaced, bare: bool, last: bool) -> int:
    """The token that an answer beginning with this one begins with, -1 when none begins here."""
    if text == " ":  # of a number, whose digits are tokens of their own
        return -1 if bare or last else token
    first = text.lstrip(" ")[:1]
    if not first.isalnum() and first not in _MONEY:
        return -1
    if text[0] == " ":
        return forms.without.get(token, -1) if bare else token
    if before == " ":
        return token if bare else -1
    if before[-1].isalnum():
        return -1  # within a word
    return token if bare else forms.with_.get(token, -1)


def joined(trees: Sequence[Sequence[tuple[int, Entry]]]) -> Copies | None:
    """(slot, entry) of each tree's copy-only slots -> the pass's Copies."""
    flat = [(tree, slot, entry) for tree, entries in enumerate(trees) for slot, entry in entries]
    if not flat:
        return None
    columns = [np.concatenate([getattr(e, name) for _, _, e in flat]) for name in Entry._fields]
    return Copies(
        np.array([t for t, _, _ in flat], np.int32), np.array([s for _, s, _ in flat], np.int32),
        np.cumsum([0, *(len(e.token) for _, _, e in flat)]).astype(np.int64), *columns,
    )  # fmt: skip
