"""Text to token ids and back, over a raw `tokenizers.Tokenizer`: no transformers, no state, any number of threads.

User text never becomes a control token. `encode_special_tokens` is set once, here, and makes the library read the
strings of *special* added tokens (<bos>, <start_of_turn>) as plain text, as transformers' split_special_tokens does;
added tokens that are not special (Gemma's <table>, newline and tab runs) are ordinary vocabulary and still match.
transformers flips this same switch on every call, which is a race between threads; nothing here ever changes it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer


class Encoder:
    """Thread-safe. Encodes exactly as transformers with add_special_tokens=False, split_special_tokens=True."""

    def __init__(self, content: bytes, bos: Sequence[int], vocab: int | None = None) -> None:
        """content: a tokenizer.json; bos: the ids every prompt starts with; vocab: rows of the embedding.

        Raises ValueError when the content is no tokenizer, or the model has fewer rows than it has tokens.
        """
        try:
            tok = Tokenizer.from_buffer(content)
        except Exception as e:  # the library raises bare Exception
            raise ValueError(f"not a tokenizer.json: {e}") from None
        tok.encode_special_tokens = True
        tok.no_truncation()
        tok.no_padding()
        if hasattr(tok.model, "_resize_cache"):  # Gemma's pieces are whole texts: ten thousand of them, most never seen again
            tok.model._resize_cache(256)
        self._tok = tok
        self.digest = hashlib.sha256(content).hexdigest()
        ids = set(tok.get_vocab(with_added_tokens=True).values())
        self.vocab = max(ids) + 1 if vocab is None else vocab
        self.tokens = min(max(ids) + 1, self.vocab)  # ids from here on have no text
        self.bos = tuple(bos)
        # text-only Gemma 3 has no row for <image_soft_token>: no harm, special tokens never come out of encode
        special = {i for i, t in tok.get_added_tokens_decoder().items() if t.special}
        if any(i >= self.vocab for i in ids - special) or any(i >= self.vocab for i in self.bos):
            raise ValueError(f"the tokenizer has {max(ids) + 1} tokens (BOS {self.bos}), the model {self.vocab} rows")
        self._alnum: NDArray[np.bool_] | None = None

    @classmethod
    def from_file(cls, path: str | Path, bos: Sequence[int] | None = None, vocab: int | None = None) -> Encoder:
        """From a tokenizer.json. Without `bos` the id of its token <bos>. Raises OSError, ValueError."""
        content = Path(path).read_bytes()
        encoder = cls(content, bos or (), vocab)
        if bos is None:
            own = encoder._tok.token_to_id("<bos>")
            if own is None:
                raise ValueError(f"{path}: the tokenizer has no <bos>; say which ids a prompt starts with")
            encoder.bos = (own,)
        return encoder

    def encode(self, text: str) -> list[int]:
        """Token ids of the text alone: no BOS, nothing special."""
        # a batch of one, because the library's `encode` holds the interpreter's lock and its batches do not
        return self._tok.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode` for each text, in the library's own threads."""
        return [e.ids for e in self._tok.encode_batch_fast(list(texts), add_special_tokens=False)]

    def reach(self, text: str, ids: Sequence[int], count: int) -> int:
        """How many characters of `text` the first `count` of its `ids` stand for, without one that is cut in two.

        Offsets cost as much again as the ids, so they are taken from a head of the text that has the same ids.
        """
        size = 8 * count
        while True:
            head = self._tok.encode_batch([text[:size]], add_special_tokens=False)[0]
            if size >= len(text) or head.ids[: count + 1] == list(ids[: count + 1]):
                break
            size *= 8
        offsets = [*head.offsets, (len(text), len(text))]
        return min(offsets[count - 1][1], offsets[count][0])  # both tokens of a character cut in two lie over all of it

    def decode(self, ids: Sequence[int]) -> str:
        return self._tok.decode(list(ids), skip_special_tokens=False)

    def token_text(self, token: int) -> str:
        """The text of one token, its space marker as a space; "" for rows of the embedding that no token has.

        A byte that is not a character by itself is U+FFFD.
        """
        return self._tok.decode([token], skip_special_tokens=False) if token < self.tokens else ""

    def token_texts(self) -> list[str]:
        """`token_text` of every token, in about a second for a quarter of a million; the caller keeps it."""
        return self._tok.decode_batch([[i] for i in range(self.tokens)], skip_special_tokens=False)

    def special(self) -> frozenset[int]:
        """Ids of the special tokens: control tokens, which no text encodes to."""
        return frozenset(i for i, t in self._tok.get_added_tokens_decoder().items() if t.special and i < self.vocab)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary, such as <end_of_turn>."""
        found: int | None = self._tok.token_to_id(token)
        return found

    def starts_alnum(self) -> NDArray[np.bool_]:
        """[vocab] whether a token's text begins with a letter or digit (Unicode): it would go on with a word.

        A token that begins with a space does not, neither does a lone byte of a longer character. Computed once.
        """
        if self._alnum is None:  # two threads may both compute it; the result is the same
            texts = self.token_texts()
            out = np.zeros(self.vocab, np.bool_)
            out[: self.tokens] = [t[:1].isalnum() for t in texts]
            out.flags.writeable = False
            self._alnum = out
        return self._alnum
