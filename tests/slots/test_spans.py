"""The numbers of an article and their places; where answers stand."""

from __future__ import annotations

import random

import pytest

from spinf_stream.slots.answers import Content
from spinf_stream.slots.spans import locate, locate_value, numbers
from spinf_stream.slots.value import parse

CASES = [
    ("n", "Profit rose 5.2% to 1,200, up from 900.", ["5.2%", "1,200", "900"]),
    ("n", "He came 1st in the 100m, won 2-1 at 10:30 on 12/05/2004.", ["100m", "100", "2", "1"]),
    ("n", "Version 1.2.3 of the 90s, the 2nd; F1, G8, mp3, 10km and 5mph", ["10", "5"]),
    ("n", "an 18-year-old on 0.5 per cent in 2003-04", ["18", "0.5 per cent", "2003", "04"]),
    ("n", "fell -3%; (2.5) to [7], 4 (5)", ["-3%", "(2.5)", "2.5", "7", "4", "5"]),
    ("n", "a loss of (5) million, or (2.5)%", ["(5) million", "5 million", "(2.5)%", "2.5%"]),
    ("$", "a loss of (5) million USD and ($3) m", ["(5) million USD", "5 million USD", "($3) m", "$3 m"]),
    ("n", "12 300 people; in 2004 300 came", ["12 300", "12", "300", "2004", "300"]),
    ("n", "1\u00a0234\u00a0567,5 euros", ["1\u00a0234\u00a0567,5"]),
    ("n", "$5m and $5", ["5m", "5"]),
    ("$", "It paid $16bn (£8.5bn), US$5m-a-year and EUR 1.234,56 for 3 firms.", ["$16bn", "£8.5bn", "US$5m", "EUR 1.234,56"]),
    ("$", "a loss of $(1,200) and (£3m) more, then 5 million USD", ["$(1,200)", "(£3m)", "£3m", "5 million USD"]),
    ("$", "3 firms made 1.5 million.", ["3", "1.5 million"]),
    ("n", "", []),
    ("n", "no number, e.g. V or half", []),
    ("$", "A$ and $.", []),
]  # fmt: skip


def stands(text, span):
    """As it is, or without the brackets of "(5) million"."""
    there = text[span.start : span.end]
    return span.text == there or (there[0] == "(" and there[-1] != ")" and span.text == there[1:].replace(")", "", 1))


@pytest.mark.parametrize(("kind", "text", "expected"), CASES)
def test_every_number_once_with_its_place(kind, text, expected):
    found = numbers(text, kind)
    assert [s.text for s in found] == expected
    for s in found:
        assert stands(text, s) and s.parsed == parse(s.text, "n" if s.parsed.currency is None else kind)


def test_any_text_is_searched():
    rng = random.Random(1)
    alphabet = "0123456789.,-()$€ %mbnkUSD\n'’/:xé"
    for _ in range(3000):
        text = "".join(rng.choices(alphabet, k=rng.randrange(40)))
        for kind in ("n", "$"):
            for s in numbers(text, kind):
                assert stands(text, s) and s.parsed is not None
                assert locate_value([s], s.parsed, s.text) == (s.start, s.end), "what is copied is grounded"
    assert len(numbers("1,234 " * 20_000, "n")) == 20_000  # linear
    assert numbers("0." + "1" * 5000, "n") == [] and [s.text for s in numbers("9" * 65 + " 9", "n")] == ["9"]


def test_where_a_text_stands():
    text = "The firm, Wor-Ltd, said\nMr Bill  Gates of WORLD tech."
    for answer, at in (("Wor-Ltd", 10), ("Mr Bill Gates", 24), ("world tech", 42), (" firm ", 4), ("tech.", 48)):
        start, end = locate(text, answer)
        assert start == at and " ".join(text[start:end].split()).lower() == answer.strip().lower()
    assert locate(text, "ill Gates") is None and locate(text, "Gate") is None and locate(text, " ") is None and locate(text, "a.c") is None
    assert locate("It is It", "It") == (0, 2) and locate("it is It", "It") == (6, 8)


def test_where_a_value_stands():
    text = "Sales of £3.5m, not $3,500,000, in 2004; 3.5 million units."
    spans = [*numbers(text, "$"), *numbers(text, "n")]

    def place(answer, kind):
        at = locate_value(spans, parse(answer, kind), answer)
        return at and text[at[0] : at[1]]

    assert place("£3.5m", "$") == "£3.5m" and place("$3.5m", "$") == "$3,500,000" and place("USD 3,500,000", "$") == "$3,500,000"
    assert place("3.5m", "$") == "3.5m", "an answer that names no currency stands at any"
    # A bare number used to ground any currency. It says nothing of one: the currency was invented, and the answer is not there.
    assert place("€3.5m", "$") is None and place("$2004", "$") is None
    assert place("3.5 million", "n") == "3.5 million" and place("2004", "n") == "2004" and place("2005", "n") is None


@pytest.mark.parametrize(
    ("text", "answer", "kind", "there"),
    [
        ("5 people", "5%", "n", None), ("5 people", "5", "n", "5"), ("it rose 5%", "5", "n", None), ("it rose 5%", "5 percent", "n", "5%"),
        ("5 people", "$5", "$", None), ("5 people", "5", "$", "5"), ("it paid $12", "12%", "$", None), ("it rose 12%", "12%", "$", "12%"),
        ("it paid $12", "$12.0", "$", "$12"), ("it paid £12", "$12", "$", None), ("12 US dollars", "$12", "$", None),
        ("(5) million", "5 million", "n", "(5) million"), ("(5) million", "-5 million", "n", "(5) million"),
        ("(5 million)", "5 million", "n", "5 million"), ("(5) million", "5", "n", None), ("($5) million", "$5m", "$", "($5) million"),
    ],
)  # fmt: skip
def test_what_does_not_stand_in_an_article_is_not_grounded(text, answer, kind, there):
    place = Content(text).place(answer, parse(answer, kind))
    assert place["grounded"] == (there is not None) and there == (text[place["start"] : place["end"]] if there else None)
