"""`spinf-stream calibrate --scores`: rows and stored scores meet by id alone, so ids and versions must be unmistakable."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from test_packs_calibrate import pack_doc, world

from spinf_stream.cli import main
from spinf_stream.packs.file import from_doc, load
from spinf_stream.packs.scored import read_scores, together
from spinf_stream.packs.stored import StoredError

PACK = from_doc(pack_doc())
ROWS, RECORDS = world(PACK, 240)


def jsonl(path: Path, items: list[dict[str, Any]]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(map(json.dumps, items)) + "\n")
    return str(path)


def made_by(version: str, digest: str) -> list[dict[str, Any]]:
    return [{**r, "packs": [{"id": "my/energy", "context": "plain", "version": version, "digest": digest}]} for r in RECORDS]


@pytest.fixture
def call(tmp_path: Path) -> list[str]:
    (tmp_path / "p.json").write_text(json.dumps(PACK.doc))
    return ["calibrate", str(tmp_path / "p.json"), jsonl(tmp_path / "d.jsonl", ROWS[:160]), "--out", str(tmp_path / "out"), "--no-plots"]


def test_an_id_of_two_files_with_two_texts_is_refused(call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = ["--scores", jsonl(tmp_path / "s.jsonl", RECORDS)]
    for flag in ("--test", "--unlabelled"):
        other = jsonl(tmp_path / "other" / "d.jsonl", [*ROWS[160:], {**ROWS[200], "id": "r3"}])
        assert main([*call, flag, other, *scores]) == 1
        said = capsys.readouterr().err
        assert "'r3'" in said and str(tmp_path / "other" / "d.jsonl") in said and "ids differ" in said
        same = jsonl(tmp_path / "other" / "d.jsonl", [*ROWS[160:], {**ROWS[3], "text": ROWS[3]["text"].upper() + "!"}])
        assert main([*call, flag, same, *scores]) == 0, "one text in two files is no mistake"
        capsys.readouterr()


def test_records_of_one_id_that_differ_are_refused(call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = copy.deepcopy(RECORDS[7])
    options = again["scores"][0]["combinations"][0]["options"]
    options[0]["p"] += 2e-5  # a second pass on a CPU
    assert main([*call, "--scores", jsonl(tmp_path / "s.jsonl", [*RECORDS, RECORDS[8], again])]) == 0
    options[0]["p"] = 1 - options[0]["p"]
    capsys.readouterr()
    assert main([*call, "--scores", jsonl(tmp_path / "s.jsonl", RECORDS), "--scores", jsonl(tmp_path / "t.jsonl", [again])]) == 1
    assert "'r7' has records with different answers" in capsys.readouterr().err


def test_scores_of_another_version_are_compared_first(call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*call, "--scores", jsonl(tmp_path / "s.jsonl", made_by("0.1.0", PACK.digest))]) == 0
    other = copy.deepcopy(pack_doc())
    other["version"], other["categories"]["oil"]["label"] = "0.0.9", "Crude"
    (tmp_path / "old.json").write_text(json.dumps(other))
    scores = ["--scores", jsonl(tmp_path / "s.jsonl", made_by("0.0.9", from_doc(other).digest))]
    capsys.readouterr()
    assert main([*call, *scores]) == 1
    assert "my/energy@0.0.9" in (said := capsys.readouterr().err) and "--from" in said
    assert main([*call, *scores, "--from", str(tmp_path / "old.json")]) == 0, "the same questions"
    renamed = ["calibrate", str(tmp_path / "own.json"), *call[2:], *scores]
    (tmp_path / "own.json").write_text(json.dumps({**pack_doc(), "pack": "my/own"}))
    assert main(renamed) == 1, "records know it by another name"
    assert main([*renamed, "--from", str(tmp_path / "old.json")]) == 0 and load(tmp_path / "out" / "pack.json").id == "my/own"
    other["scoring"]["queries"][0]["template"] = "\nIs that about {F}?\nAnswer:{?}"
    (tmp_path / "old.json").write_text(json.dumps(other))
    capsys.readouterr()
    assert main([*call, *scores, "--from", str(tmp_path / "old.json")]) == 1
    assert "the old answers are to another question" in capsys.readouterr().err
    assert main([*call, "--from", str(tmp_path / "old.json")]) == 2


def test_a_calibrated_pack_under_a_new_id_keeps_its_version(call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = ["--scores", jsonl(tmp_path / "s.jsonl", RECORDS)]
    assert main([*call, *scores]) == 0
    again = ["calibrate", str(tmp_path / "out" / "pack.json"), call[2], *scores, "--no-plots", "--out", str(tmp_path / "two")]
    assert main(again) == 2
    assert main([*again, "--id", "my/other"]) == 0
    assert load(tmp_path / "two" / "pack.json").label == "my/other@0.1.0"
    assert "--pack-sources pack.json --packs my/other" in (tmp_path / "two" / "report.md").read_text()


def test_lines_that_are_of_no_use_are_told_with_the_first_reason(call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = {**RECORDS[0], "id": "r900", "scores": RECORDS[0]["scores"][1:]}
    assert main([*call, "--scores", jsonl(tmp_path / "s.jsonl", [*RECORDS, short])]) == 0
    assert "1 lines of the scores could not be used (the first has no answer to the query 'is' of my/energy@0.1.0)" in capsys.readouterr().out


def test_models_do_not_mix_between_files() -> None:
    lines = [json.dumps(r).encode() for r in RECORDS[:5]]
    one, two = read_scores(lines, PACK), read_scores([line.replace(b'"toy"', b'"other"') for line in lines], PACK)
    assert together([one, one])[1:] == one[1:]
    with pytest.raises(StoredError, match="2 models"):
        together([one, two])
