"""Where an article's last token and a template's first would be one token if they were tokenised together.

Such a join changes nothing (a prompt's tokens are those of its parts, DECISIONS 2); it is counted and flagged, because
the model then reads an unusual spelling. Only the last word of the content and the first of the template can take part,
so templates fall into few classes (heads), each tried once for each last word that comes by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from spinf_stream.questions.encoder import Encoder

REACH = 32  # characters on either side that can melt together
MEMO = 4096  # last words remembered
_FIRST = re.compile(r"\s*\S*")
_LAST = re.compile(r"\s*\S*\s*\Z")


class Head(msgspec.Struct, frozen=True, array_like=True):
    text: str
    tokens: tuple[int, ...]
    queries: tuple[int, ...]  # ascending, into Joins.names


def head(text: str) -> str:
    """What of a filled template can melt with the content before it: leading space and the first word."""
    found = _FIRST.match(text[:REACH])
    return found.group() if found else ""


def tail(text: str) -> str:
    """What of a content can melt with the template after it: its last word with the space on both sides."""
    found = _LAST.search(text[-REACH:])
    return found.group() if found else ""


def heads(texts: Iterable[tuple[int, str]], encoder: Encoder) -> tuple[Head, ...]:
    """Classes of (query index, filled template) over all combinations, in order of appearance."""
    of: dict[str, dict[int, None]] = {}
    for query, text in texts:
        of.setdefault(head(text), {})[query] = None
    return tuple([Head(h, tuple(ids), tuple(sorted(q))) for (h, q), ids in zip(of.items(), encoder.encode_batch(list(of)))])


class Joins:
    """The join check of one question set. Thread-safe: a lost memo entry is only computed again."""

    def __init__(self, heads: Sequence[Head], names: Sequence[str], tokenizer: str) -> None:
        self.heads, self.names, self._tokenizer = tuple(heads), tuple(names), tokenizer
        self._memo: dict[str, tuple[str, ...]] = {}

    def differ(self, encoder: Encoder, content_tail: str) -> list[str]:
        """Names of the queries that would tokenise differently together with this content.

        content_tail: the end of the content, 32 characters suffice. At most one encode_batch of one short text a head.
        Raises ValueError for another tokenizer than the one that compiled the set.
        """
        if encoder.digest != self._tokenizer:
            raise ValueError("the question set was compiled with another tokenizer")
        last = tail(content_tail)
        if not last or not self.heads:
            return []
        found = self._memo.get(last)
        if found is None:
            apart, *joint = encoder.encode_batch([last, *(last + h.text for h in self.heads)])
            hit = {q for h, ids in zip(self.heads, joint) if ids != [*apart, *h.tokens] for q in h.queries}
            found = tuple([self.names[q] for q in sorted(hit)])
            if len(self._memo) >= MEMO:
                self._memo.clear()
            self._memo[last] = found
        return list(found)
