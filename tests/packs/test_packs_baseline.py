"""`spinf-stream packs baseline`: what is counted, what is left out, and what a faulty file is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from spinf_stream.cli import main
from spinf_stream.errors import UsageError
from spinf_stream.packs import baseline
from spinf_stream.packs.drift import LEAST, Key


def line(score: float | None, offset: int, outcome: str = "scored", category: str = "finance") -> bytes:
    categories = None if score is None else {category: {"score": score}}
    return json.dumps({
        "outcome": outcome, "system_fingerprint": "fp_1", "origin": {"topic": "articles", "partition": 0, "offset": offset},
        "packs": [{"id": "my/pack", "context": "wire", "categories": categories}],
    }).encode()  # fmt: skip


def test_what_is_counted() -> None:
    scores = np.random.default_rng(3).beta(2, 5, 400)
    lines = [line(s, i) for i, s in enumerate(scores)]
    lines += [line(0.99, 7), line(0.99, 900, "duplicate"), line(None, 901), b"{", b"[]", line(0.5, 902, category="rare")]
    made = baseline.record(lines)
    [series] = made.file.series
    assert (series.pack, series.context, series.category, series.kind, series.articles) == ("my/pack", "wire", "finance", "score", 400)
    assert np.allclose(series.shares, 0.1) and np.allclose(series.edges, np.quantile(scores, np.arange(1, 10) / 10))
    assert made.few == {"my/pack wire rare": 1} and made.file.system_fingerprints == ["fp_1"]
    assert made.left_out == {"written twice": 1, "outcome duplicate": 1, "no category scores": 1, "unreadable": 2}


def test_the_file_comes_back_as_it_was(tmp_path: Path) -> None:
    made = baseline.record([line(i / LEAST, i) for i in range(LEAST)]).file
    (tmp_path / "b.json").write_bytes(msgspec.json.encode(made))
    [(key, recorded)] = baseline.read(str(tmp_path / "b.json")).items()
    assert key == Key("my/pack", "wire", "finance") and not recorded.raw
    assert recorded.baseline.edges.tolist() == made.series[0].edges and recorded.baseline.shares.tolist() == made.series[0].shares
    assert baseline.read("") == {}


def series(**more: Any) -> dict[str, Any]:
    return {"pack": "a/b", "context": "c", "category": "d", "kind": "raw", "articles": 200, "edges": [0.5], "shares": [0.5, 0.5], **more}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "make it with `spinf-stream packs baseline`"),
        ({"schema": "spinf-stream/scores/1", "system_fingerprints": [], "series": []}, "$.schema"),
        ([series(edges=[0.5, 0.5], shares=[0.4, 0.3, 0.3])], "series[0] (a/b c d) needs ascending edges"),
        ([series(shares=[0.5, 0.6])], "sum to 1"),
        ([series(shares=[1.0], edges=[])], "needs ascending edges"),
        ([series(edges=["x"])], "$.series[0].edges[0]"),
        ([series(), series()], "series[1] (a/b c d) stands there twice"),
    ],
)
def test_a_faulty_file_is_refused_with_its_place(document: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if isinstance(document, list):
        document = {"schema": baseline.SCHEMA, "system_fingerprints": [], "series": document}
    path = tmp_path / "b.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(UsageError, match="drift_baseline"):
        baseline.read(str(path))
    assert main(["worker", "--drift-baseline", str(path)]) == 2
    assert says in capsys.readouterr().err


def test_a_missing_file_and_an_empty_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--drift-baseline", str(tmp_path / "none.json")]) == 2
    assert "none.json: No such file" in capsys.readouterr().err
    (tmp_path / "scores.jsonl").write_bytes(line(0.5, 1) + b"\n")
    assert main(["packs", "baseline", str(tmp_path / "scores.jsonl"), "--out", str(tmp_path / "b.json")]) == 1
    said = capsys.readouterr().err
    assert "too few articles for 1 categories, at least 200 are needed and 1 are there: my/pack wire finance" in said and "nothing to record\n" in said
    assert not (tmp_path / "b.json").exists()
