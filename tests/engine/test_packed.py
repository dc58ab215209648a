"""Packed, branched, chunked, continued: every read equals one plain forward per question (engine/reference.py)."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import make_tiny

from spinf_stream.engine import forest, reference
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.seam import NonFinite, PassInput
from spinf_stream.engine.torch_executor import TorchExecutor
from spinf_stream.engine.weights import load
from spinf_stream.questions.compile import Source, build
from spinf_stream.questions.plan import Plan

QUESTIONS = {
    "case_insensitive": True,
    "queries": [
        {"id": "a", "template": "\n\nIs this about {x}?{?}", "options": [" yes", " no"], "combinations": [{"x": w} for w in ("sport", "the world", "tech and business")]},
        {"id": "b", "template": "\n\nIs this about the end of the word:{?}", "options": [" 1", " 10", " the world"], "ends": True},
        {"id": "c", "template": "\n\nLook:{?}", "options": [" business", " politics"], "residual": False},
    ],
}  # fmt: skip
TRUNKS = (1, 5, 15, 16, 17, 40, 64)  # the tiny models' window is 16
WORST = 2e-5


@pytest.fixture(scope="module", params=["gemma3", "gemma4"])
def parts(request, tmp_path_factory):
    folder = make_tiny(tmp_path_factory.mktemp("m") / request.param, request.param)
    stack, encoder = load(str(folder), "float32", "cpu", tmp_path_factory.mktemp("cache"))
    questions = build([Source(QUESTIONS)], encoder)
    return TorchExecutor(stack, encoder.starts_alnum()), encoder, questions.plan


def trunks(lengths=TRUNKS, seed=0):
    rng = np.random.default_rng(seed)
    return [np.array([2, *rng.integers(10, 200, n - 1)], np.int32) for n in lengths]


def batch(ids, plan):
    start = np.zeros(len(ids) + 1, np.int64)
    np.cumsum([len(i) for i in ids], out=start[1:])
    return PassInput(np.concatenate(ids), start, np.full(len(ids), plan, np.int32))


def run(executor, plan, ids, budget=100_000):
    engine = PackedEngine(executor, budget)
    index = engine.register(plan)
    return engine.collect(engine.submit(batch(ids, index))).trees


def path_of(plan: Plan, read: int) -> list[int]:
    """The tokens between the trunk and a read."""
    path, node = [], int(plan.read_node[read])
    while node >= 0:
        path.append(int(plan.token[node]))
        node = int(plan.parent[node])
    return path[::-1]


def truth(executor, encoder, plan: Plan, ids):
    """cand [C], end [R] of one tree, each read by a forward of its own."""
    other = ~encoder.starts_alnum()
    cand, end = np.zeros(int(plan.cand_ptr[-1])), np.zeros(plan.reads)
    for r in range(plan.reads):
        row = reference.logprobs(executor.stack, [*ids.tolist(), *path_of(plan, r)], [-1])[0].numpy()
        at = slice(int(plan.cand_ptr[r]), int(plan.cand_ptr[r + 1]))
        cand[at] = row[plan.cand_token[at]]
        if plan.read_end[r]:
            end[r] = np.logaddexp.reduce(row[other])
    return cand, end


def test_every_read_equals_a_plain_forward(parts):
    executor, encoder, plan = parts
    ids = trunks()
    for tree, trunk in zip(run(executor, plan, ids), ids):
        cand, end = truth(executor, encoder, plan, trunk)
        for r in range(plan.reads):
            at = slice(int(plan.cand_ptr[r]), int(plan.cand_ptr[r + 1]))
            got = tree.cand[at]
            if plan.read_norm[r]:
                np.testing.assert_allclose(got, cand[at], atol=WORST, rtol=0)
            else:  # bare logits: equal up to the read's own normaliser
                np.testing.assert_allclose(got - got[0], cand[at] - cand[at][0], atol=WORST, rtol=0)
        np.testing.assert_allclose(tree.end, end, atol=WORST, rtol=0)


@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_every_read_is_that_of_transformers(tmp_path, family):
    """Not by way of our own reference; most trunks are longer than the window."""
    import torch
    import transformers

    folder = make_tiny(tmp_path / family, family, seed=4)
    stack, encoder = load(str(folder), "float32", "cpu", tmp_path / "cache")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    plan, ids = build([Source(QUESTIONS)], encoder).plan, trunks((5, 17, 40, 150))
    other = ~encoder.starts_alnum()
    for tree, trunk in zip(run(TorchExecutor(stack, encoder.starts_alnum()), plan, ids), ids):
        for r in range(plan.reads):
            with torch.no_grad():
                row = model(torch.tensor([[*trunk.tolist(), *path_of(plan, r)]])).logits[0, -1].double().log_softmax(-1).numpy()
            at = slice(int(plan.cand_ptr[r]), int(plan.cand_ptr[r + 1]))
            got, want = tree.cand[at], row[plan.cand_token[at]]
            shift = 0.0 if plan.read_norm[r] else got[0] - want[0]  # bare logits
            np.testing.assert_allclose(got - shift, want, atol=1e-4, rtol=0)
            if plan.read_end[r]:
                np.testing.assert_allclose(tree.end[r], np.logaddexp.reduce(row[other]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("budget", [200, 90, 60, 30])
def test_a_budget_changes_nothing(parts, budget):
    executor, _, plan = parts
    ids = trunks()
    whole = run(executor, plan, ids)
    for one, other in zip(whole, run(executor, plan, ids, budget)):
        np.testing.assert_allclose(one.cand, other.cand, atol=WORST, rtol=0)
        np.testing.assert_allclose(one.end, other.end, atol=WORST, rtol=0)


def test_neighbours_and_order_change_nothing(parts):
    executor, _, plan = parts
    ids = trunks()
    whole = run(executor, plan, ids)
    for i, trunk in enumerate(ids):
        np.testing.assert_allclose(run(executor, plan, [trunk])[0].cand, whole[i].cand, atol=1e-5, rtol=0)
    for one, other in zip(run(executor, plan, ids[::-1])[::-1], whole):
        np.testing.assert_allclose(one.cand, other.cand, atol=1e-5, rtol=0)


def test_a_long_plan_is_cut_into_whole_paths(parts):
    _, _, plan = parts
    whole = forest.chunks(plan, plan.nodes)
    assert len(whole) == 1 and whole[0].nodes == plan.nodes
    longest = int(plan.depth.max()) + 1
    parts_ = forest.chunks(plan, longest)
    assert len(parts_) > 2 and max(c.nodes for c in parts_) <= longest
    assert sorted(np.concatenate([c.read_index for c in parts_]).tolist()) == list(range(plan.reads))
    assert sorted(np.concatenate([c.cand_index for c in parts_]).tolist()) == list(range(len(plan.cand_token)))
    for c in parts_:
        for node in range(c.nodes):
            assert c.parent[node] < node and c.depth[node] == (0 if c.parent[node] < 0 else c.depth[c.parent[node]] + 1)
    with pytest.raises(ValueError, match=f"path has {longest} tokens"):
        forest.chunks(plan, longest - 1)


def test_a_nan_names_its_tree_and_never_leaves(parts):
    executor, _, plan = parts

    class Poisoned:
        stack, bit_exact, default_budget, numerics = executor.stack, False, 10_000, executor.numerics

        def launch(self, layout):
            return executor.launch(layout)

        def fetch(self, handle):
            got = executor.fetch(handle)
            cand = got.cand.copy()
            cand[len(cand) // 2] = np.nan  # the second tree's first: both have the same plan
            return got._replace(cand=cand)

    with pytest.raises(NonFinite) as e:
        run(Poisoned(), plan, trunks((5, 6)))
    assert e.value.tree == 1


def test_an_equal_plan_is_registered_once(parts):
    executor, _, plan = parts
    engine = PackedEngine(executor)
    assert engine.register(plan) == engine.register(plan) == 0
