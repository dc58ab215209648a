"""Templates: text with placeholders that ends in one slot.

    {?}          scored by its options; the very end
    {n} {$}      a number or an amount is extracted; the very end
    {*}stop      text is extracted up to the stop text: no placeholder and no line end in it, may be empty
    {name}       a placeholder, [A-Za-z0-9_]+, its value inserted literally
    {{ }}        literal braces

Pack files may write the extraction slots as <*>, <n>, <$>; there the form counts only when no {slot} is in the template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["?", "*", "n", "$"]
_NAME = re.compile(r"[A-Za-z0-9_]+")
_PLAIN = re.compile(r"[^{}<]+|<")
_ANGLE = ("<*>", "<n>", "<$>")


class TemplateFault(ValueError):
    """The template cannot be read; the message gives the character, never the text."""


class Template(NamedTuple):
    parts: tuple[str, ...]  # literal text and placeholder names in turn: text, name, text, ..., text
    slot: Kind
    stop: str  # after {*}

    @property
    def names(self) -> tuple[str, ...]:
        """Distinct placeholders in the order of their first appearance."""
        return tuple(dict.fromkeys(self.parts[1::2]))

    def fill(self, values: Mapping[str, str]) -> str:
        """The text before the slot. Values are inserted as they are, braces included."""
        return "".join(values[part] if i % 2 else part for i, part in enumerate(self.parts))


def parse(text: str, angle: bool = False) -> Template:
    """Read a template. `angle` also accepts <*>, <n> and <$>. Raises TemplateFault."""
    found = _scan(text, False)
    if found is None and angle:
        found = _scan(text, True)
    if found is None:
        raise TemplateFault("has no slot: end it with {?}")
    return found


def _scan(text: str, angle: bool) -> Template | None:
    parts: list[str] = []
    literal = ""  # since the last placeholder
    slot: Kind | None = None
    at = 0
    while at < len(text):
        two, char = text[at : at + 2], text[at]
        if two in ("{{", "}}"):
            literal, at = literal + char, at + 2
            continue
        if angle and text[at : at + 3] in _ANGLE:
            name, close = text[at + 1], at + 2
        elif char == "}":
            raise TemplateFault(f"has a lone '}}' at character {at}: write }}}} for a literal brace")
        elif char == "{":
            close = text.find("}", at)
            if close < 0:
                raise TemplateFault(f"has a '{{' at character {at} that is never closed: write {{{{ for a literal brace")
            name = text[at + 1 : close]
        else:
            run = _PLAIN.match(text, at)
            assert run is not None
            literal, at = literal + run.group(), run.end()
            continue
        if slot is not None:
            what = "a second slot" if name in ("?", "*", "n", "$") else "a placeholder"
            raise TemplateFault(f"has {what} at character {at}, after its slot{_hint(slot)}")
        if name in ("?", "*", "n", "$"):
            slot = name  # type: ignore[assignment]
            before, literal = literal, ""
        elif _NAME.fullmatch(name):
            parts += (literal, name)
            literal = ""
        else:
            raise TemplateFault(
                f"has a placeholder at character {at} that is not made of letters, digits and _: write {{{{ for a literal brace"
            )
        at = close + 1
    if slot is None:
        return None
    if literal and slot != "*":
        raise TemplateFault(f"has text after its slot {{{slot}}}, which must be the very end{_hint(slot)}")
    if "\n" in literal or "\r" in literal:
        raise TemplateFault("has a line end in its stop text")
    return Template((*parts, before), slot, literal)


def _hint(slot: Kind) -> str:
    return " ({n} is the number slot, not a placeholder: name the placeholder otherwise)" if slot == "n" else ""
