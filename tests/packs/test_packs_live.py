"""A draft scored, calibrated and asked again by a real (tiny, random) engine: the stored way and the live way agree."""

from __future__ import annotations

import csv
import json
import random
import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import ROOT
from tiny import make_tiny

from spinf_stream.cli import main
from spinf_stream.config import PackEntry, Settings
from spinf_stream.engine.live import open_live
from spinf_stream.engine.open import open_packs
from spinf_stream.packs.document import digest
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import from_doc, load
from spinf_stream.packs.stored import answers_of

WORDS = ["market", "match", "vote", "storm", "goal", "share", "law", "rain", "song", "chip"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    make_tiny(folder / "tiny")
    docs = [json.loads((ROOT / "packs" / name / "0.1.0.json").read_text("utf-8")) for name in ("reviews", "market-index")]
    make_tiny(folder / "wordy" / "tiny", words=sorted({o for d in docs for q in d["scoring"]["queries"] for o in q["options"]}))
    doc = {
        "pack": "my/live", "version": "1", "calibrated": False, "contexts": {"post": "Post by {who}:\n{X}\nEnd.", "plain": "{X}"},
        "parameters": {"who": {"default": "someone"}},
        "scoring": {"queries": [
            {"id": "is", "template": "\n\nSport:{?}", "options": [" yes", " no"]},
            {"id": "topic", "template": "\n\nOn {F}:{?}", "options": [" sport", " politics", " tech"], "combinations": [{"F": "a"}, {"F": "b"}]},
        ]},
        "reads": [
            {"id": "is", "query": "is", "kind": "pair", "category": "sport"},
            {"id": "a", "query": "topic", "F": "a", "kind": "option", "option": 0, "category": "sport"},
            {"id": "b", "query": "topic", "F": "b", "kind": "any", "category": "other"},
        ],
        "categories": {"sport": {}, "other": {}},
        "decision": {"mode": "max", "max": {}},
    }  # fmt: skip
    (folder / "draft.json").write_text(json.dumps(doc))
    rng = random.Random(1)
    rows = [
        {"id": f"r{i}", "text": " ".join(rng.choices(WORDS, k=8)) + f" {i}", "label": {"sport": i % 2 == 0, "other": i % 3 == 0}} for i in range(60)
    ]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def score(place: Path, pack: str, out: str, **entry: Any) -> list[dict[str, Any]]:
    flags = ["--model", str(place / "tiny"), "--cache-dir", str(place / "cache"), "--device", "cpu", "--quiet"]
    packs = json.dumps([{"id": "my/live", **entry}])
    assert main(["score", str(place / "data.jsonl"), "--packs", packs, "--pack-sources", str(place / pack), "--out", str(place / out), *flags]) == 0
    return [json.loads(line) for line in (place / out).read_text().splitlines()]


def test_from_draft_to_decisions(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafts = score(place, "draft.json", "draft.jsonl")
    assert {(e["calibrated"], e["categories"], e["decision"], e["context"]) for r in drafts for e in r["packs"]} == {(False, None, None, "post")}

    made = place / "made"
    flags = ["--model", str(place / "tiny"), "--cache-dir", str(place / "cache"), "--device", "cpu", "--no-plots", "--out", str(made)]
    assert main(["calibrate", str(place / "draft.json"), str(place / "data.jsonl"), *flags]) == 0
    pack = load(made / "pack.json")
    assert pack.calibrated and pack.model == drafts[0]["model"] and pack.doc["calibration"]["context"] == "post"

    live = score(place, "made/pack.json", "live.jsonl")
    for record in live:
        (entry,) = record["packs"]
        assert entry["calibrated"] is True and entry["digest"] == pack.digest and set(entry["categories"]) == {"sport", "other"}
        assert entry["decision"]["mode"] == "max"

    # the calibrated pack over the draft's stored scores decides as the live pass does, to the last bit
    capsys.readouterr()
    again = place / "again.jsonl"
    assert main(["packs", "evaluate", str(made / "pack.json"), str(place / "draft.jsonl"), "--out", str(again), "--from", str(place / "draft.json")]) == 0
    stored = [json.loads(line)["packs"] for line in again.read_text().splitlines()]
    assert stored == [r["packs"] for r in live]


def test_another_context_and_parameter_are_other_questions_to_the_model(place: Path) -> None:
    post, plain = score(place, "draft.json", "post.jsonl"), score(place, "draft.json", "plain.jsonl", context="plain")
    who = score(place, "draft.json", "who.jsonl", parameters={"who": "me"})
    assert all(a["scores"] != b["scores"] for a, b in zip(post, plain))
    assert all(a["scores"] != b["scores"] for a, b in zip(post, who))
    assert {r["packs"][0]["context"] for r in plain} == {"plain"}


REVIEWS = ROOT / "packs" / "reviews" / "0.1.0.json"


def rows(place: Path, name: str, count: int, seed: int) -> Path:
    """Rows r0, r1, ... whose texts differ from file to file."""
    rng = random.Random(seed)
    lines = [{"id": f"r{i}", "text": " ".join(rng.choices(WORDS, k=6)) + f" {seed} {i}", "label": {"positive": i % 2 == 0}} for i in range(count)]
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_text("\n".join(map(json.dumps, lines)) + "\n")
    return place / name


def calibrated(place: Path, pack: Path | str, data: Path, out: str, *more: str) -> int:
    flags = ["--model", str(place / "wordy" / "tiny"), "--cache-dir", str(place / "cache"), "--device", "cpu", "--no-plots", "--out", str(place / out)]
    return main(["calibrate", str(pack), str(data), *flags, "--allow-unlabelled", *more])


def test_an_official_draft_is_calibrated_under_a_name_of_ones_own_and_served(place: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    data = rows(place, "reviews.jsonl", 16, 2)
    assert calibrated(place, "spinf-stream/reviews", data, "mine") == 2
    assert "--id my/reviews" in capsys.readouterr().err and not (place / "mine").exists()
    assert calibrated(place, "spinf-stream/reviews", data, "mine", "--id", "spinf-stream/other") == 2
    assert calibrated(place, "spinf-stream/reviews", data, "mine", "--id", "My Reviews") == 2
    assert calibrated(place, "spinf-stream/reviews", data, "mine", "--id", "my/reviews") == 0
    made = load(place / "mine" / "pack.json")
    assert (made.id, made.calibrated, made.doc["scoring"]) == ("my/reviews", True, load(REVIEWS).doc["scoring"])
    assert "draft" not in made.doc["description"]

    settings = Settings(packs=(PackEntry("my/reviews"),), pack_sources=(str(place / "mine"),), cache_dir=str(place / "cache"))
    (served,) = open_packs(settings, made.model)
    # over the scores that its official draft made, by the line that the report gives
    assert f"pack.json scores-data.jsonl --set {next(iter(made.categories))}=0.8 --from spinf-stream/reviews@0.1.0" in (place / "mine" / "report.md").read_text()
    again = place / "mine" / "again.jsonl"
    call = ["packs", "evaluate", str(place / "mine" / "pack.json"), str(place / "mine" / "scores-data.jsonl"), "--out", str(again)]
    assert main([*call, "--from", "spinf-stream/reviews@0.1.0"]) == 0
    entries = [json.loads(line)["packs"][1] for line in again.read_text().splitlines()]
    assert len(entries) == 16 and {(e["id"], e["digest"], e["calibrated"]) for e in entries} == {("my/reviews", made.digest, True)}
    assert len({e["categories"]["positive"]["score"] for e in entries}) > 8
    assert (served.pack.digest, served.evaluator.judges) == (made.digest, True)
    assert caplog.records == []


def test_what_is_left_out_under_an_asked_name_is_said(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    edited = json.loads(REVIEWS.read_text("utf-8"))
    (tmp_path / "reviews.json").write_text(json.dumps({**{k: v for k, v in edited.items() if k != "digest"}, "version": "9"}))
    settings = Settings(packs=(PackEntry("reviews"),), pack_sources=(str(tmp_path),), cache_dir=str(place / "cache"), model=str(place / "wordy" / "tiny"))
    (served,) = open_packs(settings, "tiny")
    assert served.pack.version == "0.1.0"
    (said,) = caplog.records
    assert (said.levelname, said.name) == ("WARNING", "spinf_stream.engine.open")
    assert "spinf-stream/reviews" in said.message and str(tmp_path) in said.message and "belong to the official" in said.message
    open_packs(msgspec.structs.replace(settings, packs=(PackEntry("brand"),)), "tiny")
    assert len(caplog.records) == 1, "nothing that concerns the packs that are asked"
    assert main(["packs", "validate", str(tmp_path / "reviews.json")]) == 0
    assert "note: $.pack: names under spinf-stream/" in capsys.readouterr().out
    assert main(["packs", "validate", "--strict", str(tmp_path / "reviews.json")]) == 1
    assert main(["packs", "validate", "--strict", str(REVIEWS)]) == 0

    # a file that cannot be read may be a newer version of the pack beside it, at a start and at a reload
    (tmp_path / "mine.json").write_text(json.dumps({**edited, "pack": "my/reviews", "digest": digest({**edited, "pack": "my/reviews"})}))
    (tmp_path / "newer.json").write_text('{"pack": "my/reviews", "scoring"')
    caplog.clear()
    live = open_live(msgspec.structs.replace(settings, packs=(PackEntry("my/reviews"),), device="cpu"))
    assert [r.name for r in caplog.records if "newer.json" in r.message] == ["spinf_stream.engine.open"]
    caplog.clear()
    assert live.reload(lambda batch: live.engine.collect(live.engine.submit(batch))) == (False, [])
    assert any("newer.json" in r.message and r.levelname == "WARNING" for r in caplog.records)


def test_an_edited_copy_of_an_official_pack_is_scored_as_it_stands(place: Path, tmp_path: Path) -> None:
    doc = {k: v for k, v in json.loads(REVIEWS.read_text("utf-8")).items() if k != "digest"}
    for query in doc["scoring"]["queries"]:
        query["template"] = "\n\nIn a few words," + query["template"].lstrip("\n")
    (tmp_path / "edited.json").write_text(json.dumps(doc))
    edited, data = load(tmp_path / "edited.json"), rows(place, "edited.jsonl", 16, 3)
    assert calibrated(place, tmp_path / "edited.json", data, "edited", "--id", "my/edited") == 0
    stored = [json.loads(line) for line in (place / "edited" / "scores-data.jsonl").read_text().splitlines()]
    assert {e["digest"] for r in stored for e in r["packs"]} == {edited.digest}

    (tmp_path / "own.json").write_text(json.dumps({**doc, "pack": "my/edited"}))
    asked = json.dumps([{"id": "my/edited"}])
    flags = ["--packs", asked, "--pack-sources", str(tmp_path), "--out", str(tmp_path / "s.jsonl"), "--model", str(place / "wordy" / "tiny"), "--cache-dir", str(place / "cache")]
    assert main(["score", str(data), *flags, "--device", "cpu", "--quiet"]) == 0
    for ours, its in zip(stored, map(json.loads, (tmp_path / "s.jsonl").read_text().splitlines())):
        assert [[o["p"] for c in q["combinations"] for o in c["options"]] for q in ours["scores"]] == [
            pytest.approx([o["p"] for c in q["combinations"] for o in c["options"]], abs=1e-5) for q in its["scores"]
        ]


def test_scores_of_another_file_are_no_scores_of_the_pack(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    doc = load(place / "draft.json").doc
    other = {**doc, "contexts": {**doc["contexts"], "post": "Said by {who}:\n{X}\nEnd."}}
    monkeypatch.setattr("spinf_stream.packs.sources.InHand.load", lambda *_: from_doc(other))
    assert calibrated(place, place / "draft.json", place / "data.jsonl", "wrong") == 1
    assert from_doc(other).digest in (said := capsys.readouterr().err) and "another run" in said and not (place / "wrong" / "pack.json").exists()


def test_files_of_rows_share_ids_and_names_and_each_meets_its_own_scores(place: Path) -> None:
    """The fit over train/data.jsonl is the same beside test/data.jsonl, whose texts have the same ids, as by itself."""
    train, test, usual = (rows(place, f"{name}/data.jsonl", 16, seed) for name, seed in (("train", 4), ("test", 5), ("usual", 6)))
    apart = [rows(place, f"apart-{name}.jsonl", 16, seed) for name, seed in (("train", 4), ("test", 5), ("usual", 6))]
    for path in apart:
        path.write_text(path.read_text().replace('"id": "r', f'"id": "{path.stem}-'))
    for folder, files in (("equal-ids", (train, test, usual)), ("distinct", apart)):
        assert calibrated(place, REVIEWS, files[0], folder, "--test", str(files[1]), "--unlabelled", str(files[2]), "--id", "my/sharing") == 0
        names = {p.name for p in (place / folder).glob("*.jsonl")}
        assert names == {"scores-data.jsonl", "scores-test.jsonl", "scores-unlabelled.jsonl"}
    one, two = (load(place / f / "pack.json") for f in ("equal-ids", "distinct"))
    assert [(r.mean, r.sd) for r in one.reads] == [pytest.approx((r.mean, r.sd), abs=1e-4) for r in two.reads]
    a, b = (json.loads((place / f / "report.json").read_text()) for f in ("equal-ids", "distinct"))
    assert (a["fitted_on"], a["tested_on"], a["normal"]) == (16, 16, 16)
    assert a["categories"][0]["before"]["brier"] == pytest.approx(b["categories"][0]["before"]["brier"], abs=1e-4)
    # every file's scores are of its own texts
    texts = {use: [json.loads(line)["origin"]["topic"] for line in (place / "equal-ids" / f"scores-{use}.jsonl").read_text().splitlines()] for use in ("data", "test")}
    assert texts == {"data": ["data.jsonl"] * 16, "test": ["data.jsonl"] * 16}
    assert (place / "equal-ids" / "scores-data.jsonl").read_bytes() != (place / "equal-ids" / "scores-test.jsonl").read_bytes()


def test_compact_records_of_several_packs_serve_as_full_ones_do(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Decisions taken again, a fit and an index over compact records of a question file and two packs."""
    (tmp_path / "q.json").write_text('{"queries": [{"id": "own", "template": "\\n\\nIt is:{?}", "options": [" yes", " no"]}]}')
    draft = json.loads((place / "draft.json").read_text())
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "one.json").write_text(json.dumps({**draft, "pack": "my/one", "contexts": {"plain": "{X}"}}))
    (tmp_path / "packs" / "live.json").write_text(json.dumps(draft))
    entries = json.dumps([{"id": "my/one"}, {"id": "my/live"}, {"id": "my/live", "context": "plain"}])
    flags = ["--model", str(place / "tiny"), "--cache-dir", str(place / "cache"), "--device", "cpu", "--quiet", "--pack-sources", str(tmp_path / "packs")]
    data, found = str(place / "data.jsonl"), {}
    for form in ("full", "compact"):
        stored, made = str(tmp_path / f"{form}.jsonl"), tmp_path / form
        assert main(["score", data, "--questions", str(tmp_path / "q.json"), "--packs", entries, "--scores-format", form, "--out", stored, *flags]) == 0
        assert main(["calibrate", str(place / "draft.json"), data, "--context", "plain", "--scores", stored, "--out", str(made), "--no-plots"]) == 0
        again = tmp_path / f"{form}-again.jsonl"
        assert main(["packs", "evaluate", str(made / "pack.json"), stored, "--from", str(place / "draft.json"), "--out", str(again)]) == 0
        table = tmp_path / f"{form}.csv"
        assert main(["index", stored, "--time", "scored_at", "--raw", str(place / "draft.json"), "--csv", str(table)]) == 0
        found[form] = [json.loads(line)["packs"] for line in again.read_text().splitlines()], list(csv.DictReader(table.open()))
    (full, rows), (compact, compact_rows) = found["full"], found["compact"]
    assert len(full) == len(compact) == 60
    for a, b in zip(full, compact):
        assert [(e["id"], e["context"], e["calibrated"]) for e in b] == [("my/one", "plain", False), ("my/live", "post", True), ("my/live", "plain", True)]
        for one, two in zip(a[1:], b[1:]):
            assert two["categories"]["sport"]["score"] == pytest.approx(one["categories"]["sport"]["score"], abs=1e-3)
    assert [(r["context"], r["category"], r["articles"]) for r in rows] == [(c, x, "60") for c in ("plain", "post") for x in ("other", "sport")]
    for a, b in zip(rows, compact_rows):
        assert float(b["mean"]) == pytest.approx(float(a["mean"]), abs=1e-5)


def test_the_market_index_from_articles_to_a_series(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The official draft asked of articles of three days: its own probabilities, folded into an index with its band."""
    rng = random.Random(9)
    articles = [{"id": f"n{i}", "text": " ".join(rng.choices(WORDS, k=6)) + f" {i}", "published_at": f"2026-03-0{1 + i % 3}T08:00:00Z"} for i in range(12)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, articles)) + "\n")
    stored, table, png = tmp_path / "s.jsonl", tmp_path / "i.csv", tmp_path / "i.png"
    flags = ["--model", str(place / "wordy" / "tiny"), "--cache-dir", str(place / "cache"), "--device", "cpu", "--quiet"]
    assert main(["score", str(tmp_path / "a.jsonl"), "--packs", "market-index", "--out", str(stored), *flags]) == 0
    capsys.readouterr()
    assert main(["index", str(stored), "--csv", str(table)]) == 1
    assert "--raw PACK" in capsys.readouterr().err
    call = ["index", str(stored), "--raw", "market-index", "--difference", "oil_up-oil_down", "--csv", str(table), "--png", str(png)]
    assert main(call) == 0

    pack = load(ROOT / "packs" / "market-index" / "0.1.0.json")
    by_day: dict[str, list[float]] = {}
    for line in stored.read_text().splitlines():
        (answers,) = answers_of(json.loads(line), pack)
        raw = dict(zip(pack.categories, Evaluator(pack).raw(answers.p[None])[0].tolist()))
        by_day.setdefault(json.loads(line)["published_at"][:10], []).append(raw["oil_up"] - raw["oil_down"])
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 3 * (len(pack.categories) + 1) and {r["kind"] for r in rows} == {"raw"}
    for row, (day, values) in zip(rows, sorted(by_day.items())):
        half = 1.96 * statistics.stdev(values) / len(values) ** 0.5
        assert (row["day"], row["category"], row["articles"]) == (day, "oil_up-oil_down", "4")
        got = [float(row[k]) for k in ("mean", "low", "high")]
        assert got == pytest.approx([statistics.mean(values), statistics.mean(values) - half, statistics.mean(values) + half], abs=2e-5)
    assert png.read_bytes().startswith(b"\x89PNG")
