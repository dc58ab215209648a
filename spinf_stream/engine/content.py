"""An article's content: assembled, put into a presentation, tokenised, cut to a limit."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.records import Article, Refused

_PLACE = re.compile(r"\{(title|text)\}")


def assemble(article: Article, template: str) -> str:
    """Title and text by the template where there is a title, else the text; trailing white space stripped (DECISIONS 1)."""
    if not article.title:
        return article.text.rstrip()
    parts = {"title": article.title, "text": article.text}
    return _PLACE.sub(lambda m: parts[m.group(1)], template).rstrip()


class Around(NamedTuple):
    """One trunk of an article: which asks it serves, the text around its content, its limit of tokens."""

    asks: tuple[int, ...]
    before: str
    after: str
    limit: int


def digest(content: str, trunks: list[Around], *more: str) -> str:
    """sha256 (hex) over everything of an article that its answer depends on."""
    h = hashlib.sha256()
    for part in (content, *(str(p) for t in trunks for p in t), *more):
        raw = part.encode()
        h.update(len(raw).to_bytes(8, "little") + raw)
    return h.hexdigest()


class Cut(NamedTuple):
    ids: list[int]  # BOS + tokens
    tail: str  # the end of the text that the ids stand for
    truncated: bool
    read: str  # the content, without what was cut off


def tokenise(encoder: Encoder, content: str, around: tuple[str, str], limit: int) -> Cut:
    """before + content + after as ids. Over `limit` tokens (BOS apart) the content loses its end, never the presentation.

    Raises records.Refused when that leaves nothing of the content.
    """
    before, after = around
    text = before + content + after
    ids = encoder.encode(text)
    if len(ids) <= limit:
        return Cut([*encoder.bos, *ids], text[-64:], False, content)
    if not before and not after:
        read = content[: encoder.reach(text, ids, limit)]
        return Cut([*encoder.bos, *ids[:limit]], read[-64:], True, read)
    # the longest head of the content that fits, by bisection over characters; the text after it may merge with a few
    low, high = 0, min(len(content), max(0, encoder.reach(text, ids, limit) - len(before)) + 64)
    while low < high:
        mid = (low + high + 1) // 2
        if len(encoder.encode(before + content[:mid] + after)) <= limit:
            low = mid
        else:
            high = mid - 1
    if not low:
        raise Refused("too_long", f"the text around the content alone fills the limit of {limit} tokens")
    text = before + content[:low] + after
    return Cut([*encoder.bos, *encoder.encode(text)], text[-64:], True, content[:low])
