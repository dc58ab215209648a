"""Options and their case variants, and the check that an option does not melt into the template's last token.

A variant is another spelling of the option that counts for it: P(option) = sum of P(variant). The option as sent comes
first and may have several tokens; the others are single tokens, or they are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from spinf_stream.questions.encoder import Encoder

Ids = tuple[int, ...]
ENDING = 32  # characters of a template's end that can melt with what follows
BLOCK = 20_000  # texts of one encode_batch, to bound memory


def forms(option: str, case_insensitive: bool) -> list[str]:
    """Spellings: the option as sent, then lower, Capitalized, UPPER, each with and without one leading space."""
    out = [option]
    word = option.strip()
    if case_insensitive and word:
        for form in (word.lower(), word[0].upper() + word[1:].lower(), word.upper()):
            out += (" " + form, form)
    return list(dict.fromkeys(out))


class Tokens:
    """Token ids of texts, each text encoded once. `fetch` what is coming, then ask."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._known: dict[str, Ids] = {}

    def fetch(self, texts: Iterable[str]) -> None:
        fresh = iter([t for t in dict.fromkeys(texts) if t not in self._known])
        while block := list(islice(fresh, BLOCK)):
            self._known.update(zip(block, map(tuple, self._encoder.encode_batch(block))))

    def __getitem__(self, text: str) -> Ids:
        return self._known[text]


def melting(encoder: Encoder, tokens: Tokens, asked: Iterable[tuple[Iterable[str], Sequence[str]]]) -> dict[str, set[str]]:
    """By ending, the spellings that tokenise differently together with it than apart (DECISIONS 2).

    asked: for each question its filled templates and its option spellings; every distinct ending meets every spelling.
    """
    bad: dict[str, set[str]] = {}
    pairs = ((ending, o) for texts, options in asked for ending in endings(texts) for o in options)
    while block := list(dict.fromkeys(islice(pairs, BLOCK))):
        tokens.fetch(ending for ending, _ in block)
        for (ending, option), joint in zip(block, encoder.encode_batch([e + o for e, o in block])):
            if tuple(joint) != tokens[ending] + tokens[option]:
                bad.setdefault(ending, set()).add(option)
    return bad


def endings(texts: Iterable[str]) -> list[str]:
    """Distinct ends of filled templates, in order."""
    return list(dict.fromkeys(t[-ENDING:] for t in texts))


def plain(ids: Ids, encoder: Encoder) -> bool:
    """No special token, and none that the model has no row for."""
    return all(i < encoder.vocab and i not in encoder.bos for i in ids)
