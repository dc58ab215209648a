"""An article over the limit: which of its text the kept tokens stand for, and what finding that out costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from questions_bpe import ENCODER, encoder
from tiny import _char, byte_level_tokenizer

from spinf_stream.engine.content import tokenise
from spinf_stream.engine.tokenizer import Encoder

BYTES = Encoder(byte_level_tokenizer().to_str().encode(), bos=(2,), vocab=400)
NOWHERE = ("", "")


def spelled(by: Encoder, ids: list[int]) -> bytes:
    """The bytes that tokens stand for; the library's decoder shows a whole run of them as broken when its end is."""
    names = [by._tok.id_to_token(i) for i in ids]
    if by is BYTES:
        table = {_char(b): b for b in range(256)}
        return bytes(table[c] for name in names for c in name)
    return b"".join(bytes([int(n[3:5], 16)]) if n.startswith("<0x") else n.encode() for n in names)


@pytest.mark.parametrize("by", [ENCODER, BYTES], ids=["gemma", "bytes"])
@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("▁ \nyesworldx1é中😀\u200b\x00<"), min_size=1, max_size=60), st.integers(1, 40))
def test_what_was_read_is_the_head_that_the_tokens_spell(by: Encoder, text: str, limit: int) -> None:
    cut = tokenise(by, text, NOWHERE, limit)
    whole = by.encode(text)
    assert cut.ids[1:] == whole[:limit] and cut.truncated == (len(whole) > limit)
    assert text.startswith(cut.read) and cut.read.endswith(cut.tail)
    said = spelled(by, cut.ids[1:]).decode(errors="ignore")  # a character cut in two is not read
    assert said == (cut.read if by is BYTES else cut.read.replace(" ", "▁"))


def test_a_lower_block_is_a_letter_like_any_other() -> None:
    """U+2581 is how the tokenizer spells a space, so that decoding makes a space of it."""
    text = "▁yes world▁" * 40
    cut = tokenise(ENCODER, text, NOWHERE, 100)
    assert len(cut.read) > 200 and text.startswith(cut.read)


class Counting:
    """Passes everything on and counts characters."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.characters = inner, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not name.startswith("encode_batch"):
            return found

        def call(texts: list[str], **given: Any) -> Any:
            self.characters += sum(map(len, texts))
            return found(texts, **given)

        return call


@pytest.mark.parametrize("around", [NOWHERE, ("Read this:\n", "\nThat was it.")])
@pytest.mark.parametrize("text", ["no world ▁ " * 90_000, "▁" * 1_000_000, "中" * 350_000, "world" * 200_000], ids=["words", "blocks", "bytes", "merged"])
def test_a_long_article_is_tokenised_whole_once(around: tuple[str, str], text: str) -> None:
    by = encoder()
    by._tok = counting = Counting(by._tok)  # type: ignore[assignment]
    cut = tokenise(by, text, around, 4096)
    assert cut.truncated and text.startswith(cut.read) and len(cut.read) >= 4096 // 4
    assert counting.characters < 1.5 * len(text)
