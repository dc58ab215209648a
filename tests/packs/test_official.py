"""The official packs: what the manifest says of them, and what makes a good question, as far as a program can tell."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

from spinf_stream.config import Settings
from spinf_stream.engine.models import describe
from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.engine.weights import fetch
from spinf_stream.packs.decide import judge
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import Pack, load
from spinf_stream.packs.manifest import MANIFEST, Version, list_folder, open_version
from spinf_stream.packs.read_plan import answer_places
from spinf_stream.packs.show import show_lines
from spinf_stream.questions.compile import Source, build
from spinf_stream.questions.warnings import warnings

FOLDER = ROOT / "packs"
NAMES = ("news", "moderation", "triage", "product-listings", "reviews", "brand", "entertainment", "market-index")
ENTRIES: list[dict[str, Any]] = json.loads((FOLDER / MANIFEST).read_text("utf-8"))["packs"]
FILES = [row["file"] for entry in ENTRIES for row in entry["versions"]]
CALIBRATED = [f for f in FILES if json.loads((FOLDER / f).read_text("utf-8")).get("calibrated") is not False]


@pytest.fixture(params=FILES)
def pack(request: pytest.FixtureRequest) -> Pack:
    return load(FOLDER / request.param)


def named(name: str) -> Pack:
    return load(FOLDER / name / "0.1.0.json")


def test_the_manifest_lists_every_pack_file_as_it_is() -> None:
    listing = list_folder(FOLDER, "official")
    assert listing.problems == []
    assert list(dict.fromkeys(v.id for v in listing.versions)) == [f"spinf-stream/{n}" for n in NAMES]
    for version in listing.versions:
        assert open_version(version).notes == ()
    files = {p for p in FOLDER.rglob("*.json") if '"scoring"' in p.read_text("utf-8")}
    assert {v.path for v in listing.versions} == {p.resolve() for p in files}


def test_manifest_and_file_tell_the_same_story() -> None:
    readme = (FOLDER / "README.md").read_text("utf-8")
    for entry in ENTRIES:
        pack = load(FOLDER / entry["versions"][0]["file"])
        assert entry["description"] == pack.doc["description"] and entry["name"] == pack.doc["name"]
        assert entry["tags"] and set(entry.get("parameters", [])) == set(pack.parameters)
        assert f"\n## {pack.id.partition('/')[2]}" in readme


def test_a_draft_says_so_and_a_calibrated_pack_names_its_model(pack: Pack) -> None:
    version = next(v for v in list_folder(FOLDER, "official").versions if (v.id, v.version) == (pack.id, pack.version))
    if pack.calibrated:
        assert pack.model == version.model == "demo"
        assert "draft" not in pack.doc["description"].casefold()
    else:
        assert pack.model == "" and pack.doc["calibrated"] is False
        assert "A draft: " in pack.doc["description"] and _note(version) == "draft"


def _note(version: Version) -> str | None:
    return next(row.get("note") for e in ENTRIES if e["id"] == version.id for row in e["versions"] if row["version"] == version.version)


LABELLED = {
    "news": {"business", "sport", "politics", "tech", "entertainment"},
    "moderation": {"hate", "profanity"},
    "triage": {c for c in named("triage").categories if c.split(".")[0] in ("question", "action", "problem", "charge", "security")},
}


def test_the_packs_with_labels_are_calibrated_and_ask_as_their_drafts_do() -> None:
    assert sorted(CALIBRATED) == [f"{name}/0.2.0.json" for name in sorted(LABELLED)]
    for name in LABELLED:
        old, new = named(name), load(FOLDER / name / "0.2.0.json")
        kept = ("pack", "answers", "contexts", "scoring")
        assert {k: old.doc[k] for k in kept} == {k: new.doc[k] for k in kept}
        changing = ("mean", "sd", "mu")
        assert [{k: v for k, v in r.items() if k not in changing} for r in new.doc["reads"]] == old.doc["reads"]


@pytest.mark.parametrize("file", CALIBRATED)
def test_a_calibrated_pack_judges_for_its_model_alone(file: str) -> None:
    pack = load(FOLDER / file)
    p = np.random.default_rng(0).dirichlet(np.ones(3), pack.options)[:, 0]
    for prompt in pack.prompts:
        at = slice(prompt.first, prompt.first + len(prompt.options))
        p[at] /= p[at].sum()
    mine = Evaluator(pack, models={"demo"}).evaluate(p, np.log(p))
    assert mine["calibrated"] is True and "warning" not in mine
    assert list(mine["categories"]) == list(pack.categories) and mine["decision"]["mode"] == "per_category"
    other = Evaluator(pack, models={"google/gemma-4-12b"}).evaluate(p, np.log(p))
    assert (other["calibrated"], other["categories"], other["decision"]) == (False, None, None)
    assert "calibrated for the model demo" in other["warning"]


@pytest.mark.parametrize("file", CALIBRATED)
def test_categories_without_labels_say_that_they_are_not_calibrated(file: str) -> None:
    """In the file, in the output, and never in the decision, however high they score."""
    pack = load(FOLDER / file)
    unlabelled = set(pack.categories) - LABELLED[file.partition("/")[0]]
    assert unlabelled and {n for n, c in pack.categories.items() if not c.fitted} == unlabelled
    scores = [0.999 if name in unlabelled else 0.0 for name in pack.categories]
    judged = judge(pack, scores, scores, [0.0] * len(pack.reads))
    assert {n for n, c in judged.categories.items() if c.get("fitted") is False} == unlabelled
    assert {judged.categories[n]["flagged"] for n in unlabelled} == {None}
    assert judged.decision == {"unsafe": False, "mode": "per_category", "categories": []}
    said = [line for line in show_lines(pack) if "not calibrated for want of labels" in line]
    assert len(said) == len(unlabelled)


@pytest.mark.parametrize("file", CALIBRATED)
def test_the_calibration_block_says_on_what_and_how_well(file: str) -> None:
    pack = load(FOLDER / file)
    noted = pack.doc["calibration"]
    name = file.partition("/")[0]
    assert noted["context"] == pack.default_context and noted["data"] and len(noted["scored_on"]) == 10
    assert noted["fitted_on"] > 200 and noted["tested_on"] > 150
    assert set(noted["held_out"]["categories"]) == LABELLED[name]
    for figures in noted["held_out"]["categories"].values():
        assert figures["yes"] > 0 and figures["no"] > 0 and 0 < figures["auc"] <= 1 and figures["log_loss"] > 0
    assert ("choice" in noted["held_out"]) == (name == "news")


@pytest.mark.parametrize(("name", "questions", "categories"), [("news", 74, 42), ("moderation", 106, 22), ("triage", 57, 33)])
def test_sizes(name: str, questions: int, categories: int) -> None:
    pack = named(name)
    assert (len(pack.prompts), len(pack.categories)) == (questions, categories)


def test_templates_and_options_meet_at_one_space(pack: Pack) -> None:
    for question in pack.questions:
        assert question.query.template.startswith("\n\n") and question.query.template.endswith("{?}")
        for i in range(len(question.values)):
            text = question.text(i)
            assert text == text.rstrip() and "  " not in text
        assert all(o.startswith(" ") and o == " " + o.strip() for o in question.query.options or ())


def test_no_question_stands_twice_and_each_is_read(pack: Pack) -> None:
    texts = Counter((q.text(i), q.query.options) for q in pack.questions for i in range(len(q.values)))
    assert max(texts.values()) == 1
    read = {(r.query, r.F) for r in pack.reads}
    assert {(p.query, p.values.get("F")) for p in pack.prompts} == read
    assert len({r.id for r in pack.reads}) == len(pack.reads)


def test_every_category_is_asked_about_in_several_ways_and_leaning_to_yes_cancels_out(pack: Pack) -> None:
    """Yes/no reads come in both signs, in views of equal weight; a choice among options knows no leaning to yes."""
    for name, category in pack.categories.items():
        mine = [r for r in pack.reads if r.category == name]
        assert len({(r.query, r.F) for r in mine}) == len(mine) >= 2, f"{pack.id} {name} reads a question twice"
        assert category.aggregate == "views" and category.label
        asked = {p.query for p in pack.prompts if p.options[:2] in ((" Yes", " No"), (" True", " False"))}
        signs = {view: {r.sign for r in mine if r.view == view and r.query in asked} for view in ("direct", "contrast")}
        if any(r.query in asked for r in mine):
            assert signs == {"direct": {1.0}, "contrast": {-1.0}}, f"{pack.id} {name}"
        else:
            assert all(r.kind != "pair" for r in mine)


def test_what_speaks_for_a_category_raises_it(pack: Pack) -> None:
    """Answers that all speak for a category, then all against it: signs, options and views are wired as meant."""
    where = answer_places(pack)
    evaluator = Evaluator(pack)
    for c, name in enumerate(pack.categories):
        p = np.empty((2, pack.options))
        for prompt in pack.prompts:
            p[:, prompt.first : prompt.first + len(prompt.options)] = 1 / len(prompt.options)
        for read in (r for r in pack.reads if r.category == name):
            first, n = where[read.query, read.F]
            chosen = set(read.unsafe) if read.kind == "set" else {read.option if read.kind == "option" else int(read.sign < 0)}
            for row, share in ((0, 0.98), (1, 0.02)):
                p[row, first : first + n] = [share / len(chosen) if i in chosen else (1 - share) / (n - len(chosen)) for i in range(n)]
        high, low = evaluator.raw(p)[:, c]
        assert high == pytest.approx(0.98) and low == pytest.approx(0.02), f"{pack.id} {name}"
        macros = evaluator.figures(evaluator.answers(p, np.log(p))).macros[:, c]
        assert macros[0] > macros[1]


def test_required_categories_come_first(pack: Pack) -> None:
    """`requires` is applied in file order: a required category must have had its own applied before."""
    order = list(pack.categories)
    for name, category in pack.categories.items():
        assert all(order.index(r) < order.index(name) for r in category.requires)


def test_triage_intents_have_two_levels_and_each_label_of_banking77_has_one() -> None:
    pack = named("triage")
    levels = [name for name in pack.categories if name.split(".")[0] in ("question", "action", "problem", "charge", "security")]
    below = [name for name in levels if "." in name]
    assert len(levels) - len(below) == 5
    assert all(pack.categories[name].requires == (name.split(".")[0],) for name in below)
    labels: dict[str, str] = json.loads((FOLDER / "triage" / "banking77.json").read_text("utf-8"))["labels"]
    assert len(labels) == 77 and set(labels.values()) == set(below)


def test_the_labels_of_the_news_and_moderation_data_are_categories() -> None:
    for name, labels in LABELLED.items():
        assert labels and labels <= set(named(name).categories)
    assert list(named("moderation").contexts) == ["post", "message"]


def test_the_brand_is_a_required_parameter() -> None:
    pack = named("brand")
    assert pack.parameters["brand"].required
    before, after = pack.presentation(None, {"brand": "Acme {X}"})
    assert "Acme {X}" in before + after and "{brand}" not in before + after


def test_versions_of_a_pack_are_listed_newest_first() -> None:
    for entry in ENTRIES:
        versions = [tuple(map(int, row["version"].split("."))) for row in entry["versions"]]
        assert all(a > b for a, b in pairwise(versions))


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    entry = fetch("demo", Settings().cache())
    spec = describe(json.loads((entry.folder / "config.json").read_text("utf-8")))
    return Encoder.from_file(entry.folder / "tokenizer.json", spec.bos, spec.vocab)


@pytest.mark.model
def test_every_pack_compiles_for_the_demo_model(pack: Pack, encoder: Encoder) -> None:
    """No refusal, no warning, and options of one token but for a few."""
    for context in pack.contexts:
        compiled = build([Source(pack.doc["scoring"], "$.scoring", pack.id, context, case_insensitive=False)], encoder)
        assert compiled.plan.prompts == len(pack.prompts) and warnings(compiled) == []
    options = {o for q in pack.questions for o in q.query.options or ()}
    assert sum(len(encoder.encode(o)) > 1 for o in options) <= 4
