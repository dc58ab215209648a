"""What a spelling says: the value, the currency, whether it is a percentage. The float is the nearest one."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from spinf_stream.slots.currency import WRITTEN
from spinf_stream.slots.grammar import MINUS, PERCENT_WORDS, QUOTES, SCALES, SPACES, NumberKind, accepts

_CORE = re.compile(rf"\.?\d(?:[\d.,{QUOTES}{SPACES}]*[\d.])?")
_GROUPED = re.compile(r"[1-9]\d{0,2}(,\d{3})+|[1-9]\d?(,\d{2})+,\d{3}")
_MONEY = re.compile("|".join(re.escape(w) for w in sorted(WRITTEN, key=len, reverse=True)))


class Parsed(NamedTuple):
    value: float  # scale words multiplied in; 12.5% is 12.5
    currency: str | None  # see currency.py
    percent: bool


def parse(text: str, kind: NumberKind) -> Parsed | None:
    """None when the whole text is no number of this kind, or one beyond what a float holds."""
    if not accepts(text, kind):
        return None
    core = _CORE.search(text)
    assert core is not None
    before, after = text[: core.start()], text[core.end() :]
    money = _MONEY.search(before) or _MONEY.search(after) if kind == "$" else None
    if money is not None and money.string is after:
        after = after[: money.start()]
    tail = after.replace(")", "").strip(SPACES).lower()
    value = float(f"{_plain(core.group())}e{SCALES.get(tail, 0)}")
    if not math.isfinite(value):
        return None
    if value and any(c in before for c in MINUS + "("):
        value = -value
    percent = tail == "%" or tail in PERCENT_WORDS
    return Parsed(value, WRITTEN[money.group()] if money else None, percent)


def _plain(core: str) -> str:
    """Digits with any separators. The last kind of separator marks decimals unless it can only group."""
    plain = re.sub(rf"[{QUOTES}{SPACES}]", "", core)
    split = plain != core
    if "," in plain and "." in plain:
        group = "," if plain.rfind(",") < plain.rfind(".") else "."
        plain = plain.replace(group, "")
    elif "," in plain and not split and _GROUPED.fullmatch(plain):
        plain = plain.replace(",", "")
    elif plain.count(".") > 1:
        plain = plain.replace(".", "")
    return plain.replace(",", ".")
