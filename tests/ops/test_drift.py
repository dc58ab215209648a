"""Score drift from a real scorer to the gauge: a tiny model calibrated on its own traffic, then asked about other texts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeScorer
from tiny import make_tiny

from spinf_stream.cli import main
from spinf_stream.config import PackEntry, Settings
from spinf_stream.engine.open import open_scorer
from spinf_stream.engine.scoring import ArticleScorer
from spinf_stream.metrics import PREFIX, Metrics
from spinf_stream.packs.drift import LEAST
from spinf_stream.records import Article
from spinf_stream.stream import asked, drift

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
def scorer(tmp_path_factory: pytest.TempPathFactory) -> ArticleScorer:
    folder = tmp_path_factory.mktemp("drift")
    make_tiny(folder / "tiny")
    (folder / "draft.json").write_text(json.dumps(DRAFT))
    rows = [{"id": f"r{i}", "text": t, "label": {"sport": i % 2 == 0}} for i, t in enumerate(texts(300, 1))]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    model = ["--model", str(folder / "tiny"), "--cache-dir", str(folder / "cache"), "--device", "cpu"]
    assert main(["calibrate", str(folder / "draft.json"), str(folder / "data.jsonl"), *model, "--no-plots", "--out", str(folder / "made")]) == 0
    return open_scorer(
        Settings(model=str(folder / "tiny"), cache_dir=str(folder / "cache"), device="cpu", threads=1, packs=(PackEntry("my/live"),), pack_sources=(str(folder / "made" / "pack.json"),))
    )


def packs_of(scorer: ArticleScorer, contents: list[str]) -> list[list[dict[str, Any]]]:
    out = []
    for i in range(0, len(contents), 20):
        items = [scorer.prepare(Article(text=t)) for t in contents[i : i + 20]]
        output = scorer.engine.collect(scorer.engine.submit(scorer.pack(items)))
        out += [answer.packs for answer in scorer.answers(items, output)]
    return out


async def followed(scorer: object, *batches: list[list[dict[str, Any]]]) -> list[float | None]:
    """The gauge after each batch, as the running worker would have it."""
    metrics, judged = Metrics(2048), deque[list[dict[str, Any]]]()
    task = asyncio.create_task(drift.follow(SimpleNamespace(scorer=scorer, metrics=metrics, intake=SimpleNamespace(judged=judged)), 0.01))  # type: ignore[arg-type]
    out = []
    for batch in batches:
        judged.extend(batch)
        for _ in range(200):
            await asyncio.sleep(0.01)
            if not judged:
                break
        await asyncio.sleep(0.1)  # what was taken is counted
        out.append(metrics.registry.get_sample_value(PREFIX + "score_drift_psi", {"pack": "my/live", "context": "plain", "category": "sport"}))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return out


def test_the_gauge_follows_the_scores(scorer: ArticleScorer) -> None:
    usual = packs_of(scorer, texts(LEAST + 40, 2))
    highest = sorted(usual, key=lambda entries: entries[0]["categories"]["sport"]["score"])[-40:]
    other = 6 * highest  # a source with one kind of news
    few, steady, moved = asyncio.run(followed(scorer, usual[: LEAST - 1], usual[LEAST - 1 :], other))
    assert few is None, "too few articles have no figure"
    assert steady is not None and steady < 0.2
    assert moved is not None and moved > 0.25 and moved > 3 * steady


def test_a_scorer_says_what_it_asks(scorer: ArticleScorer) -> None:
    assert [(pack.id, context) for pack, context in asked.packs(scorer)] == [("my/live", "plain")]
    assert sum(asked.floors(scorer)) == scorer.questions
    assert asked.packs(FakeScorer()) == [] and sum(asked.floors(FakeScorer())) == 0


def test_a_reload_brings_its_baselines_and_takes_the_old_figures_away(scorer: ArticleScorer) -> None:
    entries = packs_of(scorer, texts(LEAST, 3))
    metrics, judged, w = Metrics(2048), deque(entries), SimpleNamespace(scorer=FakeScorer())
    w.metrics, w.intake = metrics, SimpleNamespace(judged=judged)

    async def main() -> list[bool]:
        task = asyncio.create_task(drift.follow(w, 0.01))  # type: ignore[arg-type]
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
