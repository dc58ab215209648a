"""A compiled set as an object: digest, floor keys, labels, slots, and the same compiler for packs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from questions_bpe import ENCODER, WORDS, compiled, encoder, problems

from spinf_stream.questions.compile import Source, build, build_body, check
from spinf_stream.questions.questionset import from_body
from spinf_stream.questions.spec import Generate

FILE: dict[str, Any] = {
    "queries": [
        {"id": "a", "template": "\n\nIs it {F}?{?}", "options": [" yes", " no"], "combinations": [{"F": "oil"}, {"F": "gas"}]},
        {"id": "b", "template": "\n\nWhere?{?}", "options": [" New", " York"], "empty_floor": False, "group": "g"},
        {"id": "s", "template": "\n\nWho:\"{*}\"", "max_tokens": 8},
    ]
}  # fmt: skip


def made(file: dict[str, Any] = FILE, **source: Any) -> Any:
    return build([Source(file, **source)], ENCODER)


def test_what_the_worker_needs() -> None:
    q = made()
    assert len(q.digest) == 64 and q.tokenizer == ENCODER.digest
    assert [s.id for s in q.queries] == ["a", "b"] and [s.id for s in q.slots] == ["s"]
    assert q.queries[0].values == ({"F": "oil"}, {"F": "gas"}) and q.queries[1].values == ({},)
    assert q.queries[0].options == (" yes", " no") and q.queries[1].group == "g"
    assert q.starts.prompt.tolist() == [0, 2, 3] and q.starts.option.tolist() == [0, 4, 6]
    assert q.floor.tolist() == [True, True, False]
    assert len(q.floor_keys) == 3 and all(len(k) == 64 for k in q.floor_keys)
    assert q.tokens == q.plan.nodes
    prompts = [ENCODER.encode(t) for t in ("\n\nIs it oil?", "\n\nIs it gas?", "\n\nWhere?", '\n\nWho:"')]
    assert q.longest == max(map(len, prompts))
    assert q.queries[0].tokens == len(prompts[0]) + len(prompts[1])


def test_the_digest_is_stable() -> None:
    """A change here without a change of meaning is a mistake; with one, COMPILER must rise."""
    assert made().digest == made(copy.deepcopy(FILE)).digest
    assert made({**FILE, "empty_floor": True, "case_insensitive": True}).digest == made().digest  # the defaults, said aloud
    shuffled = copy.deepcopy(FILE)
    shuffled["queries"] = [dict(reversed(q.items())) for q in shuffled["queries"]]
    assert made(shuffled).digest == made().digest
    swapped = {"queries": [{"id": "x", "template": "{F}{G}?{?}", "options": [" yes"], "combinations": [{"F": "1", "G": "2"}]}]}
    other = copy.deepcopy(swapped)
    other["queries"][0]["combinations"] = [{"G": "2", "F": "1"}]
    assert made(swapped).digest == made(other).digest


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    file = copy.deepcopy(FILE)
    change(file)
    return file


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda f: f.update(empty_floor=False),
    lambda f: f.update(case_insensitive=False),
    lambda f: f["queries"].reverse(),
    lambda f: f["queries"].pop(),
    lambda f: f["queries"][0].update(id="c"),
    lambda f: f["queries"][0].update(template="\n\nIs it {F}!{?}"),
    lambda f: f["queries"][0].update(options=[" no", " yes"]),
    lambda f: f["queries"][0].update(options=[" yes", " No"]),
    lambda f: f["queries"][0]["combinations"].append({"F": "oil"}),
    lambda f: f["queries"][0]["combinations"].reverse(),
    lambda f: f["queries"][0].update(ends=True),
    lambda f: f["queries"][0].update(residual=False),
    lambda f: f["queries"][0].update(case_insensitive=False),
    lambda f: f["queries"][1].update(empty_floor=True),
    lambda f: f["queries"][1].update(group=None),
    lambda f: f["queries"][2].update(max_tokens=9),
    lambda f: f["queries"][2].update(top_k=4),
    lambda f: f["queries"][2].update(template="\n\nWho:\"{*}'"),
    lambda f: f["queries"][2].update(calibration={}),
    lambda f: f["queries"][2].update(generate=True),
]  # fmt: skip


def test_the_digest_changes_with_everything_that_has_a_meaning() -> None:
    digests = [made().digest, *(made(changed(c)).digest for c in CHANGES)]
    digests += [made(pack="demo/a").digest, made(pack="demo/a", context="wire").digest]
    digests.append(build([Source(FILE)], encoder((*WORDS, "zz"))).digest)
    assert len(set(digests)) == len(digests)


def test_a_floor_key_is_the_question_and_nothing_around_it() -> None:
    def keys(q: dict[str, Any], **source: Any) -> tuple[str, ...]:
        return made({"queries": [{"template": "\n\nIs it {F}?{?}", "options": [" yes", " no"], "combinations": [{"F": "oil"}], "id": "a", **q}]}, **source).floor_keys

    (key,) = keys({})
    same = [keys({"id": "z", "group": "g", "empty_floor": False}), keys({}, pack="demo/a", context="x"), keys({"template": "\n\nIs it oil?{?}", "combinations": None})]
    assert same == [(key,)] * 3
    assert keys({"combinations": [{"F": "gas"}, {"F": "oil"}]})[1] == key
    other = [
        keys({"options": [" no", " yes"]}), keys({"options": [" yes"]}), keys({"case_insensitive": False}), keys({"ends": True}),
        keys({"residual": False}), keys({"combinations": [{"F": "gas"}]}),
    ]  # fmt: skip
    assert len({key, *(k for (k,) in other)}) == 7


def test_slots_stand_beside_the_plan_with_all_that_was_said() -> None:
    q = compiled(
        {"id": "t", "template": "\n\n{F} is {{\"{*}\" }}", "combinations": [{"F": "oil"}, {"F": "gas"}], "calibration": {"a": 2.0}},
        {"id": "n", "template": "\n\nHow many:{n}", "max_tokens": 7, "top_k": 3},
        {"id": "c", "template": "\n\nPaid:{$}", "group": "money"},
        {"id": "g", "template": "\n\nIn short:{*}", "generate": {"temperature": 0.5, "n": 2}, "max_tokens": 100},
        {"id": "h", "template": "\n\nIn short:{*}", "generate": True},
        {"id": "q", "template": "\n\nIs it?{?}", "options": [" yes"]},
    )  # fmt: skip
    t, n, c, g, h = q.slots
    assert (t.kind, t.stop, t.max_tokens, t.top_k, t.calibration, t.generate) == ("*", '" }', 16, 5, (2.0, 0.0), None)
    assert t.values == ({"F": "oil"}, {"F": "gas"})
    assert [list(ids) for ids in t.tokens] == [ENCODER.encode('\n\noil is {"'), ENCODER.encode('\n\ngas is {"')]
    assert (n.kind, n.max_tokens, n.top_k) == ("n", 7, 3) and (c.kind, c.group) == ("$", "money")
    assert g.generate == Generate(temperature=0.5, n=2) and g.max_tokens == 100 and h.generate == Generate()
    assert q.plan.prompts == 1 and len(q.queries) == 1


def pack_file(**fields: Any) -> dict[str, Any]:
    return {"queries": [{"id": "a", "template": "\n\nIs it?{?}", "options": [" Yes", " no"]}], **fields}


def test_packs_have_their_own_case_rule_labels_and_slots() -> None:
    q = made(pack_file(), pack="demo/p", context="wire", case_insensitive=False)
    (s,) = q.queries
    assert (s.pack, s.context, s.case_insensitive, s.name) == ("demo/p", "wire", False, "demo/p:a")
    assert made(pack_file(case_insensitive=True), pack="demo/p", case_insensitive=False).queries[0].case_insensitive
    angle = {"queries": [{"id": "w", "template": "\n\nWho:<*>,"}, {"id": "m", "template": "\n\nPaid:<$>"}]}
    assert [(s.kind, s.stop, s.name) for s in made(angle, pack="demo/p").slots] == [("*", ",", "demo/p:w"), ("$", "", "demo/p:m")]


def test_a_pack_never_changes_another_sources_questions() -> None:
    """W25: one plan of several sources, each query under its own rule; W28: groups open no door."""
    long = "q" * 300 + "{?}"
    sources = [
        Source(pack_file()),
        Source(pack_file(), pack="demo/p", case_insensitive=False),
        Source({"queries": [{"id": "a", "template": long, "options": [" yes"]}]}, pack="demo/q", case_insensitive=False),
    ]
    q = build(sources, ENCODER)
    assert [s.name for s in q.queries] == ["a", "demo/p:a", "demo/q:a"]
    assert [s.case_insensitive for s in q.queries] == [True, False, False]
    assert q.floor_keys[0] == made(pack_file()).floor_keys[0]
    file = {"queries": [{"id": "a", "template": long, "options": [" yes"], "group": "demo/q@1"}]}
    assert [(p.path, p.reason) for p in problems(file)] == [("$.queries[0].group", "reserved_group")]
    del file["queries"][0]["group"]
    assert [p.reason for p in problems(file)] == ["template_too_long"]


def test_problems_of_packs_name_pack_and_place_and_forgive_unknown_fields() -> None:
    broken = pack_file(colour="red")
    broken["queries"] += [{"id": "b", "template": "x{?}", "options": [" yes"], "shade": 1}, {"id": "c", "template": "x", "options": [" yes"]}]
    found = problems(broken, where="$.scoring", pack="demo/p")
    assert [(p.query, p.path, p.reason) for p in found] == [("demo/p:c", "$.scoring.queries[2].template", "invalid_template")]
    assert check([Source(broken, "$.scoring", "demo/p")]) == list(found)
    broken["queries"].pop()
    assert [s.id for s in made(broken, pack="demo/p").queries] == ["a", "b"]


def test_what_the_peer_crashes_on() -> None:
    """W29: a template that is only its slot, beside an extraction slot."""
    file = {"queries": [{"id": "a", "template": "{?}", "options": [" yes"]}, {"id": "s", "template": "\nWho:{*}"}]}
    assert [(p.query, p.reason) for p in problems(file)] == [("a", "empty_template")]


def test_a_set_is_its_body() -> None:
    body = build_body([Source(FILE)], ENCODER)
    again = from_body(body)
    assert again.digest == made().digest and again.floor_keys == made().floor_keys
    assert again.queries == made().queries and again.slots == made().slots
    for name in ("token", "step_cand", "read_norm", "prompt_norm"):
        ours, theirs = getattr(again.plan, name), getattr(made().plan, name)
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    with pytest.raises(ValueError, match="read-only"):
        again.plan.token[0] = 5


def test_ten_thousand_prompts_compile_in_seconds() -> None:
    values = [f"{i}" for i in range(1000)]
    queries = [{"id": f"q{i}", "template": f"\n\nIs {{F}} in {i}?{{?}}", "options": [" yes", " no"], "combinations": "all", "values": {"F": values}} for i in range(10)]
    began = time.perf_counter()
    q = compiled(*queries)
    assert time.perf_counter() - began < 20
    assert q.plan.prompts == 10_000 and len(q.floor_keys) == 10_000
