"""Templates: what is text, what is a placeholder, what is the slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spinf_stream.questions.template import Template, TemplateFault, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{?}", Template(("",), "?", "")),
        ("Is it?{?}", Template(("Is it?",), "?", "")),
        ("{F}:{?}", Template(("", "F", ":"), "?", "")),
        ("{F}{G}{F}{?}", Template(("", "F", "", "G", "", "F", ""), "?", "")),
        ("{{F}}:{?}", Template(("{F}:",), "?", "")),
        ("{{{F}}}{?}", Template(("{", "F", "}"), "?", "")),
        ("}}{{{{{?}", Template(("}{{",), "?", "")),
        ("a{_x9}{n}", Template(("a", "_x9", ""), "n", "")),
        ("a{$}", Template(("a",), "$", "")),
        ('"{*}"', Template(('"',), "*", '"')),
        ("{*}{{ km }}", Template(("",), "*", "{ km }")),
        ("a <n> <*> b{?}", Template(("a <n> <*> b",), "?", "")),
    ],
)
def test_read(text: str, expected: Template) -> None:
    assert parse(text) == expected
    assert parse(text, angle=True) == expected  # a {slot} makes <n> plain text in packs too


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "no slot"),
        ("abc", "no slot"),
        ("{{?}}", "no slot"),
        ("<*>", "no slot"),
        ("ab{", "character 2"),
        ("ab{F", "character 2"),
        ("a}{?}", "character 1"),
        ("{?}}", "character 3"),
        ("{}{?}", "character 0"),
        ("{a b}{?}", "character 0"),
        ("{a{b}{?}", "character 0"),
        ("{?}{?}", "second slot at character 3"),
        ("{*}{F}", "placeholder at character 3"),
        ("{n} times {?}", "second slot at character 10"),
        ("{n} times", "not a placeholder"),
        ("{?} ", "very end"),
        ("{$}.", "very end"),
        ("{*}a\nb", "line end"),
        ("{*}a\rb", "line end"),
    ],
)
def test_refused(text: str, place: str) -> None:
    with pytest.raises(TemplateFault, match=place):
        parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Who:"<*>"', Template(('Who:"',), "*", '"')),
        ("{F}:<n>", Template(("", "F", ":"), "n", "")),
        ("a < b: <$>", Template(("a < b: ",), "$", "")),
        ("a {{x}}<*>", Template(("a {x}",), "*", "")),
    ],
)
def test_angle_slots_are_for_packs(text: str, expected: Template) -> None:
    assert parse(text, angle=True) == expected
    with pytest.raises(TemplateFault, match="no slot"):
        parse(text)


@pytest.mark.parametrize("text", ["<n> times", "<*><*>", "<n><$>", "<*>{F}"])
def test_angle_slots_obey_the_same_rules(text: str) -> None:
    with pytest.raises(TemplateFault):
        parse(text, angle=True)


def test_values_go_in_as_they_are() -> None:
    template = parse("{{{F}}} or {G}{F}:{?}")
    assert template.names == ("F", "G")
    assert template.fill({"F": "{G}", "G": "{?}}}"}) == "{{G}} or {?}}}{G}:"


def escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@given(st.lists(st.tuples(st.text(), st.sampled_from(["F", "G", "x_1"])), max_size=4), st.text())
def test_any_text_survives_escaping(parts: list[tuple[str, str]], last: str) -> None:
    template = parse("".join(escaped(t) + f"{{{n}}}" for t, n in parts) + escaped(last) + "{?}")
    values = {"F": "1", "G": "{", "x_1": ""}
    assert template.fill(values) == "".join(t + values[n] for t, n in parts) + last
    assert template.names == tuple(dict.fromkeys(n for _, n in parts))


@given(st.text(alphabet="{}?*n$F<> \n"))
def test_any_string_is_read_or_refused(text: str) -> None:
    for angle in (False, True):
        try:
            template = parse(text, angle)
        except TemplateFault:
            continue
        assert template.slot == "*" or not template.stop
