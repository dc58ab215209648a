"""Loading: what counts as JSON, drafts, presentations, notes, and packs for another model."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLE_PACK

from spinf_stream.packs.draft import draft
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import from_doc, load, loads
from spinf_stream.packs.problems import PackError, ParameterError

DOC: dict[str, Any] = json.loads(EXAMPLE_PACK.read_text("utf-8"))


def changed(**top: Any) -> dict[str, Any]:
    return {**copy.deepcopy(DOC), **top}


def faults(doc: dict[str, Any] | bytes) -> list[str]:
    with pytest.raises(PackError) as e:
        loads(doc) if isinstance(doc, bytes) else from_doc(doc)
    return [p.path for p in e.value.problems]


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"", "$"), (b"[]", "$"), (b"{", "$"), (b"\xff{}", "$"), (b'{"pack": 1e999999, "x": ' + b"9" * 5000 + b"}", "$"),
        (b"[" * 100_000, "$"), (b'{"a": {"b": 1, "b": 2}}', "$.a.b"), (b'{"contexts": {"x": "\\ud800"}}', "$.contexts.x"),
    ],
)  # fmt: skip
def test_what_is_no_pack_document(raw: bytes, path: str) -> None:
    assert faults(raw) == [path]


def test_a_pack_over_16_mib_is_not_read(tmp_path: Path) -> None:
    big = tmp_path / "big.json"
    big.write_bytes(b" " * (16 * 2**20 + 1))
    with pytest.raises(PackError, match="larger than 16 MiB"):
        load(big)


def test_what_the_peer_refuses_is_refused() -> None:
    doc = copy.deepcopy(DOC)
    doc["contexts"]["wire"] = "no place"
    del doc["reads"][0]["F"]
    del doc["reads"][2]["sd"]
    del doc["decision"]["max"]
    doc["scoring"]["queries"][1]["template"] = "\nAmount:{$}"
    assert faults(doc) == [
        "$.contexts.wire", "$.scoring.queries[1].options", "$.reads[0].F", "$.reads[2].sd", "$.decision.max.threshold",
    ]  # fmt: skip


def test_what_crashes_the_peer_is_reported() -> None:
    doc = copy.deepcopy(DOC)
    del doc["reads"][0]["category"]
    doc["reads"][1]["query"] = ["about"]
    doc["decision"]["micro_layer"] = "linear"
    assert faults(doc) == ["$.reads[0].category", "$.reads[1].query", "$.decision.micro_layer"]


def test_no_message_quotes_a_question_or_a_value() -> None:
    doc = copy.deepcopy(DOC)
    doc["scoring"]["queries"][0]["template"] = "secretword {?} more"
    doc["scoring"]["queries"][1]["options"] = [" secretword", " secretword"]
    doc["contexts"]["wire"] = "secretword"
    doc["parameters"]["desk"]["default"] = {"secretword": 1}
    with pytest.raises(PackError) as e:
        from_doc(doc)
    assert len(e.value.problems) >= 4 and "secretword" not in str(e.value)


def test_unknown_fields_are_noted_and_load() -> None:
    doc = changed(homepage="x")
    doc["reads"][0]["signn"] = 1
    doc["scoring"]["queries"][0]["emptyfloor"] = True
    notes = [(p.level, p.path) for p in from_doc(doc).notes]
    assert notes == [("note", "$.scoring.queries[0].emptyfloor"), ("note", "$.reads[0].signn"), ("edited", "$.decision.micro_layer.lock")]


def test_a_seal_that_does_not_match_refuses_the_file() -> None:
    doc = copy.deepcopy(DOC)
    doc["digest"] = from_doc(doc).digest
    assert from_doc(doc).digest == doc["digest"]
    doc["contexts"]["plain"] = "{X}\n"
    assert faults(doc) == ["$.digest"]


def test_a_draft_asks_and_does_not_judge() -> None:
    pack = from_doc(draft("my/pack", ["oil", "rates"]))
    assert not pack.calibrated and pack.options == 6
    entry = Evaluator(pack, models=("demo",)).evaluate(np.full(6, 0.5), np.full(6, -1.0))
    assert entry == {
        "id": "my/pack", "version": "0.1.0", "digest": pack.digest, "context": "plain", "calibrated": False, "categories": None, "decision": None,
    }  # fmt: skip


def test_a_question_set_alone_is_a_draft() -> None:
    doc = {k: DOC[k] for k in ("pack", "version", "contexts", "scoring", "parameters")}
    pack = from_doc(doc)
    assert not pack.calibrated and pack.options == 8 and pack.categories == {}
    assert Evaluator(pack).evaluate(np.full(8, 0.5), np.full(8, -1.0))["categories"] is None
    assert "$.categories" in faults({**doc, "reads": DOC["reads"]})


def test_some_constants_and_not_others_is_broken_not_a_draft() -> None:
    doc = copy.deepcopy(DOC)
    for category in doc["categories"].values():
        del category["platt"]
    assert faults(doc) == [f"$.categories.{c}.platt" for c in doc["categories"]]
    assert not from_doc({**doc, "calibrated": False}).calibrated


def test_a_pack_for_another_model_does_not_judge_and_says_why() -> None:
    pack = from_doc(DOC)
    p = np.full(8, 0.5)
    entry = Evaluator(pack, models=("demo",)).evaluate(p, np.log(p))
    assert (entry["calibrated"], entry["categories"], entry["decision"]) == (False, None, None)
    assert pack.model in entry["warning"]
    assert Evaluator(pack, models=("other", "SPINF/gemma-4-12b-fp8")).evaluate(p, np.log(p))["calibrated"] is True


def test_a_pack_asked_in_another_context_than_it_was_fitted_in_says_so() -> None:
    pack = from_doc(changed(calibration={"context": "wire"}))
    assert Evaluator(pack, "wire").warning is None
    entry = Evaluator(pack, "plain").evaluate(np.full(8, 0.5), np.zeros(8))
    assert entry["calibrated"] is True and "fitted" not in entry and "context wire" in entry["warning"]
    assert Evaluator(from_doc(changed(calibration="?")), "plain").warning is None


def test_presentation() -> None:
    pack = from_doc(DOC)
    assert pack.presentation() == ("Sent to city editors.\n\n", "\n")
    assert pack.presentation("plain", {"desk": 5}) == ("", "")
    assert pack.presentation("wire", {"desk": True})[0] == "Sent to True editors.\n\n"
    assert pack.presentation("wire", {"desk": "a {X} b"})[0] == "Sent to a {X} b editors.\n\n"
    with pytest.raises(ParameterError, match="no parameter 'brand'"):
        pack.presentation("wire", {"brand": "x"})
    with pytest.raises(ParameterError, match="no context 'none'"):
        pack.presentation("none")
    assert pack.declared({"desk": "a"}, {"brand": 1, "desk": "b"}, None) == {"desk": "b"}


def test_required_and_optional_parameters() -> None:
    contexts = {"main": "{X} for {brand} in {place}."}
    pack = from_doc(changed(contexts=contexts, parameters={"brand": {}, "place": {"required": False}}))
    with pytest.raises(ParameterError, match="needs the parameter 'brand'"):
        pack.presentation()
    assert pack.presentation(None, {"brand": "Acme"}) == ("", " for Acme in .")
    # as the peer: in declaration order, so an earlier value may hold a later parameter's place
    assert pack.presentation(None, {"brand": "{place}", "place": "Oslo"}) == ("", " for Oslo in Oslo.")


def test_answers_that_cannot_be_evaluated() -> None:
    ev = Evaluator(from_doc(DOC))
    with pytest.raises(ValueError, match="has 8 options, not 7"):
        ev.evaluate(np.full(7, 0.5), np.full(7, -1.0))
    p = np.full(8, 0.5)
    p[5] = np.nan
    with pytest.raises(ValueError, match="query 'event'"):
        ev.evaluate(p, np.zeros(8))


def test_candidates_only_questions_use_p_where_logprob_is_null() -> None:
    doc = changed(answers="logprob")
    doc["scoring"]["queries"][1]["residual"] = False
    ev = Evaluator(from_doc(doc))
    p = np.array([[0.9, 0.1, 0.2, 0.8, 0.1, 0.2, 0.3, 0.4]])
    logprob = np.array([[-1.0, -2.0, -3.0, -3.0, *[np.nan] * 4]])
    got = ev.answers(p, logprob)[0]
    assert got[4:].tolist() == p[0, 4:].tolist()
    assert got[:4] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1)), 0.5, 0.5])


def test_extraction_queries_are_kept_apart() -> None:
    doc = changed()
    doc["scoring"]["queries"].insert(0, {"id": "amount", "template": "\nAmount: <$>"})
    doc["decision"] = {"mode": "per_category"}
    pack = from_doc(doc)
    assert [q.query.id for q in pack.slots] == ["amount"] and pack.options == 8
    doc["reads"][2]["query"] = "amount"
    assert "$.reads[2].query" in faults(doc)
