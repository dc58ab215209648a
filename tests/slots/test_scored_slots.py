"""Slots from a question file and from packs to the scores record."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from tiny import make_tiny

from spinf_stream.cli import main
from spinf_stream.config import PackEntry, Settings
from spinf_stream.engine import open as opening
from spinf_stream.engine.live import open_live
from spinf_stream.engine.open import open_scorer
from spinf_stream.engine.scorer import record
from spinf_stream.errors import UsageError
from spinf_stream.packs.draft import draft
from spinf_stream.records import Article, Origin, encode
from spinf_stream.schema import SlotScore

QUERIES = [
    {"id": "who", "template": "\n\nWho is {x}:{*}", "combinations": [{"x": "first"}, {"x": "last"}], "max_tokens": 4},
    {"id": "sum", "template": "\n\nPaid:{$}", "mode": "copy_only", "calibration": {"a": 1.0, "b": 0.5}},
    {"id": "yes", "template": "\n\nIs it sport?{?}", "options": [" yes", " no"]},
    {"id": "tell", "template": "\n\nTell:{*}", "generate": {"n": 2, "temperature": 1.0}, "max_tokens": 5},
]
TEXT = "Wor Ltd of the world paid $1,200 to tech in 2004, and £3m to politics."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def settings(model, tmp_path) -> Settings:
    (tmp_path / "q.json").write_text(json.dumps({"queries": QUERIES}))
    return Settings(model=str(model), questions=str(tmp_path / "q.json"), cache_dir=str(tmp_path / "cache"), token_budget=400)


def answer(scorer, *articles):
    items = [scorer.prepare(a) for a in articles]
    return scorer.answers(items, scorer.engine.collect(scorer.engine.submit(scorer.pack(items))))


def test_a_record_has_its_slots(settings):
    scorer = open_scorer(settings)
    article = Article(title="Paid", text=TEXT)
    got = answer(scorer, article, Article(text="no number here"))
    slots = got[0].slots
    assert [(s["id"], s["kind"], len(s["combinations"])) for s in slots] == [("who", "text", 2), ("sum", "currency", 1), ("tell", "text", 1)]
    assert slots[0]["combinations"][1]["values"] == {"x": "last"}
    paid = slots[1]["combinations"][0]
    content = f"Paid\n\n{TEXT}"
    assert {a["text"] for a in paid["answers"]} == {"$1,200", "£3m"} and slots[1]["mode"] == "copy_only"
    for a in paid["answers"]:
        assert a["grounded"] and content[a["start"] : a["end"]] == a["text"] and 0 < a["p"] < 1
    assert paid["mass"] == pytest.approx(sum(a["p"] for a in paid["answers"])) and 0 < paid["p_calibrated"] < 1
    assert sum(a["share"] for a in paid["answers"]) == pytest.approx(1)
    assert slots[2]["generate"] is True and [a["finish"] in ("stop", "length") for a in slots[2]["combinations"][0]["answers"]] == [True, True]
    assert got[0].tokens.slots > 40 and [q.id for q in got[0].scores] == ["yes"]
    assert got[1].slots[1]["combinations"][0] == {"values": {}, "answers": [], "mass": 0.0}
    line = json.loads(encode(record(scorer, got[0], "scored", "a", Origin("t", 0, 0, 0), article)))
    assert line["slots"] == slots
    assert [msgspec.convert(a.slots, list[SlotScore]) for a in got] == [a.slots for a in got], "as `spinf-stream schema` says"


def test_nothing_beyond_what_was_read_is_copied_or_grounded(settings):
    short = open_scorer(msgspec.structs.replace(settings, max_content_tokens=30))
    prepared = short.prepare(Article(text=TEXT))
    assert prepared.truncated and prepared.trees[0].read == TEXT[: len(prepared.trees[0].read)] and "£3m" not in prepared.trees[0].read
    paid = answer(short, Article(text=TEXT))[0].slots[1]["combinations"][0]
    assert {a["text"] for a in paid["answers"]} <= {"$1,200", "$1"}


def test_slots_alone_are_enough_to_ask(settings, tmp_path):
    (tmp_path / "q.json").write_text(json.dumps({"queries": [QUERIES[1]]}))
    got = answer(open_scorer(settings), Article(text=TEXT), Article(text=TEXT + " "))
    assert got[0].scores == [] and len(got[0].slots[0]["combinations"][0]["answers"]) == 2
    one, other = (a.slots[0]["combinations"][0]["answers"] for a in got)  # at different places of one pass, on a CPU: close, not equal
    assert [(a["text"], a["start"]) for a in one] == [(a["text"], a["start"]) for a in other]
    for a, b in zip(one, other):
        assert abs(math.log(a["p"]) - math.log(b["p"])) < 1e-4


def test_more_slots_than_ten_are_a_setting(settings, tmp_path, capsys):
    path = tmp_path / "q.json"
    path.write_text(json.dumps({"queries": [{"id": f"n{i}", "template": f"\n\nPaid {i}:{{n}}", "mode": "copy_only"} for i in range(48)]}))
    with pytest.raises(UsageError, match=r"48 slots .* at most 10: .* raise the setting max_slots"):
        open_scorer(settings)
    got = answer(open_scorer(msgspec.structs.replace(settings, max_slots=48)), Article(text="It sold 12 units."))
    assert [s["combinations"][0]["answers"][0]["text"] for s in got[0].slots] == ["12"] * 48
    command = ["questions", "check", str(path), "--model", settings.model]
    assert main(command) == 1 and "max_slots" in capsys.readouterr().err
    assert main([*command, "--max-slots", "48"]) == 0 and "48 slot queries" in capsys.readouterr().out


def test_compact_scores_have_slots_too(settings):
    full, small = (answer(open_scorer(msgspec.structs.replace(settings, scores_format=f)), Article(text=TEXT))[0] for f in ("full", "compact"))
    assert full.slots == small.slots and small.scores.options == 2


def test_the_digest_of_the_questions_covers_the_mode(settings, tmp_path):
    copied = open_scorer(settings).questions_digest
    (tmp_path / "q.json").write_text(json.dumps({"queries": [{**QUERIES[1], "mode": "search"}]}))
    searched = open_scorer(settings)
    assert searched.questions_digest != copied


def test_slots_of_packs_are_asked_in_their_context(settings, tmp_path):
    packs = tmp_path / "packs"
    packs.mkdir()
    for name, contexts in (("a/plain", {"plain": "{X}"}), ("a/post", {"post": "Post:\n{X}\n"})):
        doc = draft(name, ["oil", "gas"], "1")
        doc["contexts"] = contexts
        doc["scoring"]["queries"].append({"id": "paid", "template": "\n\nPaid:<$>", "mode": "copy_only"})
        (packs / f"{name.replace('/', '-')}.json").write_text(json.dumps(doc))
    both = msgspec.structs.replace(settings, packs=(PackEntry("a/plain"), PackEntry("a/post")), pack_sources=(str(packs),))
    got = answer(open_scorer(both), Article(text=TEXT), Article(text="It paid $5."))
    assert [(s["id"], s.get("pack"), s.get("context")) for s in got[0].slots[3:]] == [("paid", "a/plain", "plain"), ("paid", "a/post", "post")]
    for s in got[0].slots[3:]:
        for a in s["combinations"][0]["answers"]:
            assert TEXT[a["start"] : a["end"]] == a["text"]  # offsets count from the content, not from the context around it
    assert [a["text"] for a in got[1].slots[4]["combinations"][0]["answers"]] == ["$5"]
    alone = answer(open_scorer(settings), Article(text=TEXT))[0]
    assert [x["text"] for x in alone.slots[1]["combinations"][0]["answers"]] == [x["text"] for x in got[0].slots[1]["combinations"][0]["answers"]]


def test_an_executor_without_slots_is_refused_before_anything_runs(settings, monkeypatch):
    plain = opening.open_executor

    class Without:
        def __init__(self, inner):
            self.inner = inner
            for name in ("stack", "bit_exact", "default_budget", "numerics", "launch", "fetch"):
                setattr(self, name, getattr(inner, name))

    monkeypatch.setattr(opening, "open_executor", lambda *a: Without(plain(*a)))
    with pytest.raises(UsageError, match="slots do not run on this executor"):
        open_scorer(settings)


def test_a_card_whose_decode_steps_fail_their_gates_has_no_slots(settings, monkeypatch, tmp_path):
    plain = opening.open_executor

    def with_faults(*a):
        executor = plain(*a)
        executor.slot_faults = ["a slot alone = among others"]
        return executor

    monkeypatch.setattr(opening, "open_executor", with_faults)
    with pytest.raises(UsageError, match=r"gates of decode steps failed \(a slot alone = among others\): set device = cpu"):
        open_scorer(settings)
    (tmp_path / "q.json").write_text(json.dumps({"queries": [QUERIES[2]]}))
    assert answer(open_scorer(settings), Article(text=TEXT))[0].slots == []


def test_slots_that_a_reload_brings_to_an_unproved_card_are_refused(settings, monkeypatch, tmp_path):
    plain, asked = opening.open_executor, (tmp_path / "q.json").read_text()

    def unproved(*a):
        executor = plain(*a)
        executor.slot_faults = None  # as on a card where nothing was to be extracted at the start
        return executor

    monkeypatch.setattr(opening, "open_executor", unproved)
    (tmp_path / "q.json").write_text(json.dumps({"queries": [QUERIES[2]]}))
    live = open_live(settings)
    (tmp_path / "q.json").write_text(asked)
    result = live.reload(lambda batch: live.engine.collect(live.engine.submit(batch)))
    assert not result.changed and "restart the worker for slots" in result.kept[0]
