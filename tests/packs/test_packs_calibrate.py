"""`spinf-stream calibrate` on a model of our own making, whose biases and truth are known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pack_pairs import pairs
from pack_random import combinations

from spinf_stream.cli import main
from spinf_stream.packs.calibrate import calibrate
from spinf_stream.packs.constants import Target, fit_constants
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import Pack, from_doc, load
from spinf_stream.packs.labels import LabelError, held_out, label_matrix, leakage, read_rows
from spinf_stream.packs.plots import available
from spinf_stream.packs.scored import read_scores

SECTIONS = ["oil", "gas", "coal"]


def pack_doc() -> dict[str, Any]:
    """Pairs with a contrast, an option read, an any read and a set read; a linear micro layer."""
    doc = pairs("my/energy", SECTIONS)
    doc["scoring"]["queries"].append({"id": "kind", "template": "\nKind:{?}", "options": [" none", " oil", " gas", " coal"]})
    for i, name in enumerate(SECTIONS):
        doc["reads"].append({"id": f"kind:{name}", "query": "kind", "kind": "option", "option": i + 1, "category": name, "view": "kind"})
    doc["reads"] += [
        {"id": "any", "query": "kind", "kind": "any", "category": "energy"},
        {"id": "fossil", "query": "kind", "kind": "set", "unsafe": [1, 3], "category": "energy"},
    ]
    doc["categories"]["energy"] = {"label": "Any"}
    doc["decision"] = {"mode": "micro_layer", "fallback": "max", "max": {}, "micro_layer": {"inputs": ["c:oil", "c:energy", "r:any"]}}
    return doc


def world(pack: Pack, n: int, seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows with labels, and the records of a model that sees the truth through noise, a yes-bias and overconfidence."""
    rng = np.random.default_rng(seed)
    rows, records = [], []
    for i in range(n):
        truth = int(rng.integers(0, 4))
        label = [] if truth == 3 else [SECTIONS[truth], "energy"]
        words = " ".join(rng.choice(["north", "south", "pipe", "well", "price", "ship", "crew", "storm", "field", "bank"], 12))
        rows.append({"id": f"r{i}", "text": f"{words} {i}", "label": label, "section": SECTIONS[truth] if truth < 3 else "none"})
        logits = {}
        for s, name in enumerate(SECTIONS):
            seen = 2.5 * (2.0 * (truth == s) - 1.0) + rng.normal(0, 2.5)
            logits["is", name] = [seen + 3.0, 0.0]  # it likes to say yes
            logits["is_not", name] = [-seen + 3.0 + rng.normal(0, 1.0), 0.0]
        kind = rng.normal(0, 1.0, 4) + np.array([4.0, 0.0, 0.0, 0.0])  # and to say none
        kind[(truth + 1) % 4] += 3.0
        logits["kind", None] = kind.tolist()
        records.append(record(pack, f"r{i}", logits))
    return rows, records


def record(pack: Pack, name: str, logits: dict[tuple[str, Any], list[float]]) -> dict[str, Any]:
    scores = []
    for q in pack.doc["scoring"]["queries"]:
        found = []
        for values in combinations(q):
            x = np.array(logits[q["id"], values.get("F")])
            lp = x - np.logaddexp.reduce(x)
            options = [{"text": t, "logprob": v - 0.2, "p": math.exp(v), "floor_p": None} for t, v in zip(q["options"], lp.tolist())]
            found.append({"values": values, "options": options, "residual": 0.2, "floor_residual": None})
        scores.append({"id": q["id"], "combinations": found, "pack": pack.id, "context": "plain"})
    return {"id": name, "outcome": "scored", "model": "toy", "system_fingerprint": "fp_1", "scores": scores, "packs": [],
            "scored_at": "2026-02-03T04:05:06.000Z"}  # fmt: skip


def encoded(items: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(i).encode() for i in items]


@pytest.fixture(scope="module")
def made() -> tuple[Pack, list[dict[str, Any]], list[dict[str, Any]]]:
    pack = from_doc(pack_doc())
    return pack, *world(pack, 1200)


def test_calibration_mends_bias_and_overconfidence(made: Any) -> None:
    pack, rows, records = made
    report = calibrate(pack, read_rows(encoded(rows), "label"), read_scores(encoded(records), pack), {}, Target("f1"))
    assert report.pack.calibrated and report.pack.model == "toy" and report.pack.doc["model"] == "toy"
    assert report.fitted_on + report.tested_on == 1200 and 200 < report.tested_on < 400
    assert [c.name for c in report.categories] == [*SECTIONS, "energy"]
    for c in report.categories:
        assert c.after.log_loss < c.before.log_loss and c.after.brier < c.before.brier
        assert c.after.ece < 0.08
        assert c.after.f1 > 0.75
    assert max(c.before.ece for c in report.categories) > 0.1
    assert report.top is None  # `energy` comes with the others, so the labels are not exclusive
    assert report.pack.micro is not None and report.pack.micro.locked and report.pack.micro.hidden == 0
    assert report.pack.decision is not None and 0 < (report.pack.decision.max_threshold or 0) < 1


def test_the_fitted_constants_are_what_they_claim(made: Any) -> None:
    pack, rows, records = made
    scores = read_scores(encoded(records), pack)
    p = np.array([scores.by_id[r["id"]][0] for r in rows])
    answers = Evaluator(pack).answers(p, p)
    y = label_matrix(read_rows(encoded(rows), "label"), pack.categories, {})
    new = fit_constants(pack, "toy", answers, answers, y, Target("f1")).pack
    figures = Evaluator(new).figures(answers)
    assert figures.z.mean(0) == pytest.approx(0, abs=1e-5) and figures.z.std(0, ddof=1) == pytest.approx(1, abs=1e-5)
    for c, spec in enumerate(new.categories.values()):
        assert figures.scores[:, c].mean() == pytest.approx(y[:, c].mean(), abs=0.01)  # an intercept matches the base rate
        assert spec.normal_quantiles is not None
        q = dict(zip(spec.normal_quantiles.levels, spec.normal_quantiles.values))
        assert (figures.scores[:, c] <= q[0.9]).mean() == pytest.approx(0.9, abs=0.01)
    option = next(r for r in new.reads if r.kind == "option")
    column = answers[:, -4:]
    assert option.mu == pytest.approx(np.log(column / column.sum(1, keepdims=True)).mean(0)[option.option or 0], abs=1e-5)


def test_exclusive_labels_give_the_choice(made: Any) -> None:
    pack, rows, records = made
    kept = [r for r in rows if r["section"] != "none"]
    report = calibrate(
        pack, read_rows(encoded(kept), "section"), read_scores(encoded(records), pack), {}, Target("f1"), allow_unlabelled=True
    )  # fmt: skip
    assert report.top is not None and report.top.categories == SECTIONS
    assert report.top.after.accuracy.low < report.top.after.accuracy.value < report.top.after.accuracy.high
    assert report.top.log_loss_change.high < 0
    assert any("not fitted" in w and "energy" in w for w in report.warnings)
    energy = report.pack.categories["energy"]
    assert (energy.threshold, energy.decides) == (None, False)


@pytest.mark.parametrize(("target", "check"), [
    (Target("precision", 0.9), lambda r: all(c.after.precision > 0.8 for c in r.categories if c.threshold is not None)),
    (Target("flag-rate", 0.1), lambda r: all(0.04 < np.mean(np.concatenate([c.scores_yes, c.scores_no]) >= c.threshold) < 0.17 for c in r.categories)),
])  # fmt: skip
def test_targets(made: Any, target: Target, check: Any) -> None:
    pack, rows, records = made
    report = calibrate(pack, read_rows(encoded(rows), "label"), read_scores(encoded(records), pack), {}, target)
    assert check(report)


def test_normal_traffic_sets_the_zero(made: Any) -> None:
    pack, rows, records = made
    quiet, quiet_records = world(pack, 300, seed=9)
    for r in quiet_records:
        r["id"] = "n" + r["id"]
    normal = read_rows(encoded([{**r, "id": "n" + r["id"]} for r in quiet]), None)
    scores = read_scores(encoded(records + quiet_records), pack)
    with_normal = calibrate(pack, read_rows(encoded(rows), "label"), scores, {}, Target("f1"), normal_rows=normal)
    without = calibrate(pack, read_rows(encoded(rows), "label"), scores, {}, Target("f1"))
    assert with_normal.normal == 300 and with_normal.pack.reads[0].mean != without.pack.reads[0].mean
    assert any("no unlabelled traffic" in w for w in without.warnings)
    assert not any("no unlabelled traffic" in w for w in with_normal.warnings)


def test_a_calibrated_pack_is_compared_with_itself(made: Any) -> None:
    pack, rows, records = made
    scores = read_scores(encoded(records), pack)
    data = read_rows(encoded(rows), "label")
    first = calibrate(pack, data, scores, {}, Target("f1"), seed=1)
    again = calibrate(first.pack, data, scores, {}, Target("f1"), seed=1, version="0.2.0")
    assert again.pack.version == "0.2.0"
    for a, b in zip(first.categories, again.categories):
        assert b.before == a.after == b.after
    assert again.pack.reads == first.pack.reads


def test_copies_never_lie_on_both_sides_and_count_once(made: Any) -> None:
    pack, rows, records = made
    copies = [{**r, "id": "copy-" + r["id"], "text": r["text"].upper() + "!"} for r in rows]
    both = read_rows(encoded(rows + copies), "label")
    mask = held_out(both, 0.3)
    side = {}
    for row, m in zip(both, mask):
        assert side.setdefault(row.key, m) == m
    twins = [{**r, "id": "copy-" + r["id"]} for r in records]
    report = calibrate(pack, both, read_scores(encoded(records + twins), pack), {}, Target("f1"))
    assert report.fitted_on + report.tested_on == 1200


def test_leakage_is_told(made: Any) -> None:
    pack, rows, records = made
    data = read_rows(encoded(rows[:600]), "label")
    edited = [{**r, "text": r["text"].replace(" ", "  ", 1)} for r in rows[600:700]]
    tail = [{**rows[0], "id": "r601", "text": rows[0]["text"] + " one more word"}, {**rows[1], "id": "r602"}]
    test = read_rows(encoded(edited[10:] + tail), "label")
    assert leakage(data, test) == (1, 1)
    report = calibrate(pack, data, read_scores(encoded(records), pack), {}, Target("f1"), test_rows=test)
    assert sum("leakage" in w for w in report.warnings) == 2


def test_few_and_one_sided_labels(made: Any) -> None:
    pack, rows, records = made
    scores = read_scores(encoded(records), pack)
    few = calibrate(pack, read_rows(encoded(rows[:120]), "label"), scores, {}, Target("f1"))
    assert any("oil: few labels" in w for w in few.warnings)
    one = read_rows(encoded([r for r in rows if "oil" in r["label"]]), "label")
    with pytest.raises(LabelError, match="no labels of both kinds for oil, gas, coal, energy"):
        calibrate(pack, one, scores, {}, Target("f1"))


def test_a_read_that_never_moves_is_told() -> None:
    doc = pairs("my/still", ["oil"])
    pack = from_doc(doc)
    answers = np.tile([0.7, 0.3, 0.4, 0.6], (200, 1))
    y = (np.arange(200) % 2).astype(float)[:, None]
    fitted = fit_constants(pack, "toy", answers, answers, y, Target("f1"))
    assert sum("the same on all normal traffic" in w for w in fitted.warnings) == 2
    assert all(r.sd == 1.0 for r in fitted.pack.reads)


def test_labels() -> None:
    rows = read_rows(encoded([
        {"id": "1", "text": "a", "y": "oil"}, {"id": "2", "text": "b", "y": ["oil", "gas"]}, {"id": "3", "text": "c", "y": "neither"},
        {"id": "4", "text": "d", "y": {"gas": False, "coal": None}}, {"id": "5", "text": "e"}, {"id": "6", "text": "f", "y": []},
    ]), "y")  # fmt: skip
    y = label_matrix(rows, SECTIONS, {"neither": ()})
    nan = math.nan
    expected = [[1, 0, nan], [1, 1, nan], [0, 0, nan], [nan, 0, nan], [nan] * 3, [0, 0, nan]]
    assert np.array_equal(y, np.array(expected), equal_nan=True)  # coal is never said yes to: silence, not no
    said = label_matrix(rows, SECTIONS, {"neither": (), "gas": ("gas", "coal?"), "oil": ("coal", "oil?")})
    assert np.array_equal(said[:3], np.array([[nan, 0, 1], [nan, 1, 1], [nan, 0, 0]]), equal_nan=True)  # a yes outweighs a silence
    with pytest.raises(LabelError, match="'neither'"):
        label_matrix(rows, SECTIONS, {})
    with pytest.raises(LabelError, match="no category 'peat'"):
        label_matrix(rows, SECTIONS, {"neither": ("peat",)})


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (b"{", "line 1: is not JSON"), (b"[]", "not a JSON object"), (b'{"text": "a"}', r"\$\.id"), (b'{"id": "1"}', r"\$\.text"),
        (b'{"id": "1", "text": "a", "y": 4}', r"\$\.y"), (b'{"id": "1", "text": "a", "y": ["x", 1]}', r"\$\.y"),
    ],
)  # fmt: skip
def test_rows_that_are_refused(row: bytes, text: str) -> None:
    with pytest.raises(LabelError, match=text):
        read_rows([row], "y")


def test_an_id_with_two_texts_is_refused() -> None:
    with pytest.raises(LabelError, match="line 2"):
        read_rows(encoded([{"id": "1", "text": "a"}, {"id": "1", "text": "b"}]), None)


def test_the_command(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert available(), "the tests need the extra `report`"
    pack, rows, records = made
    draft_file, data, scores, out = tmp_path / "p.json", tmp_path / "d.jsonl", tmp_path / "s.jsonl", tmp_path / "out"
    draft_file.write_text(json.dumps(pack.doc))
    data.write_text("\n".join(map(json.dumps, rows)))
    scores.write_text("\n".join(map(json.dumps, records)))
    call = ["calibrate", str(draft_file), str(data), "--scores", str(scores), "--out", str(out)]
    assert main(call) == 0
    page = capsys.readouterr().out
    assert "| oil |" in page and "Look at these first" in page
    new = load(out / "pack.json")
    assert new.calibrated and new.sealed and not [p for p in new.notes if p.level == "edited"]
    numbers = json.loads((out / "report.json").read_text())
    assert [c["name"] for c in numbers["categories"]] == [*SECTIONS, "energy"] and numbers["digest"] == new.digest
    for name in ("reliability.png", "scores.png"):
        raw = (out / name).read_bytes()
        assert raw.startswith(b"\x89PNG") and len(raw) > 5_000
        assert f"]({name})" in (out / "report.md").read_text()
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    assert main(call) == 0
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before

    again = tmp_path / "again.jsonl"
    assert main(["packs", "evaluate", str(out / "pack.json"), str(scores), "--out", str(again)]) == 0
    entry = json.loads(again.read_text().splitlines()[0])["packs"][0]
    assert new.doc["calibration"]["context"] == "plain" and "warning" not in entry
    noted = new.doc["calibration"]
    assert noted["data"] == "d.jsonl, labels of 'label'" and noted["scored_on"] == "2026-02-03"
    held_out = {c["name"]: c["after"]["auc"] for c in numbers["categories"]}
    assert {k: v["auc"] for k, v in noted["held_out"]["categories"].items()} == pytest.approx(held_out, abs=1e-4)
    assert entry["calibrated"] is True and set(entry["categories"]) == {*SECTIONS, "energy"}

    capsys.readouterr()
    for wrong, text in (
        (["--target", "f2"], "--target f2"), (["--map", "x"], "--map x"), (["--context", "none"], "no context"), (["--hold-out", "1"], "--hold-out"),
        (["--label", "section"], "labels that are no category: 'none'"),
    ):  # fmt: skip
        assert main([*call, *wrong]) in (1, 2)
        assert text in capsys.readouterr().err
    assert main(["calibrate", str(out / "pack.json"), str(data), "--scores", str(scores)]) == 2
    assert "--pack-version" in capsys.readouterr().err


def test_the_command_without_matplotlib(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pack, rows, records = made
    for name, items in (("p.json", [pack.doc]), ("d.jsonl", rows), ("s.jsonl", records)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, items)))
    monkeypatch.setattr("spinf_stream.packs.plots.available", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "p.json", "d.jsonl", "--scores", "s.jsonl"]) == 0
    assert "spinf-stream[report]" in capsys.readouterr().err
    assert sorted(p.name for p in (tmp_path / "energy-calibration").iterdir()) == ["pack.json", "report.json", "report.md"]
    assert ".png" not in (tmp_path / "energy-calibration" / "report.md").read_text()
