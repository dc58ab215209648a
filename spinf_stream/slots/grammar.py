"""What counts as a number, {n}, or an amount of money, {$}: a language over characters, and its automaton.

    [space] [sign | "("] digits [scale | percent] [")"]           {n}; the scale may also follow the bracket
    the same with one currency, before the digits or after all     {$}

    digits    3  3.  .5  1,234,567.89  12,34,567 (India)  1.234.567,89  1 234 567,89  1'234'567.89  2,5  0,125
    scale     thousand million billion trillion, k m mn mln bn b tn trn, each as people write it; a single letter directly
              after the digits (for {$} after a space too)
    percent   5%  5 %  5 percent  5 per cent  5 pct

One comma before exactly three digits separates thousands (1,234), one point decimals (1.234): the English reading where
both are possible. The peer's language (section 4.3 of its description) is contained but for commas in odd places (1,2,3).
"""

from __future__ import annotations

import functools
from typing import Literal

from spinf_stream.slots.currency import WRITTEN
from spinf_stream.slots.regular import DEAD, Dfa, Piece, alt, chars, compile, opt, plus, seq, times, word

NumberKind = Literal["n", "$"]

SPACES = " \u00a0\u202f\u2009"  # plain, no-break, narrow no-break, thin: all separate thousands somewhere
MINUS = "-\u2212"
SIGNS = MINUS + "+"
QUOTES = "'\u2019"
SCALES: dict[str, int] = {
    "thousand": 3, "k": 3, "million": 6, "m": 6, "mn": 6, "mln": 6,
    "billion": 9, "b": 9, "bn": 9, "trillion": 12, "t": 12, "tn": 12, "trn": 12,
}  # fmt: skip
PERCENT_WORDS = ("percent", "per cent", "pct")
_WORDS = ("thousand", "million", "billion", "trillion")
_SHORT = ("mn", "mln", "bn", "tn", "trn")
_LETTERS = "kKmMbBT"  # a small t is a ton


def _cased(*words: str) -> Piece:
    return alt(*(word(form) for w in words for form in (w, w.capitalize(), w.upper())))


def _digits() -> Piece:
    d, some, space, quote = chars("0123456789"), plus(chars("0123456789")), chars(SPACES), chars(QUOTES)
    three = times(d, 3, 3)
    head = seq(chars("123456789"), times(d, 0, 2))  # a first group never starts with 0: 0,125 is a fraction
    point, comma = word("."), word(",")
    open_fraction = seq(point, opt(some))  # "3." is complete, "3," is not
    fraction = opt(alt(open_fraction, seq(comma, some)))
    return alt(
        seq(some, opt(open_fraction)),
        seq(point, some),
        seq(head, plus(seq(comma, three)), opt(open_fraction)),
        seq(chars("123456789"), opt(d), plus(seq(comma, d, d)), comma, three, opt(open_fraction)),
        seq(head, point, three, plus(seq(point, three)), opt(seq(comma, some))),
        seq(head, point, three, comma, some),
        seq(head, plus(seq(space, three)), fraction),
        seq(head, plus(seq(quote, three)), fraction),
        # a comma for decimals: where it cannot separate thousands
        seq(times(d, 1, 3), comma, alt(times(d, 1, 2), seq(three, some))),
        seq(word("0"), comma, three),
        seq(times(d, 4, 4), opt(some), comma, some),
    )


def _tail(kind: NumberKind) -> Piece:
    space, letter = chars(SPACES), chars(_LETTERS)
    scale = alt(seq(opt(space), _cased(*_WORDS, *_SHORT)), letter if kind == "n" else seq(opt(space), letter))
    percent = alt(seq(opt(space), word("%")), seq(space, _cased(*PERCENT_WORDS)))
    return alt(scale, percent)


def _language(kind: NumberKind) -> Piece:
    space, sign, tail = opt(chars(SPACES)), opt(chars(SIGNS)), opt(_tail(kind))
    plain = seq(_digits(), tail)

    def bracketed(before: Piece) -> Piece:
        return alt(seq(word("("), before, plain, word(")")), seq(word("("), before, _digits(), word(")"), tail))

    nothing = word("")
    if kind == "n":
        return seq(space, alt(seq(sign, plain), bracketed(nothing)))
    money = alt(*map(word, WRITTEN))
    first = seq(money, space)
    last = seq(space, money)
    return seq(space, alt(
        seq(sign, opt(first), plain), seq(first, sign, plain), seq(sign, plain, last),
        bracketed(opt(first)), seq(first, bracketed(nothing)), seq(bracketed(nothing), last),
    ))  # fmt: skip


@functools.cache
def automaton(kind: NumberKind) -> Dfa:
    """Computed once a process, in about half a second."""
    return compile(_language(kind))


def accepts(text: str, kind: NumberKind) -> bool:
    dfa = automaton(kind)
    state = dfa.run(text)
    return state != DEAD and dfa.final[state]


def longest(text: str, kind: NumberKind, start: int = 0) -> int:
    """End of the longest number that begins at `start`; `start` itself when none does."""
    dfa = automaton(kind)
    state, end = 0, start
    for i in range(start, len(text)):
        state = dfa.next[state].get(text[i], DEAD)
        if state == DEAD:
            break
        if dfa.final[state]:
            end = i + 1
    return end
