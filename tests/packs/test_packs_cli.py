"""`spinf-stream packs`: diff, re-evaluation of stored records, and what the command prints."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLE_PACK

from spinf_stream.cli import main
from spinf_stream.packs.diff import diff
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import Pack, from_doc
from spinf_stream.packs.reevaluate import Reevaluator
from spinf_stream.packs.stored import StoredError, answers_of

DOC: dict[str, Any] = json.loads(EXAMPLE_PACK.read_text("utf-8"))


def edited(**at: Any) -> dict[str, Any]:
    """A copy with values set at dotted paths."""
    doc = copy.deepcopy(DOC)
    for path, value in at.items():
        *parents, last = path.split("__")
        here: Any = doc
        for key in parents:
            here = here[int(key) if isinstance(here, list) else key]
        here[last] = value
    return doc


def record(pack: Pack, p: np.ndarray, context: str = "wire", model: str = "spinf/gemma-4-12b-fp8") -> dict[str, Any]:
    """As the worker writes one."""
    logprob = np.log(p) - 0.1
    queries: dict[str, Any] = {}
    for prompt in pack.prompts:
        options = [
            {"text": t, "logprob": float(logprob[prompt.first + i]), "p": float(p[prompt.first + i]), "floor_p": None}
            for i, t in enumerate(prompt.options)
        ]
        queries.setdefault(prompt.query, []).append({"values": prompt.values, "options": options, "residual": 0.1, "floor_residual": None})
    scores = [{"id": q, "combinations": c, "pack": pack.id, "context": context} for q, c in queries.items()]
    scores.insert(0, {"id": "own", "combinations": []})
    entry = Evaluator(pack, context, (model,)).evaluate(p, logprob)
    return {"schema": "spinf-stream/scores/1", "id": "a", "outcome": "scored", "model": model, "scores": scores, "packs": [{"id": "other"}, entry]}


def answers(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([x / x.sum() for x in (rng.random(2), rng.random(2), rng.random(4))])


def test_stored_scores_give_the_same_entry_bit_for_bit() -> None:
    pack = from_doc(DOC)
    for seed in range(20):
        stored = record(pack, answers(seed))
        through_json = json.loads(json.dumps(stored))
        assert Reevaluator(pack).record(through_json) == stored


def test_new_thresholds_over_old_scores() -> None:
    pack = from_doc(DOC)
    work = Reevaluator(pack, {"mode": "per_category", "thresholds": {"finance": 0.0, "event": None}})
    got = work.record(record(pack, answers(1)))
    assert got["packs"][0] == {"id": "other"}
    assert got["packs"][1]["decision"]["categories"] == ["finance"]
    assert got["packs"][1]["categories"]["event"]["flagged"] is None
    assert work.counts["evaluated"] == 1


def test_records_that_do_not_answer_the_pack() -> None:
    pack = from_doc(DOC)
    good = record(pack, answers(2))
    assert answers_of({**good, "scores": []}, pack) == []
    assert answers_of(good, pack, "plain") == []
    bad = copy.deepcopy(good)
    bad["scores"][1]["combinations"].pop()
    with pytest.raises(StoredError, match="no answer to the query 'about'"):
        answers_of(bad, pack)
    bad = copy.deepcopy(good)
    bad["scores"][2]["combinations"][0]["options"][0]["text"] = " nothing"
    with pytest.raises(StoredError, match="other options"):
        answers_of(bad, pack)
    with pytest.raises(StoredError, match=r"\$\.scores"):
        answers_of({"scores": [{"id": 5}]}, pack)


def test_compact_records() -> None:
    pack = from_doc(DOC)
    p = answers(3)
    entry = Evaluator(pack).evaluate(p, np.log(p))
    import base64

    def floats(x: np.ndarray) -> str:
        return base64.b64encode(x.astype("<f4").tobytes()).decode()

    scores = {"options": 8, "prompts": 3, "logprob": floats(np.log(p)), "p": floats(p), "floor_p": "", "residual": "", "floor_residual": ""}
    (got,) = answers_of({"scores": scores, "packs": [entry]}, pack)
    assert got.context == "wire" and got.p == pytest.approx(p, abs=1e-7)
    with pytest.raises(StoredError, match="store full records"):
        answers_of({"scores": {**scores, "options": 9}, "packs": [entry]}, pack)
    assert answers_of({"scores": scores, "packs": []}, pack) == []

    # beside a question file and another context of the same pack: the parts say where its numbers are
    q, r = answers(4), np.arange(5) / 10
    parts = [{"options": 5, "prompts": 2}, *({"options": 8, "prompts": 3, "pack": pack.id, "context": c} for c in ("wire", "plain"))]
    all_p = np.concatenate([r, p, q])
    several = {**scores, "options": 21, "prompts": 8, "p": floats(all_p), "logprob": floats(np.log(all_p + 1e-9)), "parts": parts}
    got = answers_of({"scores": several, "packs": []}, pack)
    assert [g.context for g in got] == ["wire", "plain"]
    assert got[0].p == pytest.approx(p, abs=1e-7) and got[1].p == pytest.approx(q, abs=1e-7) and got[1].logprob == pytest.approx(np.log(q), abs=1e-5)
    (plain,) = answers_of({"scores": several, "packs": []}, pack, "plain")
    assert (plain.p == got[1].p).all()
    for wrong, text in (
        ({"parts": [{**parts[0], "options": 4}, *parts[1:]]}, "length"), ({"p": floats(p)}, "length"), ({"options": 22}, "length"),
        ({"parts": [{**parts[0], "options": 6}, {**parts[1], "options": 7}, parts[2]]}, "not those of demo/newsdesk@0.1.0"),
    ):  # fmt: skip
        with pytest.raises(StoredError, match=text):
            answers_of({"scores": {**several, **wrong}, "packs": []}, pack)
    assert answers_of({"scores": {**several, "parts": parts[:1]}, "packs": [entry]}, pack) == []


@pytest.mark.parametrize(
    ("doc", "kept", "same", "again", "lost"),
    [
        (edited(), ["about", "event"], ["finance", "event", "harm"], [], []),
        (edited(categories__harm__threshold=0.7), ["about", "event"], ["finance", "event", "harm"], [], []),
        (edited(categories__harm__platt=[2, 0]), ["about", "event"], ["finance", "event"], ["harm"], []),
        (edited(reads__3__mean=0.0), ["about", "event"], ["finance", "harm"], ["event"], []),
        (edited(scoring__queries__0__template="\nIs it about {F}?\nAnswer:{?}"), ["event"], ["event", "harm"], [], ["finance"]),
        (edited(scoring__empty_floor=True), ["about", "event"], ["finance", "event", "harm"], [], []),
        (edited(scoring__case_insensitive=True), [], [], [], ["finance", "event", "harm"]),
        (edited(model="other"), ["about", "event"], [], ["finance", "event", "harm"], []),
        (edited(contexts__wire="{X}!"), ["about", "event"], ["finance", "event", "harm"], [], []),
        (edited(contexts={"new": "Post: {X}"}), ["about", "event"], [], [], ["finance", "event", "harm"]),
    ],
)  # fmt: skip
def test_diff_says_which_scores_stay_comparable(doc: dict, kept: list, same: list, again: list, lost: list) -> None:
    d = diff(from_doc(DOC), from_doc(doc))
    assert (d.questions_kept, d.categories_kept, d.categories_recomputed, d.categories_lost) == (kept, same, again, lost)
    assert bool(d.changes) == (doc != DOC)


def test_diff_of_contexts() -> None:
    assert diff(from_doc(DOC), from_doc(edited(contexts__wire="{X}!"))).contexts_kept == ["plain"]
    assert diff(from_doc(DOC), from_doc(edited(parameters__desk__default="metals"))).contexts_kept == ["plain"]


@pytest.fixture
def pack_file(tmp_path: Path) -> Path:
    path = tmp_path / "newsdesk.json"
    path.write_text(json.dumps(DOC))
    return path


def test_the_commands(pack_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = ["--pack-sources", str(tmp_path), "--cache-dir", str(tmp_path)]
    assert main(["packs", "list", *sources]) == 0
    assert ["demo/newsdesk", "0.1.0"] in [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert main(["packs", "show", "demo/newsdesk@0.1.0", "--questions", *sources]) == 0
    assert "F = 'company results'" in capsys.readouterr().out
    assert main(["packs", "validate", str(pack_file)]) == 0
    assert main(["packs", "validate", str(tmp_path)]) == 0
    assert main(["packs", "new", "my/pack", "--categories", "oil,gas", "--out", str(tmp_path / "new.json")]) == 0
    assert main(["packs", "new", "my/pack", "--categories", "oil,gas", "--out", str(tmp_path / "new.json")]) == 2
    assert main(["packs", "new", "Bad Name", "--categories", "oil"]) == 1
    assert main(["packs", "diff", str(pack_file), str(pack_file)]) == 0
    capsys.readouterr()
    assert main(["packs", "show", "my/none", *sources]) == 1
    assert "none of the sources" in capsys.readouterr().err


def test_validate_tells_every_fault_and_fails_on_a_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, locked = tmp_path / "broken.json", tmp_path / "locked.json"
    broken.write_text(json.dumps(edited(reads__0__sd=0, decision__mode="x")))
    locked.write_text(json.dumps(edited(reads__0__sd=1.0)))
    assert main(["packs", "validate", str(broken), str(locked)]) == 1
    out = capsys.readouterr().out
    assert "$.reads[0].sd" in out and "$.decision.mode" in out and "lock mismatch" in out


def test_evaluate_over_a_file(pack_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = from_doc(DOC)
    stored, out = tmp_path / "scores.jsonl", tmp_path / "again.jsonl"
    rows = [record(pack, answers(seed)) for seed in range(10)]
    stored.write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert main(["packs", "evaluate", str(pack_file), str(stored), "--out", str(out)]) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    assert main(["packs", "evaluate", str(pack_file), str(stored), "--out", str(out), "--mode", "max", "--threshold", "0"]) == 0
    assert all(json.loads(line)["packs"][1]["decision"]["unsafe"] for line in out.read_text().splitlines())
    assert "10 unsafe" in capsys.readouterr().err
    assert main(["packs", "evaluate", str(pack_file), str(stored), "--set", "none=0.5"]) == 1
    assert "$.decision.thresholds.none" in capsys.readouterr().err
    other = tmp_path / "other.json"
    other.write_text(json.dumps(edited(contexts__wire="{X}?")))
    assert main(["packs", "evaluate", str(other), str(stored), "--out", str(out), "--from", str(pack_file)]) == 1
    assert "$.contexts.wire" in capsys.readouterr().err
    stored.write_text("not json\n" + json.dumps(rows[0]) + "\n")
    assert main(["packs", "evaluate", str(pack_file), str(stored), "--out", str(out)]) == 1
    assert len(out.read_text().splitlines()) == 1
