"""Score drift from a real scorer to the gauge: a tiny model calibrated on its own traffic, then asked about other texts;
a draft, whose own probabilities are followed from a recorded baseline; and another model below the same pack, whose scores
nobody may see and whose drift everybody should. With a clock: what changes shows within an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import EXAMPLE_PACK
from fakes import FakeScorer
from ops_files import alerts
from tiny import make_tiny

from spinf_stream.cli import main
from spinf_stream.config import PackEntry, Settings
from spinf_stream.engine.open import open_scorer
from spinf_stream.engine.scorer import record
from spinf_stream.engine.scoring import ArticleScorer
from spinf_stream.metrics import PREFIX, Metrics
from spinf_stream.packs import baseline
from spinf_stream.packs.drift import LEAST, Baseline, Drift, Key, Recorded
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import from_doc
from spinf_stream.packs.stored import answers_in
from spinf_stream.records import JSON, Answer, Article, Origin, encode
from spinf_stream.stream import asked, drift

PACK = from_doc(json.loads(EXAMPLE_PACK.read_text("utf-8")))
ALERT = next(a for a in alerts() if a["alert"] == "ScoreDrift")
THRESHOLD = float(ALERT["expr"].rpartition(" > ")[2])
FOR = 60 * float(ALERT["for"].removesuffix("m"))
WORDS = ["market", "match", "vote", "storm", "goal", "share", "law", "rain", "song", "chip"]
DRAFT = {
    "pack": "my/live", "version": "1", "calibrated": False, "contexts": {"plain": "{X}"},
    "scoring": {"queries": [{"id": "is", "template": "\n\nSport:{?}", "options": [" yes", " no"]}]},
    "reads": [{"id": "is", "query": "is", "kind": "pair", "category": "sport"}],
    "categories": {"sport": {}}, "decision": {"mode": "max", "max": {}},
}  # fmt: skip


def texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=6)) + f" {i}" for i in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drift")
    make_tiny(folder / "tiny")
    make_tiny(folder / "other", seed=2)  # by chance some seeds answer much alike
    (folder / "draft.json").write_text(json.dumps(DRAFT))
    return folder


def opened(folder: Path, pack: Path, model: str = "tiny", **more: Any) -> ArticleScorer:
    return open_scorer(
        Settings(model=str(folder / model), cache_dir=str(folder / "cache"), device="cpu", threads=1, packs=(PackEntry("my/live"),), pack_sources=(str(pack),), **more)
    )


@pytest.fixture(scope="module")
def scorer(folder: Path) -> ArticleScorer:
    rows = [{"id": f"r{i}", "text": t, "label": {"sport": i % 2 == 0}} for i, t in enumerate(texts(300, 1))]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    model = ["--model", str(folder / "tiny"), "--cache-dir", str(folder / "cache"), "--device", "cpu"]
    assert main(["calibrate", str(folder / "draft.json"), str(folder / "data.jsonl"), *model, "--no-plots", "--out", str(folder / "made")]) == 0
    return opened(folder, folder / "made" / "pack.json")


def answered(scorer: ArticleScorer, contents: list[str]) -> list[Answer]:
    out = []
    for i in range(0, len(contents), 20):
        items = [scorer.prepare(Article(text=t)) for t in contents[i : i + 20]]
        output = scorer.engine.collect(scorer.engine.submit(scorer.pack(items)))
        out += scorer.answers(items, output)
    return out


async def followed(scorer: object, *batches: list[Answer], recorded: Mapping[Key, Recorded] = drift.NONE) -> list[float | None]:
    """The gauge after each batch, as the running worker would have it."""
    metrics, judged = Metrics(2048), deque[Answer]()
    w: Any = SimpleNamespace(scorer=scorer, metrics=metrics, intake=SimpleNamespace(judged=judged))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    task = asyncio.create_task(drift.follow(w, recorded, 0.01))
    out = []
    for batch in batches:
        judged.extend(batch)
        for _ in range(200):
            await asyncio.sleep(0.01)
            if not judged:
                break
        await asyncio.to_thread(str)  # behind what was taken
        await asyncio.sleep(0.05)
        out.append(metrics.registry.get_sample_value(PREFIX + "score_drift_psi", {"pack": "my/live", "context": "plain", "category": "sport"}))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return out


def test_the_gauge_follows_the_scores(scorer: ArticleScorer) -> None:
    usual = answered(scorer, texts(LEAST + 40, 2))
    highest = sorted(usual, key=lambda a: a.packs[0]["categories"]["sport"]["score"])[-40:]
    other = 6 * highest  # a source with one kind of news
    few, steady, moved = asyncio.run(followed(scorer, usual[: LEAST - 1], usual[LEAST - 1 :], other))
    assert few is None, "too few articles have no figure"
    assert steady is not None and steady < 0.2
    assert moved is not None and moved > 0.25 and moved > 3 * steady


def stored(folder: Path, scorer: ArticleScorer, answers: list[Answer]) -> Path:
    """The records as they would be in the scores topic."""
    made = [
        record(scorer, a, "scored", f"a{i}", Origin("articles", 0, i, 0), Article(text="")) for i, a in enumerate(answers)
    ]  # fmt: skip
    path = folder / "scores.jsonl"
    path.write_bytes(b"".join(encode(r, JSON) + b"\n" for r in made))
    return path


@pytest.mark.parametrize("scores_format", ["full", "compact"])
def test_a_draft_is_followed_from_a_recorded_baseline(folder: Path, scores_format: str) -> None:
    draft = opened(folder, folder / "draft.json", scores_format=scores_format)
    usual = answered(draft, texts(2 * LEAST + 40, 2))
    assert usual[0].packs[0]["categories"] is None, "a draft has no scores"
    scores, out = stored(folder, draft, usual[:LEAST]), folder / "baseline.json"
    assert main(["packs", "baseline", str(scores), "--out", str(out)]) == 1, "and so nothing to record"
    assert main(["packs", "baseline", str(scores), "--raw", str(folder / "draft.json"), "--out", str(out)]) == 0
    recorded = baseline.read(str(out))
    assert [(*key, r.raw) for key, r in recorded.items()] == [("my/live", "plain", "sport", True)]
    figure = Evaluator(asked.packs(draft)[0][0])
    highest = sorted(usual, key=lambda a: figure.raw(answers_in(a.scores, a.packs, figure.pack)[0].p[None])[0, 0])[-40:]
    without = asyncio.run(followed(draft, usual[LEAST:]))
    assert without == [None]
    few, steady, moved = asyncio.run(followed(draft, usual[LEAST : 2 * LEAST - 1], usual[2 * LEAST - 1 :], 6 * highest, recorded=recorded))
    assert few is None and steady is not None and steady < 0.2
    assert moved is not None and moved > 0.25 and moved > 3 * steady


def test_a_recorded_baseline_goes_before_the_calibration(folder: Path, scorer: ArticleScorer) -> None:
    """Traffic other than the calibration's is steady by a baseline of its own."""
    usual = answered(scorer, texts(2 * LEAST, 4))
    other = sorted(usual, key=lambda a: a.packs[0]["categories"]["sport"]["score"])[LEAST:]
    out = folder / "other.json"
    assert main(["packs", "baseline", str(stored(folder, scorer, other)), "--out", str(out)]) == 0
    by_pack, by_baseline = asyncio.run(followed(scorer, other)), asyncio.run(followed(scorer, other, recorded=baseline.read(str(out))))
    assert by_pack[0] is not None and by_pack[0] > 0.5
    assert by_baseline[0] is not None and by_baseline[0] < 0.01


@pytest.mark.parametrize("scores_format", ["full", "compact"])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_model_swapped_below_a_pack_is_drift(folder: Path, scorer: ArticleScorer, recorded: bool, scores_format: str) -> None:
    """Its records say nothing (categories null); the gauge says that the model is another, by the pack's own quantiles or by a
    recorded baseline of its scores."""
    usual = answered(scorer, texts(LEAST, 2))
    against = drift.NONE
    if recorded:
        out = folder / "usual.json"
        assert main(["packs", "baseline", str(stored(folder, scorer, usual)), "--out", str(out)]) == 0
        against = baseline.read(str(out))
    swapped = opened(folder, folder / "made" / "pack.json", "other", scores_format=scores_format)
    now = answered(swapped, texts(LEAST, 2))
    assert {a.packs[0]["categories"] for a in now} == {None} and not now[0].packs[0]["calibrated"]
    before, after = asyncio.run(followed(scorer, usual, recorded=against)), asyncio.run(followed(swapped, now, recorded=against))
    assert before[0] is not None and before[0] < THRESHOLD
    assert after[0] is not None and after[0] > 2 * THRESHOLD


def test_what_is_computed_for_the_figure_is_what_the_pack_would_have_published(folder: Path, scorer: ArticleScorer) -> None:
    """On its own model the entries' scores and the figure's, computed from the same answers with the entries hidden, agree."""
    usual = answered(scorer, texts(LEAST, 6))
    hidden = [Answer(**{n: getattr(a, n) for n in Answer.__struct_fields__ if n != "packs"}, packs=[{**a.packs[0], "categories": None}]) for a in usual]
    by_entry, by_answer = asyncio.run(followed(scorer, usual)), asyncio.run(followed(scorer, hidden))
    assert by_entry[0] is not None and by_answer == by_entry


@pytest.mark.parametrize("an_hour", [240, 1_000, 3_600, 20_000])
def test_a_change_shows_within_an_hour(an_hour: int) -> None:
    """From the change to the alert, its `for` included, at the least rate that the README names and above; no alert before.
    The change is one that shows only once the window is full of it."""
    clock = [0.0]
    moved = Drift(clock=lambda: clock[0])
    moved.watch([(PACK, "plain")])
    q = PACK.categories["finance"].normal_quantiles
    assert q is not None
    rng = np.random.default_rng(an_hour)
    together = max(1, round(an_hour / 3600 * drift.TURN_SECONDS))  # articles that one look at the figure counts

    def turn(power: float) -> float | None:
        for u in rng.random(together):
            clock[0] += 3600 / an_hour
            score = float(np.interp(u**power, q.levels, q.values))
            moved.add([{"id": PACK.id, "context": "plain", "categories": {"finance": {"score": score}}}])
        return moved.figures().get(Key(PACK.id, "plain", "finance"))

    before = [turn(1.0) for _ in range(max(3 * an_hour // 2, 2_500) // together)]
    assert max(f for f in before if f is not None) < 0.2
    changed, since = clock[0], None
    while (figure := turn(2.5)) is not None and clock[0] - changed < 2 * 3600:
        since = None if figure <= THRESHOLD else since or clock[0]
        if since is not None and clock[0] - since >= FOR:
            break
    assert since is not None and clock[0] - changed < 3600


def test_a_baseline_of_other_packs_is_said(scorer: ArticleScorer, caplog: pytest.LogCaptureFixture) -> None:
    recorded = {Key("my/other", "plain", "sport"): Recorded(Baseline(np.array([0.5]), np.array([0.5, 0.5])), False)}
    asyncio.run(followed(scorer, [], recorded=recorded))
    assert "1 of its 1 series are of no pack, context and category asked here, such as my/other plain sport" in caplog.text


def test_a_scorer_says_what_it_asks(scorer: ArticleScorer) -> None:
    assert [(pack.id, context) for pack, context in asked.packs(scorer)] == [("my/live", "plain")]
    assert sum(asked.floors(scorer)) == scorer.questions
    assert asked.packs(FakeScorer()) == [] and sum(asked.floors(FakeScorer())) == 0


def test_a_reload_brings_its_baselines_and_takes_the_old_figures_away(scorer: ArticleScorer) -> None:
    entries = answered(scorer, texts(LEAST, 3))
    metrics, judged, w = Metrics(2048), deque(entries), SimpleNamespace(scorer=FakeScorer())
    w.metrics, w.intake = metrics, SimpleNamespace(judged=judged)

    async def main() -> list[bool]:
        task = asyncio.create_task(drift.follow(w, seconds=0.01))  # type: ignore[arg-type]
        shown = []
        for now in (FakeScorer(), scorer, FakeScorer()):
            w.scorer = now
            await asyncio.sleep(0.1)
            judged.extend(entries)
            await asyncio.sleep(0.3)
            shown.append("score_drift_psi{" in metrics.text().decode())
        task.cancel()
        return shown

    assert asyncio.run(main()) == [False, True, False]
