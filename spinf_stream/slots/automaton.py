"""Grammars and stop texts over tokens: for every state and token of a vocabulary, what the token does there.

An answer is spelled token by token. A *state* is what matters of the text so far: the grammar's own state for numbers,
how much of the stop text has begun for text. Arrays alone, so that the engine needs neither texts nor grammars.

Numbers end where the next token cannot continue them, so P(end) = 1 - P(tokens that continue). Text ends at its stop text,
matched whole even where several tokens spell it; at any token with a line end in it; at an end-of-text token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spinf_stream.questions.plan import I32, Bool
from spinf_stream.questions.rules import MAX_STOP
from spinf_stream.slots import grammar
from spinf_stream.slots.grammar import QUOTES, SPACES, NumberKind
from spinf_stream.slots.regular import Dfa

if TYPE_CHECKING:
    from spinf_stream.engine.tokenizer import Encoder

NEVER = -1  # the token does not extend
_ENDS = ("<end_of_turn>", "<turn|>", "<|im_end|>", "<|endoftext|>")


@dataclass(frozen=True, eq=False)
class Automaton:
    """S states, state 0 before the first token; K tokens. Compared by identity."""

    token: I32  # [K] ids, ascending
    step: NDArray[np.int16]  # [S, K] the state after a token, NEVER
    open: Bool  # [S] some token extends; a state that none extends ends there, with probability 1
    final: Bool  # [S] the answer may end here
    rest: bool  # numbers: see the sums
    first: Bool  # [S, K] numbers: extensions. Text: tokens that end the answer as it is
    second: Bool  # [S, K] numbers: of those, marks that also follow a finished number. Text: tokens that complete the stop text
    taken: I32  # [S] characters of the answer that belong to a stop text, once it is complete

    def after(self, state: int, token: int) -> int:
        """The state after a token; NEVER where it does not extend."""
        at = self.column.get(token, -1)
        return self.step.item(state, at) if at >= 0 else NEVER

    @functools.cached_property
    def closing(self) -> frozenset[int]:
        """Tokens that lead, from some state, to one that none extends."""
        closed = np.append(~self.open, False)  # the last answers for NEVER
        return frozenset(self.token[closed[self.step].any(0)].tolist())

    @functools.cached_property
    def column(self) -> Mapping[int, int]:
        """Token id -> its column."""
        return {t: i for i, t in enumerate(self.token.tolist())}


class Vocabulary(NamedTuple):
    """What answers are spelled with."""

    texts: tuple[str, ...]  # [tokens]; ids from there on have no text
    size: int  # rows of the embedding
    banned: frozenset[int]  # never part of an answer
    ends: frozenset[int]  # end of text, end of turn


def vocabulary(encoder: Encoder, eos: Sequence[int]) -> Vocabulary:
    texts = encoder.token_texts()
    special = encoder.special()
    markup = {i for i, t in enumerate(texts) if t.startswith("<") and t.endswith(">") and "|" in t}
    named = {encoder.token_id(name) for name in _ENDS} - {None}
    ends = frozenset(eos) | {i for i in named if i is not None}
    return Vocabulary(tuple(texts), encoder.vocab, special | markup | ends, ends)


def of_numbers(kind: NumberKind, words: Vocabulary) -> Automaton:
    dfa = grammar.automaton(kind)
    inside = _inside(dfa)
    token = [i for i, t in enumerate(words.texts) if t and i not in words.banned and inside(t)]
    letters = sorted({c for row in dfa.next for c in row})
    column = {c: i for i, c in enumerate(letters)}
    # one more row and column: nowhere, from where nothing leads out
    table = np.full((len(dfa.next) + 1, len(letters) + 1), -1, np.int16)
    for s, row in enumerate(dfa.next):
        for c, t in row.items():
            table[s, column[c]] = t
    step = _walk(table, [words.texts[i] for i in token], column)
    final: Bool = np.array(dfa.final, np.bool_)
    extends: Bool = step >= 0
    mark: Bool = np.array([words.texts[i].strip(SPACES + ",." + QUOTES) == "" for i in token], np.bool_)
    return Automaton(
        np.array(token, np.int32), step, np.array(extends.any(1)), final, True,
        extends, extends & mark & final[:, None], np.zeros(len(final), np.int32),
    )  # fmt: skip


def _inside(dfa: Dfa) -> Callable[[str], bool]:
    """Whether a text is a piece of some text of the language; quick to say no."""
    after: dict[str, frozenset[int]] = {}
    for row in dfa.next:
        for c, t in row.items():
            after[c] = after.get(c, frozenset()) | {t}

    def inside(text: str) -> bool:
        states = after.get(text[0], frozenset())
        for c in text[1:]:
            if not states:
                return False
            states = frozenset(dfa.next[s][c] for s in states if c in dfa.next[s])
        return bool(states)

    return inside


def _walk(table: NDArray[np.int16], texts: Sequence[str], column: dict[str, int]) -> NDArray[np.int16]:
    """[S, K] the state after each whole text, from each state."""
    states = len(table) - 1
    longest = max(map(len, texts), default=0)
    spelled = np.full((longest, len(texts)), -1, np.int64)
    for i, text in enumerate(texts):
        spelled[: len(text), i] = [column[c] for c in text]
    at = np.repeat(np.arange(states, dtype=np.int16)[:, None], len(texts), 1)
    for row in spelled:
        at = np.where(row >= 0, table[at, row], at)
    return at


def of_text(stop: str, words: Vocabulary) -> Automaton:
    """States: how many characters of the stop text the answer ends with, then one for an answer that contains all of it.

    Raises ValueError for a stop text that is too long to keep a row of the vocabulary for each of its characters.
    """
    if len(stop) > MAX_STOP:
        raise ValueError(f"a stop text of {len(stop)} characters, at most {MAX_STOP}")
    stop = folded(stop, stop)
    borders = _borders(stop)
    width = max(1, len(stop))
    done = width  # the last state
    hard = np.zeros(words.size, np.bool_)
    hard[[i for i in words.ends if i < words.size]] = True
    hard[[i for i, t in enumerate(words.texts) if "\n" in t or "\r" in t]] = True
    usable = np.zeros(words.size, np.bool_)
    usable[: len(words.texts)] = [t != "" for t in words.texts]
    usable[list(words.banned)] = False
    usable &= ~hard
    step = np.full((width + 1, words.size), NEVER, np.int16)
    second = np.zeros((width + 1, words.size), np.bool_)
    step[:done, usable] = 0
    if stop:
        marks = set(stop)
        for i in np.flatnonzero(usable).tolist():
            text = folded(words.texts[i], stop)
            if marks.isdisjoint(text):
                continue
            for state in range(width):
                after, start = _feed(stop, borders, state, text)
                if start is None:
                    step[state, i] = after
                elif start == -state or (start >= 0 and state == 0 and not text[:start].strip()):
                    step[state, i], second[state, i] = NEVER, True
                else:  # it begins within the token, or within what had begun
                    step[state, i] = done
    opened = np.ones(width + 1, np.bool_)
    opened[done] = False
    first = np.zeros((width + 1, words.size), np.bool_)
    first[:done] = hard
    return Automaton(
        np.arange(words.size, dtype=np.int32), step, opened, np.ones(width + 1, np.bool_), False,
        first, second, np.array([*range(width), 0], np.int32),
    )  # fmt: skip


def folded(text: str, stop: str) -> str:
    """A straight quote in the stop text also stands for the typographic closing one."""
    for straight, curly in (('"', "”"), ("'", "’")):
        if straight in stop:
            text = text.replace(curly, straight)
    return text


def begun(text: str, stop: str) -> int:
    """How many characters of the stop text a text ends with (less than all)."""
    stop = folded(stop, stop)
    return _feed(stop, _borders(stop), 0, folded(text, stop))[0] if stop else 0


def _borders(stop: str) -> list[int]:
    """Knuth, Morris and Pratt: the longest proper prefix of stop[:i] that is also its suffix."""
    out = [0] * (len(stop) + 1)
    k = 0
    for i in range(1, len(stop)):
        while k and stop[i] != stop[k]:
            k = out[k]
        k += stop[i] == stop[k]
        out[i + 1] = k
    return out


def _feed(stop: str, borders: list[int], state: int, text: str) -> tuple[int, int | None]:
    """(characters begun after `text`, where the stop text starts in `text` if it is completed there: < 0 before it)."""
    for i, c in enumerate(text):
        while state and c != stop[state]:
            state = borders[state]
        state += c == stop[state]
        if state == len(stop):
            return 0, i + 1 - len(stop)
    return state, None
