"""Slots decoded together, of many articles and kinds, equal the plain reference one by one."""

from __future__ import annotations

import numpy as np
import pytest
from slot_parts import CLOSE, GENERATED, QUERIES, TEXTS, Parts, check, endings, tolerance

from spinf_stream.config import Settings
from spinf_stream.engine.grow import Grown
from spinf_stream.engine.open import open_model
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.reference import logprobs
from spinf_stream.engine.seam import NonFinite, OutOfMemory
from spinf_stream.slots import decoding
from spinf_stream.slots.automaton import Automaton
from spinf_stream.slots.program import Program, Wanted
from spinf_stream.slots.reference import Reader


@pytest.fixture(scope="module", params=["gemma3", "gemma4"])
def parts(request, tmp_path_factory):
    return Parts(tmp_path_factory.mktemp("m"), request.param, QUERIES + GENERATED)


def test_every_slot_equals_the_reference(parts):
    trees = parts.run(TEXTS).trees
    many = sum(check(parts, text, tree) for text, tree in zip(TEXTS, trees))
    assert many > 60


def test_the_reference_reads_as_a_plain_forward(parts):
    ids = parts.ids(TEXTS[2]).tolist()
    reader = Reader(parts.stack, ids[:20])
    for n in (20, 21, 23, len(ids)):
        plain = logprobs(parts.stack, ids[:n], [-1])[0].numpy()
        np.testing.assert_allclose(reader.after(tuple(ids[20:n])), plain, atol=CLOSE, rtol=0)


@pytest.mark.model
def test_the_demo_model_equals_the_reference_too():
    model = open_model(Settings(model="demo"), lambda line: None)
    asked = [
        {"id": "who", "template": "\n\nThe company is called \"{*}\"", "max_tokens": 3},
        {"id": "stop", "template": "\n\nIt grew in{*} of", "max_tokens": 2},
        {"id": "paid", "template": "\n\nIt paid{$}", "max_tokens": 6},
        {"id": "copied", "template": "\n\nIt paid{$}", "mode": "copy_only"},
        {"id": "piece", "template": "\n\nThe company is{*}", "mode": "copy_only", "max_tokens": 4},
        {"id": "written", "template": "\n\nIn short:{*}", "generate": {"temperature": 0.8, "top_k": 20, "n": 2, "seed": 3}, "max_tokens": 4},
    ]
    parts = Parts.__new__(Parts).made(model.stack, model.encoder, asked)
    text = "Shares of Northwind Traders rose 4% after it paid $1.2bn for a chain of 350 shops in Norway."
    assert check(parts, text, parts.run([text]).trees[0]) > 10


def test_company_changes_nothing(parts):
    together = parts.run(TEXTS * 4).trees
    for i, text in enumerate(TEXTS):
        alone = parts.run([text]).trees[0].slots
        for other in together[i :: len(TEXTS)]:
            for slot in range(len(parts.slots.places)):
                for a, b in zip(endings(alone, slot), endings(other.slots, slot), strict=True):
                    assert a[:3] == b[:3] and abs(a[3] - b[3]) <= tolerance(len(a[0]))


def test_scores_are_the_same_with_and_without_slots(parts):
    engine = PackedEngine(parts.executor, 4000)
    bare = engine.collect(engine.submit(parts.batch(TEXTS, engine.register(parts.questions.plan))._replace(copies=None)))
    for one, other in zip(bare.trees, parts.run(TEXTS).trees):
        np.testing.assert_array_equal(one.cand, other.cand)
        assert one.slots is None and bare.slot_rows == 0


def test_a_trunk_over_the_budget_decodes_too(parts):
    whole = parts.run(TEXTS).trees
    for one, other in zip(whole, parts.run(TEXTS, PackedEngine(parts.executor, 40)).trees):
        for slot in range(len(parts.slots.places)):
            assert [e[:3] for e in endings(one.slots, slot)] == [e[:3] for e in endings(other.slots, slot)]


def test_passes_decode_together_and_rows_come_free_again(parts, monkeypatch):
    monkeypatch.setattr(decoding, "ROWS", 40)  # so that most programs wait for their turn
    engine = PackedEngine(parts.executor, 4000)
    index = engine.register(parts.questions.plan, parts.slots.plan)
    first, second = (engine.begin(engine.submit(parts.batch(texts, index))) for texts in (TEXTS[:1], TEXTS[1:]))
    steps = 0
    while not (first.done and second.done):
        engine.advance()
        steps += 1
    trees = (*first.output().trees, *second.output().trees)
    for text, tree, want in zip(TEXTS, trees, parts.run(TEXTS).trees):
        for place in parts.slots.places:
            got = endings(tree.slots, place.slot)
            assert [e[:3] for e in got] == [e[:3] for e in endings(want.slots, place.slot)], text
    for output in (first.output(), second.output()):
        assert sum(output.slot_rows_by) == output.slot_rows and min(output.slot_rows_by) > 10, "searched, copied, generated"
    d = engine.decoder
    assert steps > 20 and not d.live and sorted(d.free) == list(range(d.used))
    assert first.output().slot_rows == trees[0].slots.rows > 60


def test_a_sequence_depends_on_its_request_alone(tmp_path):
    draws = [
        {"id": f"d{i}", "template": f"\n\nTell {i}:{{*}}", "generate": {"temperature": 1.2, "n": 2, "seed": i % 3}, "max_tokens": 14}
        for i in range(32)
    ]  # fmt: skip
    many = Parts(tmp_path, "gemma3", draws)
    one = Parts(tmp_path, "gemma3", draws[7:8])
    more = Parts(tmp_path, "gemma3", [draws[7] | {"generate": {"temperature": 1.2, "n": 5, "seed": 1}}])
    together = endings(many.run(TEXTS[:2]).trees[0].slots, 7)  # 64 sequences of this article, and 64 of another
    alone, of_five = (endings(p.run(TEXTS[:1]).trees[0].slots, 0) for p in (one, more))
    assert [e[0] for e in together] == [e[0] for e in alone] == [e[0] for e in of_five[:2]]
    assert len({e[0] for e in of_five}) > 1 and max(len(e[0]) for e in of_five) > 4
    other = Parts(tmp_path, "gemma3", [draws[7] | {"generate": {"temperature": 1.2, "n": 2, "seed": 4}}])
    assert [e[0] for e in endings(other.run(TEXTS[:1]).trees[0].slots, 0)] != [e[0] for e in alone]


def test_at_temperature_0_the_sequences_differ(parts):
    place = next(p for p in parts.slots.places if parts.slots.queries[p.query].id == "greedy")
    for tree in parts.run(TEXTS).trees:
        assert len({e[0] for e in endings(tree.slots, place.slot)}) == 3


def test_what_is_not_finite_names_its_tree_and_leaves_the_others(parts):
    class Poisoned:
        def __init__(self):
            self.calls = 0

        def __getattr__(self, name):
            return getattr(parts.executor, name)

        def grow(self, step):
            self.calls += 1
            got = parts.executor.grow(step)
            if self.calls == 2:
                row = int(np.flatnonzero(step.trunk[step.read] == step.trunk.max())[0])
                got.first[row] = np.nan
            return got

    engine = PackedEngine(Poisoned(), 4000)
    index = engine.register(parts.questions.plan, parts.slots.plan)
    good, bad = engine.begin(engine.submit(parts.batch(TEXTS[:1], index))), engine.begin(engine.submit(parts.batch(TEXTS[1:], index)))
    while not (good.done and bad.done):
        engine.advance()
    assert good.output().trees[0].slots.rows > 0
    with pytest.raises(NonFinite) as e:
        bad.output()
    assert e.value.tree == 1 and not engine.decoder.live


def test_a_step_that_fails_fails_the_passes_that_share_it(parts):
    class Failing:
        def __getattr__(self, name):
            return getattr(parts.executor, name)

        def grow(self, step):
            raise OutOfMemory("no room")

    engine = PackedEngine(Failing(), 4000)
    index = engine.register(parts.questions.plan, parts.slots.plan)
    with pytest.raises(OutOfMemory):
        engine.collect(engine.submit(parts.batch(TEXTS, index)))
    assert not engine.decoder.live and sorted(engine.decoder.free) == list(range(engine.decoder.used))


def test_an_executor_that_cannot_decode_says_so(parts):
    class Plain:
        bit_exact, default_budget = False, 100

        def launch(self, layout): ...

        def fetch(self, handle): ...

    engine = PackedEngine(Plain())
    engine.register(parts.questions.plan)
    with pytest.raises(ValueError, match="cannot decode"):
        engine.register(parts.questions.plan, parts.slots.plan)


def test_templates_that_begin_alike_share_rows_below_one_trunk():
    """But not the last, which is read; whoever ends first, the others keep what they share, and all of it comes free."""

    one = np.ones(1, bool)
    automaton = Automaton(np.zeros(1, np.int32), np.zeros((1, 1), np.int16), one, one, True, one[None], one[None], np.zeros(1, np.int32))

    class Once(Program):
        def __init__(self, template, steps):
            super().__init__(template, automaton)
            self.left = steps
            self.wanted = [Wanted(self.stem, 0)]

        def feed(self, reads):
            self.left -= 1
            self.wanted = [Wanted(self.add(9, len(self.token) - 1), 0)] if self.left else []

    seen = []

    class Recording:
        fail = False

        def grow(self, step):
            seen.append(step)
            if self.fail:
                raise OutOfMemory("full")
            r = len(step.read)
            return Grown(np.zeros((r, 0), np.int32), np.zeros((r, 0)), np.zeros(r), np.zeros(r), np.zeros(0), 1.0)

    decoder = decoding.Decoder(Recording())
    here, there = decoding.Below(object(), 5), decoding.Below(object(), 7)
    for below, template, steps in ((here, [1, 2, 3, 4], 1), (here, [1, 2, 5], 3), (there, [1, 2, 3, 4], 2), (here, [1, 2, 3, 4], 3)):
        decoder.add(None, (0, 0), below, Once(template, steps))
    decoder.grower.fail = True
    with pytest.raises(OutOfMemory):
        decoder.advance()
    assert sorted(decoder.free) == list(range(decoder.used)) and not decoder.begun and not decoder.shared
    decoder.grower.fail = False
    done = decoder.advance()
    step = seen[-1]
    assert step.token.tolist() == [1, 2, 3, 4, 5, 4, 1, 2, 3, 4] and step.read.tolist() == [3, 4, 5, 9]
    path = step.path.tolist()
    assert path[4][:2] == path[3][:2] and path[5][:3] == path[3][:3] and path[5][3] != path[3][3] and set(path[9]).isdisjoint(path[3])
    assert [p.rows for p in done] == [4] and done[0].seconds == pytest.approx(4 / 15)
    decoder.add(None, (0, 0), here, Once([1, 2, 3, 8], 1))  # what the first computed is still there for it
    late = next(live for live in decoder.advance() if live.program.token[3:] == [8])
    assert seen[-1].token.tolist() == [9, 9, 8, 9] and seen[-1].path[2].tolist()[:3] == path[5][:3] and late.rows == 4
    while decoder.live:
        decoder.advance()
    assert sorted(decoder.free) == list(range(decoder.used)) and not decoder.begun and not decoder.shared
