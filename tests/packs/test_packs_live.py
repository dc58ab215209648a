"""A draft scored, calibrated and asked again by a real (tiny, random) engine: the stored way and the live way agree."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tiny import make_tiny

from spinf_stream.cli import main
from spinf_stream.packs.file import load

WORDS = ["market", "match", "vote", "storm", "goal", "share", "law", "rain", "song", "chip"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    make_tiny(folder / "tiny")
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
