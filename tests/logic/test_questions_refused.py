"""What a question file may say: one row a case, with the place and the reason of each refusal."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from questions_bpe import problems

from spinf_stream.questions.problems import QuestionError
from spinf_stream.questions.spec import Limits, decode

Q0 = "$.queries[0]"


def scored(**fields: Any) -> dict[str, Any]:
    return {"id": "a", "template": "\n\nIs it?\nAnswer:{?}", "options": [" yes", " no"], **fields}


def placed(**fields: Any) -> dict[str, Any]:
    return scored(template="\n\nIs it {F} or {G}?\nAnswer:{?}", **fields)


def slot(**fields: Any) -> dict[str, Any]:
    return {"id": "s", "template": "\n\nWho:{*}", **fields}


ACCEPTED: list[dict[str, Any]] = [
    {"queries": [scored()]},
    {"queries": [scored()], "empty_floor": False, "case_insensitive": False},
    {"queries": [scored(options=[" yes"])]},
    {"queries": [scored(group="desk", empty_floor=None, case_insensitive=None, combinations=None, values=None)]},
    {"queries": [scored(combinations=[{}])]},
    {"queries": [placed(combinations=[{"F": "oil", "G": ""}, {"G": "gas", "F": "{?} {{ }"}])]},
    {"queries": [placed(combinations=[{"F": "oil", "G": "gas"}] * 2)]},
    {"queries": [placed(combinations="all", values={"F": ["a", "b"], "G": ["c"]})]},
    {"queries": [placed(combinations="all", values={"F": [" oil" * 64], "G": [str(i) for i in range(1000)]})]},
    {"queries": [scored(ends=True), scored(id="b", residual=False)]},
    {"queries": [scored(id="x" * 128), scored(id="é\u2028")]},
    {"queries": [scored(template="{{}}}}{{{?}")]},
    {"queries": [slot()]},
    {"queries": [slot(template="{{\nWho: \"{*}\" }}", max_tokens=64, top_k=20, calibration={"a": 2, "b": -1.5})]},
    {"queries": [slot(template="\nPaid:{$}", group="desk"), slot(id="n", template="\nHow many:{n}")]},
    {"queries": [slot(generate=True, max_tokens=100)]},
    {"queries": [slot(generate=False, top_k=1)]},
    {"queries": [slot(mode="copy_only", max_tokens=8), slot(id="n", template="\nN:{n}", mode="copy_only"), slot(id="m", mode="search")]},
    {"queries": [slot(template="\nWho:{*}" + "x" * 64)]},
    {"queries": [slot(generate={"temperature": 2, "top_p": 0.5, "top_k": 100, "seed": 2**31 - 1, "n": 6})]},
    {"queries": [slot(template="\nWho is {F}:{*} km", combinations=[{"F": str(i)} for i in range(10)])]},
]  # fmt: skip


@pytest.mark.parametrize("file", ACCEPTED)
def test_accepted(file: dict[str, Any]) -> None:
    assert problems(file) == ()


REFUSED: list[tuple[object, list[tuple[str, str]]]] = [
    # the object
    ([], [("$", "invalid_field")]),
    (None, [("$", "invalid_field")]),
    ({}, [("$.queries", "missing_field")]),
    ({"queries": {}}, [("$.queries", "invalid_field")]),
    ({"queries": []}, [("$.queries", "empty_queries")]),
    ({"scoring": {"queries": [scored()]}}, [("$.queries", "missing_field"), ("$.scoring", "unknown_field")]),
    ({"queries": [scored()], "packs": []}, [("$.packs", "unknown_field")]),
    ({"queries": [scored()], "empty_floor": "yes"}, [("$.empty_floor", "invalid_field")]),
    ({"queries": [scored()], "case_insensitive": None}, [("$.case_insensitive", "invalid_field")]),
    # fields of a query
    ({"queries": [None, 3]}, [(Q0, "invalid_field"), ("$.queries[1]", "invalid_field")]),
    ({"queries": [{}]}, [(Q0 + ".id", "missing_field"), (Q0 + ".template", "missing_field")]),
    ({"queries": [scored(id=7)]}, [(Q0 + ".id", "invalid_field")]),
    ({"queries": [scored(id="")]}, [(Q0 + ".id", "invalid_field")]),
    ({"queries": [scored(id="x" * 129)]}, [(Q0 + ".id", "invalid_field")]),
    ({"queries": [scored(id="\ud800")]}, [(Q0 + ".id", "invalid_field")]),
    ({"queries": [scored(), scored()]}, [("$.queries[1].id", "duplicate_id")]),
    ({"queries": [scored(option=[" yes"])]}, [(Q0 + ".option", "unknown_field")]),
    ({"queries": [scored(group="x" * 129)]}, [(Q0 + ".group", "invalid_field")]),
    ({"queries": [scored(group="demo/newsdesk@0.1.0")]}, [(Q0 + ".group", "reserved_group")]),
    ({"queries": [scored(ends=1)]}, [(Q0 + ".ends", "invalid_field")]),
    ({"queries": [scored(ends=True, residual=False)]}, [(Q0 + ".ends", "field_not_allowed")]),
    ({"queries": [scored(template=["a"], options=" yes", ends=None)]},
     [(Q0 + ".ends", "invalid_field"), (Q0 + ".options", "invalid_field"), (Q0 + ".template", "invalid_field")]),
    # templates
    ({"queries": [scored(template="Answer:")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [scored(template="Answer:{?} ")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [scored(template="{?}Answer:{?}")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [scored(template="Answer{:{?}")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [scored(template="Answer}:{?}")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [scored(template="{F G}:{?}")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [scored(template="{é}:{?}")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [scored(template="a \udfff:{?}")]}, [(Q0 + ".template", "invalid_field")]),
    ({"queries": [scored(template="{a}{b}{c}{d}{e}{f}:{?}", combinations=[dict.fromkeys("abcdef", "x")])]},
     [(Q0 + ".template", "invalid_template")]),
    ({"queries": [scored(template="{?}")]}, [(Q0 + ".template", "empty_template")]),
    ({"queries": [scored(template="{F}{?}", combinations=[{"F": "oil:"}, {"F": ""}])]}, [(Q0 + ".combinations[1]", "empty_template")]),
    ({"queries": [scored(template="q" * 256 + ":{?}")]}, [(Q0 + ".template", "template_too_long")]),
    ({"queries": [scored(template="{F}:{?}", combinations=[{"F": "x"}, {"F": "q" * 256}, {"F": "Q" * 256}])]},
     [(Q0 + ".combinations[1]", "template_too_long")]),
    # options
    ({"queries": [{"id": "a", "template": "A:{?}"}]}, [(Q0 + ".options", "missing_field")]),
    ({"queries": [scored(options=[])]}, [(Q0 + ".options", "invalid_field")]),
    ({"queries": [scored(options=["", 3])]}, [(Q0 + ".options[0]", "invalid_field"), (Q0 + ".options[1]", "invalid_field")]),
    ({"queries": [scored(options=[f" o{i}" for i in range(1001)])]}, [(Q0 + ".options", "too_many_options")]),
    ({"queries": [scored(options=[" yes", " no", "YES "])]}, [(Q0 + ".options[2]", "duplicate_option")]),
    ({"queries": [scored(options=[" yes", " yes"], case_insensitive=False)]}, [(Q0 + ".options[1]", "duplicate_option")]),
    ({"queries": [scored(options=[" qwxyz", " qwxy"])]}, [(Q0 + ".options[0]", "option_too_long")]),
    ({"queries": [scored(options=[" yes", " qw"], residual=False)]}, [(Q0 + ".options[1]", "multi_token_option")]),
    ({"queries": [scored(template="Answer: {?}", options=["yes", "no", " gas"])]}, [(Q0 + ".options[0]", "option_boundary"), (Q0 + ".options[1]", "option_boundary")]),
    # combinations
    ({"queries": [placed()]}, [(Q0 + ".combinations", "missing_value")]),
    ({"queries": [placed(combinations=[])]}, [(Q0 + ".combinations", "missing_value")]),
    ({"queries": [placed(combinations="every")]}, [(Q0 + ".combinations", "invalid_field")]),
    ({"queries": [placed(combinations=["all", {"F": 1, "G": "x"}])]},
     [(Q0 + ".combinations[0]", "invalid_field"), (Q0 + ".combinations[1].F", "invalid_field")]),
    ({"queries": [placed(combinations=[{"F": "x", "G": "y"}, {"F": "x", "H": "y"}])]},
     [(Q0 + ".combinations[1]", "missing_value"), (Q0 + ".combinations[1].H", "unknown_placeholder")]),
    ({"queries": [placed(combinations=[{"F": "x" * 257, "G": "y"}])]}, [(Q0 + ".combinations[0].F", "invalid_field")]),
    ({"queries": [scored(combinations=[{"F": "x"}])]}, [(Q0 + ".combinations[0].F", "unknown_placeholder")]),
    ({"queries": [scored(combinations="all")]}, [(Q0 + ".combinations", "unknown_placeholder")]),
    ({"queries": [placed(combinations="all")]}, [(Q0 + ".values", "missing_value")]),
    ({"queries": [placed(combinations="all", values={"F": ["x"], "H": ["x"]})]},
     [(Q0 + ".values", "missing_value"), (Q0 + ".values.H", "unknown_placeholder")]),
    ({"queries": [placed(combinations="all", values={"F": ["x"], "G": []})]}, [(Q0 + ".values.G", "missing_value")]),
    ({"queries": [placed(combinations="all", values={"F": ["x"], "G": [1]})]}, [(Q0 + ".values.G[0]", "invalid_field")]),
    ({"queries": [placed(combinations="all", values={"F": ["a"] * 7, "G": ["b"] * 143})]}, [(Q0 + ".combinations", "too_many_combinations")]),
    ({"queries": [placed(combinations=[{"F": "a", "G": "b"}], values={"F": ["a"]})]}, [(Q0 + ".values", "field_not_allowed")]),
    # slots
    ({"queries": [scored(max_tokens=3, top_k=2, calibration={}, generate=True)]},
     [(f"{Q0}.{f}", "field_not_allowed") for f in ("calibration", "generate", "max_tokens", "top_k")]),
    ({"queries": [slot(options=[" a"], empty_floor=True, case_insensitive=False, ends=True, residual=False)]},
     [(f"{Q0}.{f}", "field_not_allowed") for f in ("case_insensitive", "empty_floor", "ends", "options", "residual")]),
    ({"queries": [slot(template="\nWho:{*}{F}")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [slot(template="\nWho:{*}a\nb")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [slot(template="\nWho:{n} km")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [slot(template="\nWho:<*>")]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [slot(template="{*}\"")]}, [(Q0 + ".template", "empty_template")]),
    ({"queries": [slot(max_tokens=65)]}, [(Q0 + ".max_tokens", "invalid_field")]),
    ({"queries": [slot(max_tokens=101, generate=True)]}, [(Q0 + ".max_tokens", "invalid_field")]),
    ({"queries": [slot(max_tokens=0)]}, [(Q0 + ".max_tokens", "invalid_field")]),
    ({"queries": [slot(top_k=21)]}, [(Q0 + ".top_k", "invalid_field")]),
    ({"queries": [slot(calibration={"a": float("nan"), "c": 1, "b": float("inf")})]},
     [(Q0 + ".calibration.a", "invalid_field"), (Q0 + ".calibration.b", "invalid_field"), (Q0 + ".calibration.c", "unknown_field")]),
    ({"queries": [slot(generate=True, top_k=3, calibration={})]}, [(Q0 + ".calibration", "field_not_allowed"), (Q0 + ".top_k", "field_not_allowed")]),
    ({"queries": [slot(template="\nN:{n}", generate=True)]}, [(Q0 + ".generate", "field_not_allowed")]),
    ({"queries": [slot(mode="copy")]}, [(Q0 + ".mode", "invalid_field")]),
    ({"queries": [scored(mode="search")]}, [(Q0 + ".mode", "field_not_allowed")]),
    ({"queries": [slot(generate=True, mode="copy_only")]}, [(Q0 + ".mode", "field_not_allowed")]),
    ({"queries": [slot(template="\nN:{n}", mode="copy_only", max_tokens=3)]}, [(Q0 + ".max_tokens", "field_not_allowed")]),
    ({"queries": [slot(template="\nWho:{*}" + "x" * 65)]}, [(Q0 + ".template", "invalid_template")]),
    ({"queries": [slot(generate="yes")]}, [(Q0 + ".generate", "invalid_field")]),
    ({"queries": [slot(generate={"temperature": 2.1, "top_p": 0, "top_k": 101, "seed": -1, "n": 7, "k": 1})]},
     [(f"{Q0}.generate.{f}", "unknown_field" if f == "k" else "invalid_field") for f in ("k", "n", "seed", "temperature", "top_k", "top_p")]),
    ({"queries": [slot(template="\nWho is {F}:{*}", combinations=[{"F": str(i)} for i in range(11)])]}, [("$.queries", "too_many_extractions")]),
]  # fmt: skip


@pytest.mark.parametrize(("file", "expected"), REFUSED)
def test_refused(file: object, expected: list[tuple[str, str]]) -> None:
    assert sorted((p.path, p.reason) for p in problems(file)) == expected


def test_everything_at_once_in_the_order_of_the_file() -> None:
    queries = [scored(id=f"q{i}") for i in range(12)]
    queries[11]["template"] = "no slot"
    queries[2]["options"] = [" yes", " Yes"]
    queries[3] |= {"template": "Answer: {?}", "options": ["yes", "no"]}
    queries[4]["colour"] = "red"
    found = problems({"queries": queries, "floor": True})
    assert [(p.query, p.path, p.reason) for p in found] == [
        (None, "$.floor", "unknown_field"),
        ("q2", "$.queries[2].options[1]", "duplicate_option"),
        ("q3", "$.queries[3].options[0]", "option_boundary"),
        ("q3", "$.queries[3].options[1]", "option_boundary"),
        ("q4", "$.queries[4].colour", "unknown_field"),
        ("q11", "$.queries[11].template", "invalid_template"),
    ]
    assert str(QuestionError(found)).endswith("(and 5 more)")


@pytest.mark.parametrize("file", [file for file, _ in REFUSED])
def test_a_message_never_quotes_the_question(file: object) -> None:
    marked = json.loads(json.dumps(file).replace("yes", "qxsecret").replace("Answer", "qxsecret").replace("oil", "qxsecret"))
    assert not any("qxsecret" in p.message or "qxsecret" in p.path for p in problems(marked))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_prompts=2), "too_many_prompts"),
        (Limits(max_answers=5), "too_many_options"),
        (Limits(max_options=1), "too_many_options"),
        (Limits(max_query_tokens=3), "template_too_long"),
        (Limits(max_slots=0), "too_many_extractions"),
    ],
)
def test_limits(limits: Limits, reason: str) -> None:
    file = {"queries": [scored(id="a"), scored(id="b"), scored(id="c"), slot()]}
    assert problems(file) == ()
    assert {p.reason for p in problems(file, limits)} == {reason}


BYTES: list[tuple[bytes, bool, str, str]] = [
    (b'{"queries": [}', False, "not_json", "line 1, column 14"),
    (b'{"queries": [NaN]}', False, "not_json", "NaN"),
    (b'{"queries": \xff}', False, "not_json", "byte 12"),
    (b"[" * 100_000, False, "not_json", "deep"),
    (b'{"x": ' + b"9" * 5000 + b"}", False, "not_json", "number"),
    (b"", False, "not_json", "line 1"),
    (b"queries = [", True, "not_toml", "end of document"),
    (b'[[queries]]\nid = "secret" "', True, "not_toml", "line 2"),
    (b"\xff", True, "not_toml", "byte 0"),
]


@pytest.mark.parametrize(("data", "toml", "reason", "place"), BYTES)
def test_bytes_that_are_no_file(data: bytes, toml: bool, reason: str, place: str) -> None:
    with pytest.raises(QuestionError) as e:
        decode(data, toml)
    (problem,) = e.value.problems
    assert (problem.reason, problem.path) == (reason, "$")
    assert place in problem.message and "secret" not in problem.message


def test_a_key_written_twice_is_a_problem_at_its_place() -> None:
    data = b'{"queries": [{"id": "a", "id": "b", "template": "x:{?}", "options": [" yes"]}], "empty_floor": true, "empty_floor": false}'
    assert [(p.path, p.reason) for p in problems(decode(data))] == [("$.empty_floor", "duplicate_key"), ("$.queries[0].id", "duplicate_key")]


def test_json_and_toml_say_the_same() -> None:
    toml = b'case_insensitive = false\n[[queries]]\nid = "a"\ntemplate = "\\n\\nIs it {F}?{?}"\noptions = [" yes"]\ncombinations = "all"\n[queries.values]\nF = ["x", "y"]\n'
    data = b'\xef\xbb\xbf{"case_insensitive": false, "queries": [{"id": "a", "template": "\\n\\nIs it {F}?{?}", "options": [" yes"], "combinations": "all", "values": {"F": ["x", "y"]}}]}'
    assert decode(toml, True) == decode(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["all", "{F}:{?}", "x{*}", "\ud800", " yes"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["F", "G", "id", "options", "a", "\ud800", "seed"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([file for file in ACCEPTED if len(str(file)) < 1000]), st.data())
def test_whatever_stands_in_a_file_it_compiles_or_is_refused(file: dict[str, Any], data: st.DataObject) -> None:
    """W29: a wrong type anywhere is a problem with a place, never another exception."""
    file = copy.deepcopy(file)
    for _ in range(data.draw(st.integers(1, 3))):
        target: Any = data.draw(st.sampled_from([file, *(q for q in file["queries"] if isinstance(q, dict))]))
        key = data.draw(st.sampled_from(sorted({*target, "options", "combinations", "values", "generate", "calibration", "ends", "max_tokens"})))
        target[key] = data.draw(JSON)
        if not isinstance(file.get("queries"), list):
            break
    for source in ({}, {"pack": "demo/p", "case_insensitive": False}):
        for p in problems(file, **source):
            assert p.path.startswith("$") and p.message
            str(p).encode()


@pytest.mark.parametrize(("field", "value", "said"), [
    ("mode", "copyonly", 'expected "search" or "copy_only"'), ("combinations", "every", 'expected a list of objects or "all"'),
])  # fmt: skip
def test_a_word_that_is_none_names_those_there_are(field: str, value: str, said: str) -> None:
    doc = {"queries": [slot(mode=value) if field == "mode" else placed(combinations=value)]}
    (problem,) = problems(doc)
    assert problem.message == said
