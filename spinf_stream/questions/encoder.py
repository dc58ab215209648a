"""What the compiler needs of a tokenizer; spinf_stream.engine.tokenizer.Encoder is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Encoder(Protocol):
    """Text to token ids without special tokens; special-token strings in the text stay plain text. Thread-safe."""

    digest: str  # hex, over everything that decides token ids
    vocab: int  # rows of the embedding
    bos: tuple[int, ...]  # ids that every prompt starts with

    def encode(self, text: str) -> list[int]: ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...
