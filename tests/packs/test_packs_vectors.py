"""The peer's 14 vectors (reference/peer-engine.md 3.10), to 6 decimals and to the last bit.

They rest on the constants, the order of the options and the thresholds of the peer's example pack; corpus/example-pack.json
has these, asks in words of its own, and so has another lock.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLE_PACK

from spinf_stream.packs.decide import overrides
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import Pack, from_doc
from spinf_stream.packs.micro import lock

DOC: dict[str, Any] = json.loads(EXAMPLE_PACK.read_text("utf-8"))
SETS = {
    "A": [0.9, 0.1, 0.02, 0.98, 0.2, 0.7, 0.06, 0.04],
    "B": [0.03, 0.97, 0.01, 0.99, 0.05, 0.05, 0.3, 0.6],
    "C": [0.02, 0.98, 0.85, 0.15, 0.97, 0.01, 0.01, 0.01],
    "D": [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0],
    "E": [0.3, 0.1, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1],
}
VALUES = {
    "A": [2.1972245773362196, 3.8918202981106265, 2.1433250560612676, 3.012546487438685, -1.2770062431965854],
    "B": [-3.4760986898352733, 4.59511985013459, -0.49573227355399085, 5.273030087289349, 3.548366279192336],
    "C": [-3.8918202981106265, -1.7346010553881064, -2.105170185988091, -1.3944413078616478, -1.6458013947792107],
    "D": [13.815509557935018, 13.815509557963773, 2.4999999969999998, 22.223265841313413, -19.249188852989434],
    "E": [1.0986122886681091, -0.0, 1.1137056388801094, 3.180269670641735, 1.2726637061973542],
}
MACROS = {
    "A": [1.075591516082823, 2.351591554649178, -0.5385031215982927],
    "B": [0.07304782577132263, 3.7643938045558434, 1.8741831395961681],
}
SCORES = {
    "A": [(0.709037, True), (0.913061, True), (0.313318, False)],
    "B": [(0.422543, False), (0.977344, True), (0.800075, True)],
    "C": [(0.035817, False), (0.400646, False), (0.278762, False)],
    "D": [(0.998756, True), (0.999999, True), (0.000140, False)],
    "E": [(0.253900, False), (0.921030, True), (0.589694, True)],
}
PERCENTILES = {"A": 0.903116, "B": 0.582906, "C": 0.0, "D": 1.0, "E": 0.339833}
MICRO = {"mode": "micro_layer", "threshold": 0.5}
DECISIONS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("V1", {}, "A", {"unsafe": True, "score": 1.243735, **MICRO}),
    ("V2", {"mode": "per_category"}, "A", {"unsafe": True, "mode": "per_category", "categories": ["finance", "event"]}),
    ("V3", {"mode": "max"}, "A", {"unsafe": True, "mode": "max", "score": 0.913061, "threshold": 0.75, "category": "event"}),
    ("V4", {}, "B", {"unsafe": True, "score": 5.421094, "critical": ["harm"], **MICRO}),
    ("V5", {"threshold": 100.0}, "B", {"unsafe": True, "score": 5.421094, **MICRO, "threshold": 100.0, "critical": ["harm"], "by": "critical"}),
    ("V6", {"critical": []}, "B", {"unsafe": True, "score": 5.421094, **MICRO}),
    ("V7", {}, "C", {"unsafe": False, "score": -2.841789, **MICRO}),
    ("V8", {"mode": "max"}, "C", {"unsafe": False, "mode": "max", "score": 0.400646, "threshold": 0.75, "category": "event"}),
    ("V9", {"mode": "per_category"}, "D", {"unsafe": True, "mode": "per_category", "categories": ["finance", "event"]}),
    ("V10", {"mode": "max", "threshold": 0.5, "thresholds": {"finance": None, "event": 0.9}}, "E",
     {"unsafe": True, "mode": "max", "score": 0.92103, "threshold": 0.5, "category": "event", "critical": ["harm"]}),
    ("V11", {"mode": "per_category", "thresholds": {"event": None}}, "B", {"unsafe": False, "mode": "per_category", "categories": []}),
]  # fmt: skip


def entry(pack: Pack, answers: list[float], call: dict[str, Any] | None = None) -> dict[str, Any]:
    with np.errstate(divide="ignore"):
        return Evaluator(pack, change=overrides(pack, call)).evaluate(np.array(answers), np.log(answers))


@pytest.mark.parametrize("name", SETS)
def test_reads_and_categories(name: str) -> None:
    pack = from_doc(DOC)
    ev = Evaluator(pack)
    p = np.array([SETS[name]])
    figures = ev.figures(ev.answers(p, p))
    assert figures.values[0].tolist() == VALUES[name]
    if name in MACROS:
        assert figures.macros[0].tolist() == MACROS[name]
    categories = entry(pack, SETS[name])["categories"]
    assert [(c["score"], c["flagged"]) for c in categories.values()] == SCORES[name]
    assert categories["finance"]["percentile"] == PERCENTILES[name]
    assert categories["event"]["percentile"] is None


@pytest.mark.parametrize(("name", "call", "answers", "decision"), DECISIONS, ids=[d[0] for d in DECISIONS])
def test_decisions(name: str, call: dict[str, Any], answers: str, decision: dict[str, Any]) -> None:
    assert entry(from_doc(DOC), SETS[answers], call)["decision"] == decision


def test_key_order_of_a_decision() -> None:
    assert list(entry(from_doc(DOC), SETS["B"], {"threshold": 100.0})["decision"]) == [
        "unsafe", "mode", "score", "threshold", "critical", "by",
    ]  # fmt: skip


def test_v10_v11_flags() -> None:
    pack = from_doc(DOC)
    flags = {n: c["flagged"] for n, c in entry(pack, SETS["E"], DECISIONS[9][1])["categories"].items()}
    assert flags == {"finance": None, "event": True, "harm": True}
    flags = {n: c["flagged"] for n, c in entry(pack, SETS["B"], DECISIONS[10][1])["categories"].items()}
    assert flags == {"finance": False, "event": None, "harm": False}  # harm requires event, which is not flagged


def test_v12_an_edited_pack_falls_back_and_says_so() -> None:
    doc = copy.deepcopy(DOC)
    doc["categories"]["event"]["platt"] = [1.0, 0.1]
    pack = from_doc(doc)
    assert [p.path for p in pack.notes if p.level == "edited"] == ["$.decision.micro_layer.lock"]
    got = entry(pack, SETS["A"], {"threshold": 0.01})
    assert got["categories"]["event"]["score"] == 0.920678
    assert got["decision"] == {
        "unsafe": True, "mode": "max", "score": 0.920678, "threshold": 0.75, "category": "event",
        "warning": "micro-layer lock mismatch: the pack was edited; using the fallback mode",
    }  # fmt: skip


def test_the_lock_is_the_hash_of_what_is_signed_and_of_nothing_else() -> None:
    layer = {"inputs": ["c:a"], "weights": "AAAAPwAAQD8="}
    doc = {
        "contexts": {"x": "{X}"}, "scoring": {"queries": [{"template": "\u00e9{?}", "id": "q"}], "case_insensitive": True},
        "reads": [{"sd": 2.0, "mean": 1, "F": "\u20ac"}], "categories": {"b": {"threshold": 0.5}, "a": {"platt": [1.0, 0]}}, "decision": {"micro_layer": layer},
    }  # fmt: skip
    signed = (
        b'{"inputs":["c:a"],"platt":{"a":[1.0,0],"b":null},"queries":[{"id":"q","template":"\\u00e9{?}"}],'
        b'"reads":[{"F":"\\u20ac","mean":1,"sd":2.0}]}'
    )
    assert lock(doc) == "sha256:" + hashlib.sha256(signed).hexdigest()


def test_v13_a_hidden_layer_under_the_same_lock() -> None:
    doc = copy.deepcopy(DOC)
    doc["decision"]["micro_layer"] |= {"hidden": 2, "weights": "zczMPpqZmb7NzEw+mpkZPwAAAL9mZmY/zczMPc3MTL4AAMA/MzMzv83MTD0AAIA+"}
    got = entry(from_doc(doc), SETS["A"])["decision"]
    assert got == {"unsafe": True, "mode": "micro_layer", "score": 1.062486, "threshold": 0.25}


def test_v14_answers_from_log_probabilities() -> None:
    doc = copy.deepcopy(DOC)
    doc["answers"] = "logprob"
    ev = Evaluator(from_doc(doc))
    logprob = np.array([[-0.2, -2.4, -5.0, -1.1, -3.0, -1.7, -4.2, -4.6]])
    assert ev.answers(np.full_like(logprob, 0.5), logprob)[0].tolist() == [
        0.9002495108803148, 0.09975048911968516, 0.01984030573407751, 0.9801596942659225,
        0.19333431994639255, 0.7094009759157309, 0.058231178131835225, 0.03903352600604132,
    ]  # fmt: skip


def test_our_digest_covers_what_the_lock_leaves_out() -> None:
    """W32: weights, hidden, contexts, model, case rule, thresholds; and the order, which decides ties and defaults."""
    seen = {from_doc(DOC).digest}
    for change in (
        lambda d: d["decision"]["micro_layer"].update(weights="AAAAPwAAQD8AAMA/AACAvgAAgD8="),
        lambda d: d["contexts"].update(wire="Item:\n{X}\n"),
        lambda d: d.update(model="another"),
        lambda d: d.update(answers="logprob"),
        lambda d: d["scoring"].update(case_insensitive=True),
        lambda d: d["categories"]["harm"].update(threshold=0.51),
        lambda d: d["decision"].update(critical=[]),
        lambda d: d.update(contexts=dict(reversed(d["contexts"].items()))),
    ):
        doc = copy.deepcopy(DOC)
        change(doc)
        seen.add(from_doc(doc).digest)
    assert len(seen) == 9
    assert from_doc(json.loads(json.dumps(DOC, indent=4))).digest in seen
