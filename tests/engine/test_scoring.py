"""Articles to trees and back to answers: content, limits, shared trunks, floors, fingerprints, the runner."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tiny import make_tiny

from spinf_stream import files, score_cli
from spinf_stream.config import PackEntry, Settings
from spinf_stream.engine import content, reference
from spinf_stream.engine.asks import side_by_side
from spinf_stream.engine.floors import FloorCache
from spinf_stream.engine.open import open_scorer
from spinf_stream.engine.runner import Runner
from spinf_stream.engine.seam import EngineFatal, NonFinite
from spinf_stream.errors import UsageError
from spinf_stream.questions.compile import Source, build
from spinf_stream.questions.readout import read_out
from spinf_stream.records import Article, Refused

QUERIES = [
    {"id": "s", "template": "\n\nSection:{?}", "options": [" sport", " politics", " the world"]},
    {"id": "y", "template": "\n\nIs it about {x}?{?}", "options": [" yes", " no"], "combinations": [{"x": "sport"}, {"x": "tech"}]},
    {"id": "n", "template": "\n\nYes or no:{?}", "options": [" yes", " no"], "residual": False},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def settings(model, tmp_path) -> Settings:
    (tmp_path / "q.json").write_text(json.dumps({"queries": QUERIES}))
    return Settings(model=str(model), questions=str(tmp_path / "q.json"), cache_dir=str(tmp_path / "cache"), token_budget=400)


def answer(scorer, *articles):
    items = [scorer.prepare(a) for a in articles]
    engine = scorer.engine
    return scorer.answers(items, engine.collect(engine.submit(scorer.pack(items))))


def test_an_answer_says_what_the_reference_says(settings):
    scorer = open_scorer(settings)
    got = answer(scorer, Article(text="A word about the world of sport."))[0]
    encoder, stack = scorer.encoder, scorer.engine.executor.stack
    trunk = [*encoder.bos, *encoder.encode("A word about the world of sport.")]

    def row(ids, text):
        return reference.logprobs(stack, [*ids, *encoder.encode(text)], [-1])[0].numpy()

    assert [q.id for q in got.scores] == ["s", "y", "n"]
    y = got.scores[1].combinations[1]
    assert y.values == {"x": "tech"}
    words = {" yes": (" yes", "yes", " Yes", "Yes", " YES", "YES"), " no": (" no", "no", " No", "No", " NO", "NO")}
    for ids, read in ((trunk, lambda o: o.p), (list(encoder.bos), lambda o: o.floor_p)):
        line = row(ids, "\n\nIs it about tech?")
        logs = [np.logaddexp.reduce([line[encoder.encode(f)[0]] for f in fs if f == o or len(encoder.encode(f)) == 1]) for o, fs in words.items()]
        want = np.exp(logs - np.logaddexp.reduce(logs))
        np.testing.assert_allclose([read(o) for o in y.options], want, atol=1e-5)
        if ids is trunk:
            np.testing.assert_allclose([o.logprob for o in y.options], logs, atol=2e-5)
            np.testing.assert_allclose(y.residual, 1 - np.exp(logs).sum(), atol=1e-5)
    bare = got.scores[2].combinations[0]
    assert bare.residual is None and bare.options[0].logprob is None and 0 < bare.options[0].p < 1
    assert got.tokens.content == len(trunk) - 1 and got.tokens.questions == scorer.asks[0].questions.plan.nodes


def test_compact_holds_the_same_numbers(settings):
    article = Article(text="The sport of politics.", title="World")
    full = answer(open_scorer(settings), article)[0]
    flat = [o for q in full.scores for c in q.combinations for o in c.options]
    small = answer(open_scorer(msgspec.structs.replace(settings, scores_format="compact")), article)[0].scores
    assert small.options == len(flat)
    np.testing.assert_array_equal(np.frombuffer(small.p, "<f4"), np.array([o.p for o in flat], "<f4"))
    assert np.isnan(np.frombuffer(small.logprob, "<f4")).tolist() == [o.logprob is None for o in flat]
    np.testing.assert_array_equal(np.frombuffer(small.floor_p, "<f4"), np.array([o.floor_p for o in flat], "<f4"))


def test_overlong_is_cut_refused_or_alone(settings):
    long = Article(text="sport " * 400)
    cut = open_scorer(settings).prepare(long)
    assert cut.truncated and not cut.alone and cut.cost <= 400
    with pytest.raises(Refused, match="too_long"):
        open_scorer(msgspec.structs.replace(settings, overlong="reject")).prepare(long)
    solo = open_scorer(msgspec.structs.replace(settings, overlong="solo"))
    whole = solo.prepare(long)
    assert whole.alone and not whole.truncated and whole.content_tokens > 400
    a = answer(solo, long)[0]
    big = open_scorer(msgspec.structs.replace(settings, token_budget=5000))
    b = answer(big, long)[0]
    np.testing.assert_allclose(a.scores[0].combinations[0].options[0].logprob, b.scores[0].combinations[0].options[0].logprob, atol=1e-5)
    assert open_scorer(msgspec.structs.replace(settings, max_content_tokens=7)).prepare(long).content_tokens == 7


def test_what_changes_an_answer_changes_the_digest(settings):
    scorer = open_scorer(settings)
    digests = {
        scorer.prepare(a).digest
        for a in (Article(text="one"), Article(text="two"), Article(text="two", title="one"), Article(text="one\n\ntwo "), Article(text="one", id="other"))
    }
    assert len(digests) == 3  # a title is content ("one\n\ntwo"), an id is not
    smaller = open_scorer(msgspec.structs.replace(settings, max_content_tokens=100))
    assert smaller.prepare(Article(text="one")).digest != scorer.prepare(Article(text="one")).digest
    with pytest.raises(Refused, match="empty"):
        scorer.prepare(Article(text="\n"))


def test_a_presentation_is_never_cut(settings):
    encoder = open_scorer(settings).encoder
    around = ("Before: ", "\nAfter.")
    cut = content.tokenise(encoder, "sport " * 100, around, 60)
    text = encoder.decode(cut.ids[1:])
    assert cut.truncated and len(cut.ids) <= 61
    assert text.startswith("Before: sport") and text.endswith("\nAfter.")
    assert len(encoder.encode(text)) > 55  # and as much of the content as fits
    assert content.assemble(Article(text="b {title}", title="a {text}"), "{title}|{text}") == "a {text}|b {title}"


def test_plans_side_by_side_read_as_they_do_apart(settings):
    scorer = open_scorer(settings)
    one = scorer.asks[0].questions.plan
    two = build([Source({"queries": QUERIES[:2][::-1]})], scorer.encoder).plan
    both = side_by_side([one, two, one])
    rng = np.random.default_rng(0)
    cand, end = [rng.normal(-3, 1, len(p.cand_token)) for p in (one, two, one)], [np.zeros(p.reads) for p in (one, two, one)]
    got = read_out(both, np.concatenate(cand), np.concatenate(end))
    want = [read_out(p, c, e) for p, c, e in zip((one, two, one), cand, end)]
    for field in ("p", "logprob", "residual"):
        np.testing.assert_array_equal(getattr(got, field), np.concatenate([getattr(w, field) for w in want]))
    for i in range(both.nodes):
        assert both.parent[i] < i < both.end[i] <= both.nodes


def test_floors_are_computed_once_and_survive(settings, caplog):
    plan = open_scorer(settings).asks[0].questions
    calls = []

    def read(part):
        calls.append(part.prompts)
        return np.log(np.linspace(0.1, 0.2, len(part.cand_token))), np.zeros(part.reads)

    folder = Path(settings.cache_dir) / "x"
    first = FloorCache(folder, "f" * 64).floors(plan.plan, plan.floor_keys, plan.floor.tolist(), plan.subset, read)
    assert calls == [4] and first.computed == 4
    again = FloorCache(folder, "f" * 64).floors(plan.plan, plan.floor_keys, plan.floor.tolist(), plan.subset, read)
    assert calls == [4] and again.computed == 0
    np.testing.assert_array_equal(first.p, again.p)
    np.testing.assert_array_equal(first.residual, again.residual)
    off = FloorCache(folder, "f" * 64).floors(plan.plan, plan.floor_keys, [False] * 4, plan.subset, read)
    assert np.isnan(off.p).all() and np.isnan(off.residual).all()
    path = next(folder.iterdir())
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert FloorCache(folder, "f" * 64).floors(plan.plan, plan.floor_keys, plan.floor.tolist(), plan.subset, read).computed == 4
    assert "broken" in caplog.text


def test_floors_that_cannot_be_kept_are_floors_all_the_same(settings, tmp_path, caplog):
    kept = open_scorer(settings).asks[0].floors
    shutil.rmtree(tmp_path / "cache" / "floors")
    (tmp_path / "cache" / "floors").write_bytes(b"in the way")
    with files.sink(str(tmp_path / "out")) as f:  # whose fault it is not
        scorer = open_scorer(settings)
        f.write(b"x")
    np.testing.assert_array_equal(scorer.asks[0].floors.p, kept.p)
    said = [r.getMessage() for r in caplog.records if r.name == "spinf_stream.engine.floors"]
    assert len(said) == 2 and "cannot be read (Not a directory)" in said[0] and "floors cannot be kept in" in said[1]
    (tmp_path / "cache" / "floors").unlink()
    assert open_scorer(settings).asks[0].floors.computed == 4
    assert len(list((tmp_path / "cache" / "floors").iterdir())) == 1


def test_the_fingerprint_covers_the_weights_and_not_the_questions(settings, tmp_path):
    one = open_scorer(settings)
    (tmp_path / "r.json").write_text(json.dumps({"queries": QUERIES[:1]}))
    other = open_scorer(msgspec.structs.replace(settings, questions=str(tmp_path / "r.json")))
    assert one.fingerprint == other.fingerprint and one.questions_digest != other.questions_digest
    weights = open_scorer(msgspec.structs.replace(settings, model=str(make_tiny(tmp_path / "tiny2", seed=1))))
    assert weights.fingerprint != one.fingerprint
    assert one.fingerprint == "fp_" + one.fingerprint_full[:16] and len(one.fingerprint_full) == 64


def test_the_runner_answers_in_any_number_and_passes_errors_on(settings):
    scorer = open_scorer(settings)
    items = [scorer.prepare(Article(text=f"article {i} about sport")) for i in range(5)]

    class Broken:
        budget, bit_exact = 10, False

        def submit(self, batch):
            raise EngineFatal("gone")

    async def go():
        runner = Runner(scorer.engine)
        outs = await asyncio.gather(*(runner.run(scorer.pack([i])) for i in items))
        assert runner.passes == 5 and 0 < runner.busy_seconds <= runner.wall_seconds * 1.01
        await runner.close()
        broken = Runner(Broken())
        with pytest.raises(EngineFatal, match="gone"):
            await broken.run(scorer.pack(items))
        await broken.close()
        return outs

    outs = asyncio.run(go())
    alone = [scorer.answers([i], o)[0].scores for i, o in zip(items, outs)]
    together = [a.scores for a in answer(scorer, *(Article(text=f"article {i} about sport") for i in range(5)))]
    for a, b in zip(alone, together):
        np.testing.assert_allclose([o.p for q in a for c in q.combinations for o in c.options], [o.p for q in b for c in q.combinations for o in c.options], atol=1e-5)


def test_a_recalibrated_pack_is_another_question_set(settings, tmp_path):
    """Its questions are the same, but a cached answer holds its decisions."""
    pack = {
        "pack": "t/one", "version": "1", "model": "tiny", "contexts": {"plain": "{X}"}, "scoring": {"queries": [QUERIES[1]]},
        "reads": [{"id": "r", "query": "y", "kind": "pair", "category": "c", "mean": 0.0, "sd": 1.0, "F": "sport"}],
        "categories": {"c": {"platt": [1.0, 0.0], "threshold": 0.5}}, "decision": {"mode": "per_category"},
    }  # fmt: skip
    pack["scoring"] = {"queries": [{**QUERIES[1], "template": "\n\nIs it about {F}?{?}", "combinations": [{"F": "sport"}, {"F": "tech"}]}]}
    digests, scores = [], []
    for threshold in (0.5, 0.6):
        pack["categories"]["c"]["threshold"] = threshold
        (tmp_path / "pack.json").write_text(json.dumps(pack))
        scorer = open_scorer(msgspec.structs.replace(settings, packs=(PackEntry("t/one"),), pack_sources=(str(tmp_path / "pack.json"),)))
        digests.append(scorer.questions_digest)
        got = answer(scorer, Article(text="sport"))[0]
        scores.append([o.p for q in got.scores for c in q.combinations for o in c.options])
        assert got.packs[0]["calibrated"] and got.packs[0]["id"] == "t/one"
    assert digests[0] != digests[1] and scores[0] == scores[1]


def test_which_pack_has_which_parameters_is_part_of_the_digest(settings, tmp_path):
    """Two articles with the same presentations, in other places, and limits that one setting changes for one trunk alone."""
    (tmp_path / "packs").mkdir()
    for name in ("p", "q", "r"):
        pack = {
            "pack": f"t/{name}", "version": "1", "model": "tiny", "parameters": {name: {"default": "A"}}, "contexts": {"c": f"{{{name}}} {{X}}"},
            "scoring": {"queries": [{"id": "y", "template": "\n\nYes or no:{?}", "options": [" yes", " no"]}]},
            "reads": [{"id": "r", "query": "y", "kind": "pair", "category": "c", "mean": 0.0, "sd": 1.0}],
            "categories": {"c": {"platt": [1.0, 0.0], "threshold": 0.5}}, "decision": {"mode": "per_category"},
        }  # fmt: skip
        (tmp_path / "packs" / f"{name}.json").write_text(json.dumps(pack))
    packs = tuple(PackEntry(f"t/{n}") for n in "pqr")
    scorer = open_scorer(msgspec.structs.replace(settings, packs=packs, pack_sources=(str(tmp_path / "packs"),)))

    def of(**parameters):
        return scorer.prepare(Article(text="one", parameters=parameters)).digest

    assert of(p="A", q="B", r="A") != of(p="A", q="B", r="B")
    assert of(p="A") == of() and of(zzz=1) != of()
    assert scorer.prepare(Article(text="one", parameters={"zzz": 1})).warnings == ("unknown_parameters",)
    with pytest.raises(Refused, match="bad_parameters"):
        of(p="x" * 1001)


def test_a_budget_without_room_for_content_is_refused_at_the_start(settings):
    with pytest.raises(UsageError, match="token_budget = 30 leaves"):
        open_scorer(msgspec.structs.replace(settings, token_budget=30))


def test_score_file_isolates_a_poisonous_line(settings, tmp_path, monkeypatch):
    scorer = open_scorer(settings)
    real = scorer.engine.begin
    poison = scorer.encoder.encode("poison")

    def begin(handle):
        ids = handle.batch.ids.tolist()
        if any(ids[i : i + len(poison)] == poison for i in range(len(ids))):
            raise NonFinite(0, "a logit")
        return real(handle)

    monkeypatch.setattr(scorer.engine, "begin", begin)
    lines = [json.dumps({"id": i, "text": t}).encode() for i, t in (("a", "sport"), ("b", "poison"), ("c", "tech"))]
    out = io.BytesIO()
    (tmp_path / "f.jsonl").write_bytes(b"\n".join([b"", *lines[:2], b" ", *lines[2:], b"{", b'{"id": "e", "text": " "}', b'{"id": "s"}', b'{"text": "x"}']))
    with files.source(str(tmp_path / "f.jsonl")) as (read, _):
        total = asyncio.run(score_cli.score(read, 0, scorer, out, "f.jsonl", quiet=True))
    got = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(g["id"], g["outcome"], g.get("reason"), g.get("line")) for g in got] == [
        ("a", "scored", None, None), ("b", "dead", "nonfinite", 3), ("c", "scored", None, None), (None, "dead", "not_json", 6),
        ("e", "dead", "empty", 7), ("s", "dead", "schema", 8), ("f.jsonl-0-6", "scored", None, None),
    ]  # fmt: skip
    assert total == (3, 4)


def test_output_goes_through_links_and_into_pipes(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with files.sink(str(tmp_path / "link")) as f:
        f.write(b"new")
    assert (tmp_path / "real").read_bytes() == b"new" and (tmp_path / "link").is_symlink()
    with pytest.raises(RuntimeError), files.sink(str(tmp_path / "half")) as f:
        f.write(b"x")
        raise RuntimeError
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]
