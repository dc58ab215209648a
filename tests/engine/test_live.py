"""Questions exchanged while articles are in flight, and packs that leave each other's numbers alone."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tiny import make_tiny

from spinf_stream.config import PackEntry, Settings
from spinf_stream.engine.gpu.gates import paths_of
from spinf_stream.engine.live import LiveScorer, open_live
from spinf_stream.engine.open import open_scorer
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.scorer import Prepared
from spinf_stream.engine.seam import EngineFault, PassInput, PassOutput, TreeOutput
from spinf_stream.packs.document import sealed_text
from spinf_stream.records import Answer, Article, CompactScores

ASKED = {
    "a": [{"id": "s", "template": "\n\nSection:{?}", "options": [" sport", " politics", " the world"]}],
    "b": [
        {"id": "y", "template": "\n\nIs it about {F}?{?}", "options": [" yes", " no"], "combinations": [{"F": "sport"}, {"F": "tech"}]},
        {"id": "s", "template": "\n\nSection:{?}", "options": [" business", " tech"]},
    ],
}


def write(folder: Path, name: str, version: str = "1", threshold: float = 0.5, context: str = "{X}", queries: list[dict[str, Any]] | None = None) -> None:
    reads = [{"id": "r", "query": "s", "kind": "option", "option": 0, "category": "c", "mu": 0.3, "mean": 0.0, "sd": 0.2}]
    doc = {
        "pack": f"t/{name}", "version": version, "model": "tiny", "contexts": {"main": context}, "scoring": {"queries": queries or ASKED[name]},
        "reads": reads, "categories": {"c": {"platt": [1.3, -0.2], "threshold": threshold}}, "decision": {"mode": "per_category"},
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(doc))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def settings(model: Path, tmp_path: Path) -> Settings:
    for name in ASKED:
        write(tmp_path / "packs", name)
    return Settings(
        model=str(model), packs=(PackEntry("t/a"), PackEntry("t/b")), pack_sources=(str(tmp_path / "packs"),), cache_dir=str(tmp_path / "cache"), token_budget=600,
    )  # fmt: skip


def direct(live: LiveScorer) -> Any:
    """A pass as start-up runs it; the worker's goes through its runner."""
    return lambda batch: live.engine.collect(live.engine.submit(batch))


def answer(scorer: Any, items: Sequence[Prepared]) -> list[Answer]:
    return scorer.answers(items, scorer.engine.collect(scorer.engine.submit(scorer.pack(items))))


def numbers(a: Answer, pack: str) -> list[float]:
    """p and logprob of a pack's options, floors included."""
    assert isinstance(a.scores, list)
    return [v for q in a.scores if q.pack == pack for c in q.combinations for o in c.options for v in (o.logprob, o.p, o.floor_p) if v is not None]


def test_what_was_prepared_is_answered_by_the_questions_that_prepared_it(settings: Settings, tmp_path: Path) -> None:
    live = open_live(settings)
    first = live.questions_digest
    articles = [Article(text=f"article {i} about sport and politics") for i in range(4)]
    before = [live.prepare(a) for a in articles]
    alone = answer(live, before)

    write(tmp_path / "packs", "b", version="2", queries=ASKED["b"][1:])
    result = live.reload(direct(live))
    assert result.changed and not result.kept and live.questions_digest != first
    after = [live.prepare(a) for a in articles]
    mixed = answer(live, [before[0], after[1], before[2], after[3]])
    assert [a.questions_digest for a in mixed] == [first, live.questions_digest] * 2
    assert [[p["version"] for p in a.packs] for a in mixed] == [["1", "1"], ["1", "2"]] * 2
    for i, a in enumerate(mixed):
        assert numbers(a, "t/a") == pytest.approx(numbers(alone[i], "t/a"), abs=1e-5)
        assert a.packs[0]["categories"] == alone[i].packs[0]["categories"]
        want = numbers(alone[i], "t/b")[0 if i % 2 == 0 else 2 * 2 * 3 :]
        assert numbers(a, "t/b") == pytest.approx(want, abs=1e-5)
    assert before[0].key != after[0].key, "what was remembered of the old is not an answer to the new"


def test_only_what_changed_is_exchanged(settings: Settings, tmp_path: Path) -> None:
    live = open_live(settings)
    asks = live.asks
    assert live.reload(direct(live)) == (False, []) and live.asks is asks
    write(tmp_path / "packs", "a", threshold=0.7)  # the same questions, judged otherwise
    digest = live.questions_digest
    assert live.reload(direct(live)).changed
    assert live.asks[1] is asks[1] and live.asks[0] is not asks[0] and live.questions_digest != digest
    live.reload(direct(live))
    write(tmp_path / "packs", "a")
    live.reload(direct(live))
    assert live.questions_digest == digest, "back to what it was: what Redis remembers counts again"


def test_a_seal_is_no_other_question(settings: Settings, tmp_path: Path) -> None:
    live = open_live(settings)
    digest = live.questions_digest
    path = tmp_path / "packs" / "a.json"
    path.write_text(sealed_text(path.read_text()))
    assert live.reload(direct(live)) == (False, []) and open_live(settings).questions_digest == digest
    path.write_text(path.read_text().replace('"threshold": 0.5', '"threshold": 0.1'))
    (said,) = live.reload(direct(live)).kept
    assert "$.digest" in said and "stays" in said


def test_what_cannot_be_loaded_keeps_its_old_self_and_says_so(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(json.dumps({"queries": ASKED["a"]}))
    live = open_live(msgspec.structs.replace(settings, questions=str(tmp_path / "q.json")))
    asks, digest = live.asks, live.questions_digest

    def kept(said: str, changed: bool = False) -> None:
        result = live.reload(direct(live))
        assert result.changed == changed and len(result.kept) == 1 and said in result.kept[0], result

    whole = (tmp_path / "packs" / "a.json").read_text()
    (tmp_path / "packs" / "a.json").write_text(whole[:-5])
    kept("t/a")
    (tmp_path / "packs" / "a.json").write_text(whole.replace(" sport", " politics"))
    kept("t/a")
    (tmp_path / "packs" / "a.json").write_text(whole.replace("{?}", "{?} and more"))
    kept("t/a")
    (tmp_path / "packs" / "a.json").write_text(whole)
    (tmp_path / "q.json").write_text('{"queries": []}')
    kept("q.json")
    (tmp_path / "q.json").unlink()
    kept("q.json")
    assert live.asks is asks and live.questions_digest == digest
    write(tmp_path / "packs", "b", version="3", context="It is said: {X}")
    kept("q.json", changed=True)
    assert [a.pack.pack.version if a.pack else None for a in live.asks] == [None, "1", "3"]
    many = [{"id": "s", "template": "\n\n" + f"{i} " * 500 + "{?}", "options": [" business", " tech"]} for i in range(2)]
    write(tmp_path / "packs", "b", version="4", queries=[{**q, "id": f"s{i}" if i else "s"} for i, q in enumerate(many)])
    before = live.asks
    result = live.reload(direct(live))
    assert not result.changed and "token_budget" in result.kept[-1] and live.asks is before


def test_an_engine_that_cannot_compute_floors_changes_nothing(settings: Settings, tmp_path: Path) -> None:
    live = open_live(settings)
    asks, plans = live.asks, len(live.engine.plans)
    write(tmp_path / "packs", "b", version="2", queries=[{**ASKED["b"][1], "template": "\n\nOf which kind:{?}"}])

    def faulty(batch: PassInput) -> PassOutput:
        raise EngineFault("a hiccup")

    with pytest.raises(EngineFault):
        live.reload(faulty)
    assert live.asks is asks and len(live.engine.plans) == plans
    assert live.reload(direct(live)).changed, "the next signal tries again"


def test_plans_of_the_past_are_forgotten_once_nothing_is_in_flight(settings: Settings, tmp_path: Path) -> None:
    live = open_live(settings)
    item = live.prepare(Article(text="sport"))
    sizes = []
    for version in range(2, 8):
        write(tmp_path / "packs", "b", version=str(version))
        assert live.reload(direct(live)).changed
        answer(live, [live.prepare(Article(text="sport"))])
        gc.collect()
        sizes.append(len(live.engine.plans))
    assert len(set(sizes[1:])) == 1, sizes
    assert answer(live, [item])[0].packs[1]["version"] == "1", "but what is in flight still has its own"
    del item
    gc.collect()
    assert len(live.engine.plans) < sizes[-1]


@pytest.mark.parametrize("contexts", [("{X}", "{X}"), ("{X}", "It is said: {X}")])
def test_a_packs_numbers_do_not_depend_on_other_packs(settings: Settings, tmp_path: Path, contexts: tuple[str, str]) -> None:
    """A, A + B and B + A, below a shared trunk and below one each: within 1e-5 in log-probability, decisions equal."""
    write(tmp_path / "packs", "b", context=contexts[1])
    texts = [Article(text=f"the {w} of the world of {w}") for w in ("sport", "politics", "business", "tech")]
    of: dict[tuple[str, ...], list[Answer]] = {}
    for names in (("a",), ("b",), ("a", "b"), ("b", "a")):
        scorer = open_scorer(msgspec.structs.replace(settings, packs=tuple(PackEntry(f"t/{n}") for n in names)))
        of[names] = answer(scorer, [scorer.prepare(t) for t in texts])
    for name in ("a", "b"):
        for i, alone in enumerate(of[name,]):
            for both in (of["a", "b"][i], of["b", "a"][i]):
                np.testing.assert_allclose(numbers(both, f"t/{name}"), numbers(alone, f"t/{name}"), atol=1e-5)
                (mine,) = [p for p in both.packs if p["id"] == f"t/{name}"]
                (its,) = alone.packs
                assert mine["decision"] == its["decision"] and mine["digest"] == its["digest"]
                assert mine["categories"]["c"]["score"] == pytest.approx(its["categories"]["c"]["score"], abs=1e-5)


def test_a_finaliser_that_comes_inside_the_lock_does_not_wait(settings: Settings, tmp_path: Path) -> None:
    live = open_live(settings)
    engine, plan = live.engine, live.asks[0].questions.plan
    index = engine.register(plan)
    uses = engine._uses[index]
    with engine._lock:  # as when the garbage collector runs in a register
        engine.forget([index])
        assert engine._uses[index] == uses, "not now"
    assert engine.register(plan) == index and engine._uses[index] == uses, "but before anything else is registered"


def test_each_entry_of_the_settings_keeps_its_own(settings: Settings, tmp_path: Path) -> None:
    """Two contexts of one pack, one of them the default; a default context that another version renames."""
    folder = tmp_path / "packs"
    write(folder, "a")
    doc = json.loads((folder / "a.json").read_text())
    doc["contexts"]["other"] = "Said: {X}"
    (folder / "a.json").write_text(json.dumps(doc))
    live = open_live(msgspec.structs.replace(settings, packs=(PackEntry("t/a"), PackEntry("t/a", context="other"), PackEntry("t/b"))))
    asks = live.asks
    (folder / "a.json").write_text("{")
    result = live.reload(direct(live))
    assert not result.changed and len(result.kept) == 2 and live.asks is asks

    write(folder, "b", version="2", queries=[{**ASKED["b"][1], "options": [" tech", " tech"]}])
    renamed = json.loads((folder / "b.json").read_text())
    renamed["contexts"] = {"post": "Post: {X}"}
    (folder / "b.json").write_text(json.dumps(renamed))
    result = live.reload(direct(live))
    assert not result.changed and len(result.kept) == 3 and live.asks is asks

    only = open_live(msgspec.structs.replace(settings, packs=(PackEntry("t/b", version="1"),), pack_sources=(str(only_b(tmp_path)),)))
    asks = only.asks
    (tmp_path / "only" / "b.json").write_text((folder / "b.json").read_text())
    result = only.reload(direct(only))
    assert not result.changed and "t/b" in result.kept[0] and only.asks is asks


def only_b(tmp_path: Path) -> Path:
    write(tmp_path / "only", "b")
    return tmp_path / "only"


class Exact(PackedEngine):
    """Numbers that follow from trunk and path alone, to the last bit, as on a card whose gates have passed."""

    def collect(self, handle: Any) -> PassOutput:
        batch, trees = handle.batch, []
        for i in range(batch.trees):
            plan, trunk = self.plans[int(batch.plan[i])], batch.ids[batch.start[i] : batch.start[i + 1]].tolist()
            cand, end = [], []
            for r, path in enumerate(paths_of(plan)):
                for token in plan.cand_token[plan.cand_ptr[r] : plan.cand_ptr[r + 1]].tolist():
                    cand.append(-0.01 - 12 * random.Random(repr((trunk, path, token))).random())
                end.append(-0.01 - random.Random(repr((trunk, path))).random())
            trees.append(TreeOutput(np.array(cand), np.array(end)))
        return PassOutput(tuple(trees), 0.0, handle.rows, 0)


@pytest.mark.parametrize("context", ["{X}", "It is said: {X}"])
@pytest.mark.parametrize("form", ["full", "compact"])
def test_nothing_but_the_engine_could_change_a_packs_bits(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str, form: str) -> None:
    """A, A + B, B + A on an engine that is exact: A's scores and decisions are the same bits."""
    write(tmp_path / "packs", "b", context=context)
    monkeypatch.setattr("spinf_stream.engine.open.PackedEngine", Exact)
    said: dict[tuple[str, ...], list[bytes]] = {}
    for names in (("a",), ("a", "b"), ("b", "a")):
        s = msgspec.structs.replace(settings, packs=tuple(PackEntry(f"t/{n}") for n in names), scores_format=form, cache_dir=str(tmp_path / "-".join(names)))
        scorer = open_scorer(s)
        items = [scorer.prepare(Article(text=f"the {w} of the world of {w}")) for w in ("sport", "politics", "business", "tech")]
        mine = []
        for got in answer(scorer, items):
            if isinstance(got.scores, CompactScores):
                one = scorer.asks[names.index("a")].questions.plan
                at = 0 if names[0] == "a" else got.scores.options - one.options
                scores: Any = [np.frombuffer(c, "<f4")[at : at + one.options].tobytes() for c in (got.scores.logprob, got.scores.p, got.scores.floor_p)]
            else:
                scores = [q for q in got.scores if q.pack == "t/a"]
            mine.append(msgspec.json.encode([scores, [p for p in got.packs if p["id"] == "t/a"]]))
        assert len(set(mine)) == 4
        said[names] = mine
    assert said["a",] == said["a", "b"] == said["b", "a"]


@pytest.mark.parametrize("context", ["{X}", "It is said: {X}"])
@pytest.mark.parametrize("form", ["full", "compact"])
def test_a_question_files_bits_are_its_own_whatever_packs_stand_beside_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str, form: str
) -> None:
    """W25: a pack brings its context and its case rule; those of the question file stay as they are."""
    queries = [
        {"id": "own", "template": "\n\nSection:{?}", "options": [" sport", " politics", " the world"]},  # as t/a asks it
        {"id": "ends", "template": "\n\nIs it about {F}?{?}", "options": [" yes", " no"], "combinations": [{"F": "sport"}, {"F": "tech"}], "ends": True},
    ]
    (tmp_path / "q.json").write_text(json.dumps({"queries": queries}))
    for name in ("a", "b"):
        write(tmp_path / "packs", name, context=context)
    strict = json.loads((tmp_path / "packs" / "b.json").read_text())
    strict["scoring"]["case_insensitive"] = True
    (tmp_path / "packs" / "b.json").write_text(json.dumps(strict))
    monkeypatch.setattr("spinf_stream.engine.open.PackedEngine", Exact)
    said = {}
    for names in ((), ("a",), ("b", "a")):
        s = msgspec.structs.replace(
            settings, questions=str(tmp_path / "q.json"), packs=tuple(PackEntry(f"t/{n}") for n in names), scores_format=form,
            cache_dir=str(tmp_path / "-".join(("cache", *names))),
        )  # fmt: skip
        scorer = open_scorer(s)
        items = [scorer.prepare(Article(text=f"the {w} of the world of {w}")) for w in ("sport", "politics", "business")]
        mine = []
        for got in answer(scorer, items):
            if isinstance(got.scores, CompactScores):
                own = got.scores.parts[0]
                assert own.pack is None and len(got.scores.parts) == 1 + len(names)
                columns = [np.frombuffer(c, "<f4")[: own.options] for c in (got.scores.logprob, got.scores.p, got.scores.floor_p)]
                columns += [np.frombuffer(c, "<f4")[: own.prompts] for c in (got.scores.residual, got.scores.floor_residual)]
                mine.append(b"".join(c.tobytes() for c in columns))
            else:
                mine.append(msgspec.json.encode([q for q in got.scores if q.pack is None]))
        assert len(set(mine)) == 3
        said[names] = mine
    assert said[()] == said["a",] == said["b", "a"]
