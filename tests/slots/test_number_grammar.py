"""Numbers and amounts: every spelling of the corpus has its value, and nothing else is a number.

The oracle below takes a text apart from the outside in, piece by piece, and shares nothing with the grammar's automaton.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from corpus.spellings import NEITHER, spellings

from spinf_stream.slots.currency import WRITTEN
from spinf_stream.slots.grammar import accepts, automaton, longest
from spinf_stream.slots.regular import DEAD
from spinf_stream.slots.value import parse

SPACES, SIGNS = " \u00a0\u202f\u2009", "-\u2212+"
BY_FIRST = {w[0]: [x for x in WRITTEN if x[0] == w[0]] for w in WRITTEN}
BY_LAST = {w[-1]: [x for x in WRITTEN if x[-1] == w[-1]] for w in WRITTEN}


def test_every_spelling_has_its_value():
    table = spellings()
    assert len(table) >= 400 and len({(s.text, s.money) for s in table}) == len(table)
    for s in table:
        got = parse(s.text, "$" if s.money else "n")
        assert got is not None, s
        assert (got.value, got.currency) == (s.value, s.currency), s
        if not s.money:  # every number is an amount without a currency
            assert parse(s.text, "$") == got._replace(currency=None), s


@pytest.mark.parametrize("kind", ["n", "$"])
def test_what_is_no_number_is_refused(kind):
    for text in NEITHER:
        assert parse(text, kind) is None, text
    assert parse("9" * 400, "n") is None  # beyond a float: neither infinity nor an error


def test_what_the_peer_accepts_and_refuses():
    for text in (" 3.5 million", "3.", "(168)", "-5%", "(5 million)", "(5%)"):
        assert accepts(text, "n"), text
    for text in ("$ 1", "-$5", "$(5)"):
        assert accepts(text, "$") and not accepts(text, "n"), text
    for text in ("1, ", "1 2", "$5", "5% million", "5 million%", "5)", ".", "(168"):
        assert not accepts(text, "n"), text
    assert parse("$(1,200)", "$")[:2] == (-1200.0, "$") and parse("12.5%", "n").value == 12.5
    assert parse("12.5%", "n").percent and not parse("12.5", "n").percent


def test_a_state_says_which_characters_may_follow():
    dfa = automaton("n")
    state = dfa.run("(1,2")
    assert not dfa.final[state] and set(dfa.next[state]) == set("0123456789)%kmbtKMBT" + SPACES)
    assert dfa.run("1,") != DEAD and set(dfa.next[dfa.run("1,")]) == set("0123456789")
    assert "$" not in dfa.next[0] and "$" in automaton("$").next[0]
    for one in (dfa, automaton("$")):  # no way leads nowhere
        good = {s for s, f in enumerate(one.final) if f}
        while more := {s for s, row in enumerate(one.next) if s not in good and good & set(row.values())}:
            good |= more
        assert len(good) == len(one.next)


def test_the_longest_number_at_a_place():
    assert longest("5.2bn, up", "n") == 5 and longest("1,200 and", "n") == 5 and longest("abc", "n") == 0
    assert longest("in 3.5 mills", "n", 3) == 6 and longest("US$5m-a-year", "$") == 5 and longest("5, 6", "n") == 1


def test_random_strings_are_judged_as_the_oracle_judges_them():
    rng = random.Random(20)
    known = [s.text for s in spellings()]
    alphabet = "0123456789012345678901234567890123456789.,.,.,''’   \u00a0\u202f--+−()(()%%$€£kmbnMBT"
    pieces = ["1,234", "1.234", "12,34,567", "1 234", "0,5", " million", " bn", "m", "%", " per cent", "USD", "EUR ", "US$", "$", "zł", "(", ")", "-", ".", ","]
    judged = accepted = 0
    for i in range(100_000):
        if i % 4 == 0:
            text = "".join(rng.choices(alphabet, k=rng.randrange(9)))
        elif i % 4 == 1:
            text = "".join(rng.choices(pieces, k=rng.randrange(1, 5)))
        elif i % 4 == 2:
            text = "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x2FFF), rng.randrange(0xE000, 0x1FFFF)))) for _ in range(rng.randrange(12)))
        else:
            text = rng.choice(known)
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice((*alphabet, "", "x")) + text[at + rng.randrange(2) :]
        for kind in "n$":
            want = oracle(text, kind)
            judged += 1
            accepted += want
            got = parse(text, kind)
            assert (got is not None) == want == accepts(text, kind), (text, kind)
    assert judged == 200_000 and 20_000 < accepted < 180_000


def oracle(text: str, kind: str) -> bool:
    if not any("0" <= c <= "9" for c in text):
        return False
    return any(number(rest, kind) for rest in maybe_space(text))


def maybe_space(text: str) -> Iterator[str]:
    yield text
    if text and text[0] in SPACES:
        yield text[1:]


def number(text: str, kind: str) -> bool:
    signs = [text, text[1:]] if text and text[0] in SIGNS else [text]
    if any(body(t, kind) for t in signs) or brackets(text, kind):
        return True
    if kind == "n":
        return False
    for money in fronts(text):
        if brackets(money, kind) or body(money, kind) or (money[:1] in SIGNS and money and body(money[1:], kind)):
            return True
    if any(body(rest, kind) for t in signs for rest in fronts(t)):
        return True
    if text.startswith("(") and text.endswith(")") and any(body(rest, kind) for rest in fronts(text[1:-1])):
        return True
    if text.startswith("("):  # (USD 5) million
        inner, _, tail = text[1:].partition(")")
        if any(digits(rest) for rest in fronts(inner)) and is_tail(tail, kind):
            return True
    return any(body(rest, kind) for t in signs for rest in backs(t)) or any(brackets(rest, kind) for rest in backs(text))


def brackets(text: str, kind: str) -> bool:
    if not text.startswith("("):
        return False
    inner, close, tail = text[1:].partition(")")
    return bool(close) and ((not tail and body(inner, kind)) or (digits(inner) and is_tail(tail, kind)))


def fronts(text: str) -> Iterator[str]:
    for word in BY_FIRST.get(text[:1], ()):
        if text.startswith(word):
            yield from maybe_space(text[len(word) :])


def backs(text: str) -> Iterator[str]:
    for word in BY_LAST.get(text[-1:], ()):
        if text.endswith(word):
            rest = text[: -len(word)]
            yield rest
            if rest and rest[-1] in SPACES:
                yield rest[:-1]


def body(text: str, kind: str) -> bool:
    return any(digits(text[:i]) and (i == len(text) or is_tail(text[i:], kind)) for i in range(1, len(text) + 1))


def is_tail(text: str, kind: str) -> bool:
    if text in ("k", "K", "m", "M", "b", "B", "T", "%"):
        return True
    spaced = text[:1] in SPACES and len(text) > 1
    word = text[1:] if spaced else text
    if spaced and (word == "%" or (kind == "$" and word in ("k", "K", "m", "M", "b", "B", "T"))):
        return True
    if word not in (word.lower(), word.upper(), word.lower().capitalize()):
        return False
    low = word.lower()
    return low in ("thousand", "million", "billion", "trillion", "mn", "mln", "bn", "tn", "trn") or (spaced and low in ("percent", "per cent", "pct"))


def digits(text: str) -> bool:
    if text[-1:] not in set("0123456789."):
        return False
    if text[0] == ".":
        return plain(text[1:])
    for gap in (SPACES, "'’"):
        if any(c in text for c in gap):
            first, *groups = re.split(f"[{gap}]", text)
            mark = next((c for c in groups[-1] if c in ".,"), "")
            last, _, fraction = groups[-1].partition(mark) if mark else (groups[-1], "", "")
            fine = plain(fraction) or (fraction == "" and mark != ",")
            return head(first) and all(plain(g) and len(g) == 3 for g in (*groups[:-1], last)) and fine
    commas, points = text.count(","), text.count(".")
    if not commas:
        whole, *rest = text.split(".")
        if points < 2:
            return plain(whole) and (not rest or rest[0] == "" or plain(rest[0]))
        return head(whole) and all(plain(g) and len(g) == 3 for g in rest)
    if not points or (points == 1 and text.rfind(".") > text.rfind(",")):
        whole, _, fraction = text.partition(".")
        first, *groups = whole.split(",")
        if fraction and not plain(fraction):
            return False
        western = head(first) and all(plain(g) and len(g) == 3 for g in groups)
        indian = head(first) and len(first) < 3 and len(groups[-1]) == 3 and all(plain(g) and len(g) == 2 for g in groups[:-1]) and plain(groups[-1])
        decimal = not points and commas == 1 and plain(first) and plain(groups[0]) and (len(groups[0]) != 3 or len(first) > 3 or first == "0")
        return western or indian or decimal
    whole, _, fraction = text.partition(",")
    first, *groups = whole.split(".")
    return commas == 1 and head(first) and bool(groups) and all(plain(g) and len(g) == 3 for g in groups) and plain(fraction)


def plain(text: str) -> bool:
    return text != "" and all(c in "0123456789" for c in text)


def head(text: str) -> bool:
    return plain(text) and len(text) <= 3 and text[0] != "0"
