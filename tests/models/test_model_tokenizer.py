"""The encoder equals transformers with split_special_tokens=True, from any number of threads."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_model import demo_folder
from tiny import SPECIAL, byte_level_tokenizer
from tokenizers import AddedToken

from spinf_stream.engine.tokenizer import Encoder

HOSTILE = [
    "", " ", "  ", "   a    b", "\n", "\n\n", "\n\n\n\n\n", "\n \n", "\t", "\t\t\tx", " leading", "trailing ", "a\r\nb\rc",
    "<bos>", "a<bos>b", "<bos><bos>", "<eos>", " <eos> ", "<pad><unk><mask>", "<start_of_turn>user\nhi<end_of_turn>\n",
    "<start_of_image>", "<unused5>", "[multimodal]", "<0x41>", "<table><tr><td>1</td></tr></table>", "<h1>Title</h1>", "<b>x</b>",
    "a < b > c", "emoji 😀🏽👩‍👩‍👧‍👦🇺🇦", "漢字テスト、中文。", "Ünïcödé é e\u0301", "عربى", "\u200b\u00a0\u2028", "\x00\x01", "▁", "a▁b",
    "𒀀𝔘\U0010fffd", "1234567890 1,200.50", "don't won't I'm", "http://a.b/c?d=e&f=%20", "yes" * 400, " " * 70, "\n" * 70,
]  # fmt: skip


def tiny_content() -> bytes:
    tok = byte_level_tokenizer()
    tok.add_tokens([AddedToken("<h1>", normalized=False, special=False)])  # an added token that is not special
    return tok.to_str().encode()


@pytest.fixture(scope="module")
def tiny() -> Encoder:
    return Encoder(tiny_content(), bos=(2,), vocab=400)


def transformers_ids(path: Path, texts: list[str]) -> list[list[int]]:
    from transformers import PreTrainedTokenizerFast

    tok = PreTrainedTokenizerFast(tokenizer_file=str(path))
    return [tok(t, add_special_tokens=False, split_special_tokens=True)["input_ids"] for t in texts]


def test_tiny_equals_transformers(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tiny_content())
    assert [tiny.encode(t) for t in HOSTILE] == transformers_ids(tmp_path / "tokenizer.json", HOSTILE)
    assert tiny.encode_batch(HOSTILE) == [tiny.encode(t) for t in HOSTILE]


@pytest.mark.model
def test_gemma_equals_transformers() -> None:
    encoder = Encoder.from_file(demo_folder() / "tokenizer.json", vocab=262_144)
    ours = [encoder.encode(t) for t in HOSTILE]
    assert ours == transformers_ids(demo_folder() / "tokenizer.json", HOSTILE)
    assert encoder.encode_batch(HOSTILE) == ours
    assert [encoder.decode(ids) for ids in ours] == [t.replace("▁", " ") for t in HOSTILE]
    assert encoder.bos == (2,) and encoder.tokens == encoder.vocab == 262_144


@pytest.mark.model
def test_gemma_control_tokens_cannot_be_written() -> None:
    """No text reaches a control token, not even through merges; the id is a control token's only by its own string."""
    table = json.loads((demo_folder() / "tokenizer.json").read_text("utf-8"))
    special = {t["id"]: t["content"] for t in table["added_tokens"] if t["special"]}
    encoder = Encoder.from_file(demo_folder() / "tokenizer.json")
    assert len(special) > 6000
    for text, ids in zip(special.values(), encoder.encode_batch(list(special.values()))):
        assert not set(ids) & set(special), text
    assert encoder.encode("<table>") == [168] and encoder.encode("\n\n\n") == [109]  # ordinary vocabulary


def test_special_strings_stay_text(tiny: Encoder) -> None:
    for text in SPECIAL:
        assert set(tiny.encode(f"a{text}b")) & set(range(len(SPECIAL))) == set()
        assert tiny.decode(tiny.encode(f"a{text}b")) == f"a{text}b"


def test_five_threads_agree_with_one() -> None:
    """transformers' switch is shared state that each call sets: five threads get real control tokens from user text."""
    encoder = Encoder(tiny_content(), bos=(2,))
    texts = [t for t in HOSTILE if t] * 20
    expected = [encoder.encode(t) for t in texts]

    def work(n: int) -> list[list[int]]:
        mine = texts[n:] + texts[:n]
        got = encoder.encode_batch(mine) if n % 2 else [encoder.encode(t) for t in mine]
        encoder.starts_alnum(), encoder.token_text(n), encoder.decode(got[0])
        return got[len(texts) - n :] + got[: len(texts) - n]

    with ThreadPoolExecutor(5) as pool:
        assert all(got == expected for got in pool.map(work, range(25)))


def test_starts_alnum(tiny: Encoder) -> None:
    alnum = tiny.starts_alnum()
    assert alnum.shape == (400,) and alnum.dtype == np.bool_
    expected = {" yes": False, "world": True, "10": True, "\n\n": False, "ing": True, "<": False, "Z": True, "_": False}
    for text, begins in expected.items():
        (token,) = tiny.encode(text)
        assert tiny.token_text(token) == text and alnum[token] == begins, text
    lone = tiny.encode("é")[0]  # the first byte of two
    assert tiny.token_text(lone) == "\ufffd" and not alnum[lone]
    assert not alnum[tiny.tokens :].any() and tiny.token_text(399) == ""
    assert not alnum[[0, 1, 2, 3]].any()
    with pytest.raises(ValueError):
        alnum[0] = True  # shared by threads


@pytest.mark.model
def test_gemma_starts_alnum() -> None:
    encoder = Encoder.from_file(demo_folder() / "tokenizer.json")
    alnum = encoder.starts_alnum()
    for text, begins in {"the": True, " the": False, "0": True, "é": True, "漢字": True, "٣": True, ".": False, "\n": False}.items():
        assert alnum[encoder.encode(text)[0]] == begins, text
    assert encoder.token_text(encoder.encode(" the")[0]) == " the"


def test_digest_is_the_files(tmp_path: Path) -> None:
    from hashlib import sha256

    path = tmp_path / "tokenizer.json"
    path.write_bytes(tiny_content())
    assert Encoder.from_file(path).digest == sha256(path.read_bytes()).hexdigest()


def test_truncation_and_padding_of_the_file_are_off() -> None:
    """Both are left behind in many tokenizer.json files, and would silently cut an article."""
    tok = byte_level_tokenizer()
    tok.enable_truncation(4)
    tok.enable_padding(length=64)
    assert len(Encoder(tok.to_str().encode(), bos=(2,)).encode("q" * 50)) == 50


def test_rows_and_tokens() -> None:
    tok = byte_level_tokenizer()
    size = tok.get_vocab_size()
    tok.add_special_tokens([AddedToken("<image_soft_token>", special=True)])  # Gemma 3's text models have no row for it
    assert Encoder(tok.to_str().encode(), bos=(2,), vocab=size).tokens == size
    tok.add_tokens([AddedToken("<more>", special=False)])
    with pytest.raises(ValueError, match=f"{size + 2} tokens"):
        Encoder(tok.to_str().encode(), bos=(2,), vocab=size)
    with pytest.raises(ValueError, match="BOS"):
        Encoder(tiny_content(), bos=(9999,))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"model": {"type": "Pickle"}}'])
def test_no_tokenizer(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a tokenizer\.json"):
        Encoder(content, bos=(0,))


def test_no_bos(tmp_path: Path) -> None:
    table: dict[str, Any] = json.loads(tiny_content())
    text = json.dumps(table).replace("<bos>", "<s>")
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match="no <bos>"):
        Encoder.from_file(tmp_path / "tokenizer.json")
    assert Encoder.from_file(tmp_path / "tokenizer.json", bos=(5, 6)).bos == (5, 6)
