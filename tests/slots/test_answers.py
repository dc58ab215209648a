"""From endings to what a record says."""

from __future__ import annotations

import math

import msgspec
import pytest

from spinf_stream.questions.questionset import SlotQuery
from spinf_stream.questions.spec import Generate
from spinf_stream.slots.answers import Content, Ended, combination, record, text_key

ARTICLE = Content("The Coca-Cola firm lost $1,200 (5%) in 2004, the coca cola firm said.")


def query(kind="*", **fields):
    base = SlotQuery("q", None, None, None, kind, "", 16, 5, None, None, "search", ({"F": "x"},), ((1,),))
    return msgspec.structs.replace(base, **fields)


def said(q, *texts, content=ARTICLE):
    """Endings given as (text, p) or (text, p, taken, complete)."""
    spelled = [t[0] for t in texts]
    ended = [Ended([i], *t[1:2], *(t[2:] or (0, True))) for i, t in enumerate(texts)]
    return combination(q, 0, ended, lambda tokens: spelled[tokens[0]], content)


def test_texts_merge_over_case_articles_and_punctuation():
    got = said(query(), (" Coca-Cola", 0.2), ("the coca cola", 0.3), (" Coca-Cola ", 0.15), (" Pepsi", 0.1), ("  ", 0.05), (" -", 0.01))
    assert got["values"] == {"F": "x"} and math.isclose(got["mass"], 0.76)
    assert [(a["text"], round(a["p"], 9)) for a in got["answers"]] == [("Coca-Cola", 0.65), ("Pepsi", 0.1), ("-", 0.01)]
    rounded = [a | {"p": 0, "share": round(a["share"], 9)} for a in got["answers"]]
    assert rounded[0] == {"text": "Coca-Cola", "p": 0, "share": round(0.65 / 0.76, 9), "grounded": True, "start": 4, "end": 13}
    assert rounded[1] == {"text": "Pepsi", "p": 0, "share": round(0.1 / 0.76, 9), "grounded": False, "start": None, "end": None}
    assert "p_negative" not in got and "p_calibrated" not in got


def test_text_keys_are_the_peers():
    assert text_key("The Coca-Cola") == text_key("coca cola") == "cocacola"
    assert text_key("A.B.") == "b" and text_key("—") == "—" and text_key("“An” apple’s") == "apples"


def test_the_best_answers_alone_and_no_answer():
    got = said(query(top_k=2), *((chr(97 + i) + "x", 0.1 + i / 100) for i in range(5)))
    assert [a["text"] for a in got["answers"]] == ["ex", "dx"] and math.isclose(got["mass"], 0.6)
    assert math.isclose(got["answers"][0]["share"], 0.14 / 0.6), "of all that was found, however many are listed"
    assert said(query(), ("x", 0.0))["answers"][0]["share"] == 0.0
    assert said(query()) == {"values": {"F": "x"}, "answers": [], "mass": 0.0}
    assert said(query("$", calibration=(1.0, 0.0)), (" $", 0.5)) == {"values": {"F": "x"}, "answers": [], "mass": 0.0}


def test_amounts_have_value_currency_sign_and_calibration():
    q = query("$", calibration=(2.0, -0.5))
    got = said(q, (" $(1,200)", 0.3), (" $1,200", 0.1), (" $1,200", 0.05), (" $1200, up", 0.05), ("-$1.2k", 0.1), (" 5%", 0.02), (" £1,200", 0.01))
    top = got["answers"][0]
    assert (top["text"], top["value"], top["currency"], round(top["p"], 9)) == ("$(1,200)", -1200.0, "$", 0.4)
    assert (top["grounded"], top["start"]) == (False, None)
    positive = got["answers"][1]
    assert (positive["text"], positive["value"], round(positive["p"], 9)) == ("$1,200", 1200.0, 0.2)
    assert ARTICLE.text[positive["start"] : positive["end"]] == "$1,200" and positive["grounded"]
    percent = next(a for a in got["answers"] if a["value"] == 5)
    assert percent["percent"] is True and percent["currency"] is None and "percent" not in top
    assert math.isclose(got["p_negative"], 0.4 / 0.61) and math.isclose(got["mass"], 0.63)
    assert math.isclose(got["p_calibrated"], 1 / (1 + math.exp(-(2 * math.log(0.4 / 0.6) - 0.5))))


def test_a_copied_text_ends_at_a_word():
    endings = ((" Coca-Cola", 0.2), (" Coca-Co", 0.3), (" The Coca-Cola firm", 0.1), (" fir", 0.1))
    got = said(query(mode="copy_only"), *endings)
    assert [a["text"] for a in got["answers"]] == ["Coca-Cola", "The Coca-Cola firm"] and math.isclose(got["mass"], 0.3)
    assert len(said(query(), *endings)["answers"]) == 4, "a search may write what it likes"


def test_a_percentage_is_another_answer_than_its_number():
    got = said(query("n"), (" 5", 0.2), (" 5%", 0.3), (" 5.0", 0.1), (" 5 percent", 0.1))
    assert [(a["text"], a["value"], a.get("percent"), round(a["p"], 9)) for a in got["answers"]] == [("5%", 5.0, True, 0.4), ("5", 5.0, None, 0.3)]


def test_a_number_ends_where_it_was_last_complete():
    got = said(query("n"), (" 5,", 0.2), (" 5", 0.3), (" 5 mil", 0.1), (" 5.", 0.1), (" (5", 0.4), (" 12,3", 0.05))
    assert [(a["text"], a["value"], round(a["p"], 9)) for a in got["answers"]] == [("5", 5.0, 0.7), ("12,3", 12.3, 0.05)]
    assert math.isclose(got["mass"], 0.75)  # an open bracket was never a number


def test_a_text_is_cut_at_its_stop():
    q = query(stop=" km")
    got = said(q, ("about 5 k", 0.1, 2, True), ("about 5", 0.2), ("about 5 km or", 0.1), ("x k", 0.05))
    assert [(a["text"], round(a["p"], 9)) for a in got["answers"]] == [("about 5", 0.4), ("x k", 0.05)]
    quoted = said(query(stop='"'), ("yes.”", 0.5), ('yes" he', 0.1))
    assert [(a["text"], round(a["p"], 9)) for a in quoted["answers"]] == [("yes.", 0.6)]


@pytest.mark.parametrize("stop", ["", '"', "'"])
def test_generated_texts(stop):
    q = query(generate=Generate(n=2), stop=stop)
    got = said(q, ("the coca cola ", 0.1, 0, True), ("no end", 0.1, 0, False), ("so”\"’'", 0.1, 0, True))
    assert got["answers"][0] == {"text": "the coca cola", "finish": "stop", "grounded": True, "start": 45, "end": 58}
    assert got["answers"][1]["finish"] == "length" and "mass" not in got and not got["answers"][0].keys() & {"p", "share"}
    assert got["answers"][2]["text"] == {"": "so”\"’'", '"': "so", "'": "so”\""}[stop]


def test_a_slot_in_a_record():
    assert record(query(), []) == {"id": "q", "kind": "text", "combinations": []}
    assert record(query("$", pack="a/b", context="wire"), []) == {"id": "q", "kind": "currency", "pack": "a/b", "context": "wire", "combinations": []}
    assert record(query("n", mode="copy_only"), []) == {"id": "q", "kind": "number", "mode": "copy_only", "combinations": []}
    assert record(query(generate=Generate()), [])["generate"] is True
