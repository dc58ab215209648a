"""Daily series, and the drift figure."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLE_PACK

from spinf_stream.cli import main
from spinf_stream.packs.drift import LEAST, Drift, from_quantiles, from_scores, psi
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import from_doc
from spinf_stream.packs.index import Index, Offsets, day_of

DOC: dict[str, Any] = json.loads(EXAMPLE_PACK.read_text("utf-8"))


def record(offset: int, score: float, flagged: bool | None, **more: Any) -> dict[str, Any]:
    entry = {"id": "my/p", "version": "1", "context": "plain", "calibrated": True, "categories": {"oil": {"score": score, "percentile": None, "flagged": flagged}}}
    origin = {"topic": "articles", "partition": 0, "offset": offset, "timestamp": 1_700_000_000_000}
    return {"id": str(offset), "outcome": "scored", "origin": origin, "published_at": "2026-03-01T10:00:00Z", "packs": [entry], **more}


def only(index: Index) -> dict[str, Any]:
    (row,) = index.rows()
    return row


def test_a_days_figures_are_those_of_its_articles() -> None:
    rng = random.Random(1)
    scores = [rng.random() for _ in range(200)]
    index = Index()
    for i, s in enumerate(scores):
        index.record(record(i, s, s > 0.7))
    row = only(index)
    mean, se = np.mean(scores), np.std(scores, ddof=1) / math.sqrt(200)
    assert (row["articles"], row["judged"], row["flagged"]) == (200, 200, sum(s > 0.7 for s in scores))
    assert (row["mean"], row["low"], row["high"]) == pytest.approx((mean, mean - 1.96 * se, mean + 1.96 * se), rel=1e-4)
    assert row["share_low"] < row["share"] == row["flagged"] / 200 < row["share_high"]


def test_the_bands_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(2)
    held = np.zeros(2)
    for _ in range(400):
        index = Index()
        for i in range(60):
            s = float(rng.beta(2, 5))
            index.record(record(i, s, s > 0.4))
        row = only(index)
        truth = 2 / 7, 1 - 0.76672  # mean of beta(2, 5), and its tail above 0.4
        held += [row["low"] <= truth[0] <= row["high"], row["share_low"] <= truth[1] <= row["share_high"]]
    assert ((held / 400) > 0.91).all() and ((held / 400) < 0.985).all()


def pair(offset: int, up: float, down: float, **more: Any) -> dict[str, Any]:
    """Of two packs in one record, so that a difference may not cross them."""
    of = [("my/p", {"oil-price-up": up, "down": down, "flat": 0.5}), ("my/q", {"down": 1.0})]
    packs = [
        {"id": name, "version": "1", "context": "plain", "categories": {c: {"score": s, "percentile": None, "flagged": None} for c, s in scores.items()}}
        for name, scores in of
    ]
    return record(offset, 0, None, packs=packs, **more)


def test_a_difference_has_the_band_of_its_articles_not_of_two_series() -> None:
    rng = np.random.default_rng(8)
    mood = rng.random(150) * 0.5  # what a text does to every answer
    up, down = mood + rng.random(150) * 0.1, mood + rng.random(150) * 0.1
    index = Index(differences=["oil-price-up-down", "flat-none"])
    for i, (u, d) in enumerate(zip(up.tolist(), down.tolist())):
        index.record(pair(i, u, d))
    index.record(pair(900, 0.9, 0.1, published_at="2026-03-02T00:00:00Z"))
    rows = index.rows()
    assert [(r["pack"], r["category"], r["day"]) for r in rows[:2]] == [("my/p", "oil-price-up-down", f"2026-03-0{i}") for i in (1, 2)]
    one, two = rows[:2]
    se = np.std(up - down, ddof=1) / math.sqrt(150)
    assert one["mean"] == pytest.approx((up - down).mean()) and (one["articles"], one["judged"], one["kind"]) == (150, 0, "calibrated")
    assert (one["low"], one["high"]) == pytest.approx((one["mean"] - 1.96 * se, one["mean"] + 1.96 * se), rel=1e-3)
    apart = {r["category"]: r["high"] - r["low"] for r in rows if r["day"] == "2026-03-01" and r["pack"] == "my/p"}
    assert apart["oil-price-up-down"] < 0.4 * math.hypot(apart["oil-price-up"], apart["down"]), "what moves both cancels out"
    assert two["mean"] == pytest.approx(0.8) and math.isnan(two["low"])
    assert index.without_figures() == ["flat-none"]


def test_differences_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, table, png = tmp_path / "s.jsonl", tmp_path / "i.csv", tmp_path / "i.png"
    days = [f"2026-03-{1 + i % 5:02}T00:00:00Z" for i in range(40)]
    source.write_text("\n".join(json.dumps(pair(i, i / 40, i / 50, published_at=day)) for i, day in enumerate(days)))
    call = ["index", str(source), "--csv", str(table), "--png", str(png), "--only", "my/p"]
    assert main(call) == 0
    without = png.read_bytes()
    assert main([*call, "--difference", "oil-price-up-down", "--difference", "down-flat"]) == 0
    rows = list(csv.DictReader(table.open()))
    assert [r["category"] for r in rows[:10]] == ["down-flat"] * 5 + ["oil-price-up-down"] * 5
    assert (rows[5]["mean"], rows[5]["judged"], rows[5]["share"]) == (f"{np.mean([i / 40 - i / 50 for i in range(0, 40, 5)]):.6f}", "0", "")
    assert len(rows) == 25 and png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > len(without), "two panels more"
    capsys.readouterr()
    assert main([*call, "--difference", "oil"]) == 2 and "UP-DOWN" in capsys.readouterr().err
    assert main([*call, "--difference", "down-none"]) == 1 and "no record has both" in capsys.readouterr().err
    assert main([*call, "--raw", "spinf-stream/market-index", "--difference", "oil_up-oil_dwn"]) == 2
    assert "oil_down" in capsys.readouterr().err


def test_the_help_shows_the_pipe_from_the_topic(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["index", "--help"])
    assert "spinf-stream tail --from-beginning --json | spinf-stream index" in capsys.readouterr().out


def test_what_is_left_out_is_counted() -> None:
    index = Index(duplicates=False)
    index.line(b"not json")
    index.line(json.dumps(record(0, 0.5, None)).encode())
    index.line(json.dumps(record(0, 0.5, None)).encode())  # at least once
    index.line(json.dumps(record(1, 0.5, None, outcome="duplicate")).encode())
    index.line(json.dumps(record(2, 0.5, None, outcome="expired")).encode())
    index.line(json.dumps(record(3, 0.5, None, published_at=None)).encode())
    index.line(json.dumps(record(4, 0.5, None, packs=[])).encode())
    index.line(json.dumps(record(5, 0.5, None, packs=[{"categories": {"oil": {}}}])).encode())
    assert index.left_out == {
        "unreadable": 2, "written twice": 1, "outcome duplicate": 1, "outcome expired": 1, "no published_at": 1, "no category scores": 1,
    }  # fmt: skip
    row = only(index)
    assert index.articles == row["articles"] == 1 and row["judged"] == 0 and math.isnan(row["share"]) and math.isnan(row["low"])
    copies = Index()
    copies.record(record(0, 0.2, None))
    copies.record(record(1, 0.4, None, outcome="duplicate"))  # a syndicated copy is published twice and counts twice
    assert only(copies)["articles"] == 2


@pytest.mark.parametrize(
    ("value", "day"),
    [
        ("2026-03-01T23:30:00-02:00", dt.date(2026, 3, 2)), ("2026-03-01T23:30:00Z", dt.date(2026, 3, 1)), ("2026-03-01", dt.date(2026, 3, 1)),
        ("2026-03-01 05:00", dt.date(2026, 3, 1)), ("0001-01-01T00:00:00+10:00", None), ("yesterday", None), (5, None), (None, None),
    ],
)  # fmt: skip
def test_days(value: Any, day: dt.date | None) -> None:
    assert day_of({"published_at": value}, "published_at") == day


def test_days_of_kafka_timestamps() -> None:
    assert day_of(record(0, 0, None), "timestamp") == dt.date(2023, 11, 14)
    for ms in (-1, None, True, 10**18):
        assert day_of({"origin": {"timestamp": ms}}, "timestamp") is None


def test_offsets_are_a_set_in_ranges() -> None:
    rng = random.Random(3)
    offsets, seen = Offsets(), set()
    for _ in range(5_000):
        o = rng.randrange(400)
        assert offsets.add(o) is (o not in seen)
        seen.add(o)
    assert len(offsets._starts) == 1


def test_a_drafts_own_probabilities() -> None:
    doc = {**DOC, "calibrated": False}
    pack = from_doc(doc)
    p = np.array([0.9, 0.1, 0.02, 0.98, 0.2, 0.7, 0.06, 0.04])
    scores: dict[str, Any] = {}
    for prompt in pack.prompts:
        options = [{"text": t, "logprob": -1.0, "p": float(p[prompt.first + i]), "floor_p": None} for i, t in enumerate(prompt.options)]
        scores.setdefault(prompt.query, []).append({"values": prompt.values, "options": options, "residual": 0.1, "floor_residual": None})
    queries = [{"id": q, "combinations": c, "pack": pack.id, "context": "wire"} for q, c in scores.items()]
    index = Index(raw=pack)
    index.record(record(0, 0, None, packs=[], scores=queries))
    got = {r["category"]: (r["mean"], r["kind"]) for r in index.rows()}
    assert got["finance"] == (pytest.approx(((0.9 + 0.7) / 2 + 0.98) / 2), "raw")
    assert got["event"][0] == pytest.approx(0.8) and got["harm"][0] == pytest.approx(0.1)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(4)
    lines = []
    for i in range(600):
        s = min(1.0, max(0.0, rng.gauss(0.3 + 0.3 * (i // 20 > 14), 0.1)))
        day = (dt.date(2026, 3, 1) + dt.timedelta(i // 20)).isoformat()
        lines.append(json.dumps(record(i, s, s > 0.5, published_at=day + "T12:00:00Z")))
    source, table, png = tmp_path / "s.jsonl", tmp_path / "i.csv", tmp_path / "i.png"
    source.write_text("\n".join(lines))
    assert main(["index", str(source), "--csv", str(table), "--png", str(png)]) == 0
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 30 and rows[0]["day"] == "2026-03-01" and rows[0]["articles"] == "20"
    assert float(rows[29]["low"]) > float(rows[0]["high"])
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 5_000
    assert "600 articles, 30 rows" in capsys.readouterr().err
    assert main(["index", str(source), "--only", "my/other"]) == 1
    assert main(["index", str(tmp_path / "none.jsonl")]) == 2


# drift


def entry(score: float) -> dict[str, Any]:
    return {"id": "demo/newsdesk", "context": "wire", "categories": {"finance": {"score": score}, "event": {"score": 0.5}}}


def test_psi_of_shares() -> None:
    base = from_quantiles([0, 0.5, 1], [0, 0.5, 1], 2)
    assert base is not None and base.shares.tolist() == [0.5, 0.5]
    assert psi(base, [50_000, 50_000]) == pytest.approx(0, abs=1e-9)
    assert psi(base, [800_000, 200_000]) == pytest.approx(0.3 * math.log(1.6) - 0.3 * math.log(0.4), abs=1e-4)
    assert math.isfinite(psi(base, [100, 0])) and psi(base, [100, 0]) > 1


def test_quantiles_with_ties_and_points() -> None:
    base = from_quantiles([0, 0.3, 0.6, 1], [0.1, 0.2, 0.2, 0.9])
    assert base is not None and base.shares.sum() == pytest.approx(1) and (np.diff(base.edges) > 0).all()
    point = from_quantiles([0, 1], [0.4, 0.4])
    assert point is not None and point.shares.tolist() == pytest.approx([0.1, 0.9])
    assert from_scores([0.5] * (LEAST - 1)) is None


def test_chance_stays_low_and_a_shift_shows() -> None:
    rng = np.random.default_rng(5)
    base = from_scores(rng.beta(2, 5, 50_000).tolist())
    assert base is not None

    def figure(scores: np.ndarray) -> float:
        return psi(base, np.bincount([base.group(s) for s in scores], minlength=len(base.shares)).tolist())

    assert max(figure(rng.beta(2, 5, 2_000)) for _ in range(20)) < 0.02
    assert 0.1 < figure(rng.beta(2.6, 5, 2_000)) < 0.25 < figure(rng.beta(4, 5, 2_000))


def test_the_live_figure() -> None:
    pack = from_doc(DOC)
    drift = Drift(window=300)
    drift.watch([(pack, "wire")])
    key = ("demo/newsdesk", "wire", "finance")
    q = pack.categories["finance"].normal_quantiles
    assert q is not None
    rng = np.random.default_rng(6)
    usual = np.interp(rng.random(300), q.levels, q.values)
    for n, s in enumerate(usual):
        assert (key in drift.figures()) is (n >= LEAST)
        drift.add([entry(float(s)), {"id": "x", "context": "y", "categories": None}])
    assert set(drift.figures()) == {key}  # `event` has no quantiles
    assert drift.figures()[key] < 0.1
    drift.watch([(pack, "wire")])
    assert drift.figures()[key] < 0.1  # a reload of the same pack keeps the window
    for _ in range(300):
        drift.add([entry(0.95)])
    assert drift.figures()[key] > 1
    drift.watch([])
    assert drift.figures() == {}


def test_the_live_figure_takes_real_entries() -> None:
    pack = from_doc(DOC)
    ev = Evaluator(pack)
    drift = Drift()
    drift.watch([(pack, ev.context)])
    p = np.array([0.9, 0.1, 0.02, 0.98, 0.2, 0.7, 0.06, 0.04])
    for _ in range(LEAST):
        drift.add([ev.evaluate(p, np.log(p))])
    assert len(drift.figures()) == 1
