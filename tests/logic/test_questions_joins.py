"""Content and template tokenised as one text: counted, for every combination, at a small price (W14)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from questions_bpe import ENCODER, compiled, encoder

from spinf_stream.questions.joins import REACH, head, tail


def yes(name: str, template: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "template": template, "options": [" yes"], **fields}


def test_the_peers_blind_spot() -> None:
    """`hello wor` + `ld`: the second combination joins, whatever the first does."""
    q = compiled(yes("a", "{F}:{?}", combinations=[{"F": " a"}, {"F": "ld"}]), yes("b", "\n\nIs it?{?}"))
    assert q.joins_differ(ENCODER, "hello wor") == ["a"]
    assert q.joins_differ(ENCODER, "hello wo") == []
    assert compiled(yes("a", "{F}:{?}", combinations=[{"F": " a"}])).joins_differ(ENCODER, "hello wor") == []


def test_slots_and_packs_are_named_too() -> None:
    q = compiled(yes("a", "\n\nIs it?{?}"), {"id": "s", "template": "ld:{*}"})
    assert q.joins_differ(ENCODER, "hello wor") == ["s"]
    q = compiled(yes("a", "ld one?{?}"), yes("b", "\n\nIs it?{?}"), yes("c", "ld two?{?}"))
    assert len(q.joins.heads) == 2 and q.joins_differ(ENCODER, "hello wor") == ["a", "c"]


def test_a_thousand_questions_fall_into_few_classes_and_words_are_remembered() -> None:
    q = compiled(*(yes(f"q{i}", f"\n\n{('Is', 'Does', 'Will')[i % 3]} it mean {i}?{{?}}") for i in range(1000)), yes("z", "ld?{?}"))
    assert len(q.joins.heads) == 4

    class Counting:
        digest, vocab, bos = ENCODER.digest, ENCODER.vocab, ENCODER.bos
        calls = texts = 0

        def encode(self, text: str) -> list[int]:
            raise AssertionError

        def encode_batch(self, texts: list[str]) -> list[list[int]]:
            self.calls, self.texts = self.calls + 1, self.texts + len(texts)
            return ENCODER.encode_batch(texts)

    counting = Counting()
    for article in ("It was a long day, he said.", "Another day, she said.", "a wor", "the wor", "a new wor"):
        q.joins_differ(counting, article)
    assert (counting.calls, counting.texts) == (2, 10)


def test_without_content_there_is_nothing_to_join() -> None:
    assert compiled(yes("a", "ld:{?}")).joins_differ(ENCODER, "") == []


def test_another_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="another tokenizer"):
        compiled(yes("a", "ld:{?}")).joins_differ(encoder(("ab",)), "hello wor")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("\n\nIs it?", "\n\nIs"), ("Is it?", "Is"), (" \n ", " \n "), ("", ""), ("x" * 50, "x" * REACH), ("?\nIs", "?")],
)
def test_head(text: str, expected: str) -> None:
    assert head(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("he said.", " said."), ("said.", "said."), ("a\n\nb", "\n\nb"), ("in the  C", "  C"), ("", ""), ("x" * 50, "x" * REACH), ("he said. \n", " said. \n")],
)
def test_tail(text: str, expected: str) -> None:
    assert tail(text) == expected


WORDS = ("wor", "ld", "Is", "ice", "y", "New", "York", "end", "1", "Answer:", "yes", "low", "er", "\n\n", " ", ".")
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map("".join)


@settings(max_examples=300, deadline=None)
@given(texts, texts.filter(str.strip))
def test_the_last_and_first_words_decide_what_the_whole_texts_do(content: str, template: str) -> None:
    """The check on words alone says what tokenising all of content + template says."""
    content = content.rstrip()
    q = compiled(yes("a", template + "!{?}"))
    whole = ENCODER.encode(content + template + "!") != ENCODER.encode(content) + ENCODER.encode(template + "!")
    assert q.joins_differ(ENCODER, content) == (["a"] if whole and content else [])


def test_the_memo_is_bounded() -> None:
    q = compiled(yes("a", "ld:{?}"))
    r = random.Random(5)
    for _ in range(10_000):
        q.joins_differ(ENCODER, f" {r.random()}")
    assert 0 < len(q.joins._memo) <= 4096
