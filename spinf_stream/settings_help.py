"""What each setting means, for --help and `spinf-stream config`: its comment in config.py, its type, its default.

Nothing is written twice: the words are read from the source of Settings, the values from its types.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from spinf_stream.config import Settings, shown


class Meaning(NamedTuple):
    words: str
    values: str  # what may be written: a|b|c, 1..1024, N, TEXT


@functools.cache
def meanings() -> dict[str, Meaning]:
    """By setting. Without words where the package came without its source."""
    try:
        words = dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(Settings), re.M))
    except OSError:
        words = {}
    hints = typing.get_type_hints(Settings, include_extras=True)
    return {name: Meaning(words.get(name, ""), _values(hint)) for name, hint in hints.items()}


def line(name: str) -> str:
    """For people: meaning and default."""
    value = getattr(Settings(), name)
    default = "" if value in (None, "", ()) else f"(default {shown(name, value)})"
    return " ".join(part for part in (meanings()[name].words, default) if part)


def _values(hint: Any) -> str:
    if typing.get_origin(hint) is Annotated:
        kind, meta = typing.get_args(hint)[0], next(m for m in hint.__metadata__ if isinstance(m, Meta))
        low = meta.ge if meta.ge is not None else f">{meta.gt}" if meta.gt is not None else ""
        return f"{low}..{meta.le}" if meta.le is not None and meta.le < 2**31 - 1 else _values(kind)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(_values(arm) for arm in typing.get_args(hint) if arm is not type(None))
    if typing.get_origin(hint) is Literal:
        return "|".join(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return "A,B,..."
    return {bool: "true|false", int: "N", float: "N"}.get(hint, "TEXT")
