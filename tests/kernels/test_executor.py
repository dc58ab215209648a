"""The GPU executor with the naive kernels on a CPU: its layout, slots, pruned last layer, continued passes and head
equal one plain forward per question."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import make_tiny

from spinf_stream.engine import reference
from spinf_stream.engine.gpu.executor import GpuExecutor, unsupported
from spinf_stream.engine.gpu.gates import Trial
from spinf_stream.engine.gpu.ops import naive_ops
from spinf_stream.engine.gpu.slots import own_slots
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.seam import PassInput
from spinf_stream.engine.stack import Stack
from spinf_stream.engine.weights import load
from spinf_stream.questions.compile import Source, build

QUESTIONS = {
    "case_insensitive": True,
    "queries": [
        {"id": "a", "template": "\n\nIs this about {x}?{?}", "options": [" yes", " no"], "combinations": [{"x": w} for w in ("sport", "the world", "tech and business of a rather long name that goes on past thirty-two tokens")]},
        {"id": "b", "template": "\n\nIs this about the end of the word:{?}", "options": [" 1", " 10", " the world"], "ends": True},
        {"id": "c", "template": "\n\nLook:{?}", "options": [" business", " politics"], "residual": False},
    ],
}  # fmt: skip
TRUNKS = (1, 5, 15, 16, 17, 40, 64, 65)  # the tiny models' window is 16


@pytest.fixture(scope="module", params=["gemma3", "gemma4"])
def parts(request, tmp_path_factory):
    folder = make_tiny(tmp_path_factory.mktemp("m") / request.param, request.param)
    stack, encoder = load(str(folder), "float32", "cpu", tmp_path_factory.mktemp("cache"))
    return stack, encoder.starts_alnum(), build([Source(QUESTIONS)], encoder).plan


def trunks(lengths=TRUNKS):
    rng = np.random.default_rng(0)
    return [np.array([2, *rng.integers(10, 200, n - 1)], np.int32) for n in lengths]


def run(stack: Stack, alnum, plan, ids, budget=100_000, **options):
    engine = PackedEngine(GpuExecutor(stack, alnum, **options), budget)
    index = engine.register(plan)
    start = np.concatenate([[0], np.cumsum([len(i) for i in ids])]).astype(np.int64)
    batch = PassInput(np.concatenate(ids), start, np.full(len(ids), index, np.int32))
    return engine.collect(engine.submit(batch)).trees


def truth(stack, alnum, plan, ids):
    cand, end = np.zeros(int(plan.cand_ptr[-1])), np.zeros(plan.reads)
    for r in range(plan.reads):
        path, node = [], int(plan.read_node[r])
        while node >= 0:
            path.append(int(plan.token[node]))
            node = int(plan.parent[node])
        row = reference.logprobs(stack, [*ids.tolist(), *path[::-1]], [-1])[0].numpy()
        span = slice(plan.cand_ptr[r], plan.cand_ptr[r + 1])
        cand[span] = row[plan.cand_token[span]]
        if plan.read_end[r]:
            other = np.ones(len(row), bool)
            other[: len(alnum)] = ~alnum
            end[r] = np.logaddexp.reduce(row[other])
    return cand, end


def worst(got, want, plan):
    """Largest difference of what both define: candidates without a norm are compared up to a constant a read."""
    error = 0.0
    for r in range(plan.reads):
        span = slice(plan.cand_ptr[r], plan.cand_ptr[r + 1])
        d = got.cand[span] - want[0][span]
        if not len(d):
            continue  # a read for its end alone
        error = max(error, float(np.abs(d if plan.read_norm[r] else d - d[0]).max()))
    return max(error, float(np.abs(got.end - want[1]).max()))


def test_equals_one_forward_per_question(parts):
    stack, alnum, plan = parts
    ids = trunks()
    for tree, got in zip(ids, run(stack, alnum, plan, ids)):
        assert worst(got, truth(stack, alnum, plan, tree), plan) < 2e-5


def test_continued_passes(parts):
    stack, alnum, plan = parts
    ids = trunks((40,))
    longest = int(plan.depth.max()) + 1
    cut = run(stack, alnum, plan, ids, budget=40 + longest)[0]
    assert worst(cut, truth(stack, alnum, plan, ids[0]), plan) < 2e-5


def test_fp8_stack_follows_its_dequantised_weights(parts):
    """Eight-bit activations cost a little everywhere; a part's scale gone wrong costs more than that."""
    stack, alnum, plan = parts
    soft = tuple(replace(layer, scale=0.1) for layer in stack.spec.layers)  # Gemma 4's sharp softmax would drown the effect
    stack = replace(stack, spec=replace(stack.spec, layers=soft))
    eight, ids = fp8(stack), trunks((24, 17))
    wants = [truth(eight, alnum, plan, tree)[0] for tree in ids]

    def error(model: Stack, row_scales: bool) -> float:
        normed = np.repeat(plan.read_norm, np.diff(plan.cand_ptr))
        got = run(model, alnum, plan, ids, row_scales=row_scales)
        return float(np.mean([np.abs(g.cand - w)[normed].mean() for g, w in zip(got, wants)]))

    rows, static = error(eight, True), error(eight, False)
    assert rows < 0.2 and static < 0.2
    gate = replace(eight, layers=[replace(w, weight_scale={**w.weight_scale, "gate_up": 4 * w.weight_scale["gate_up"]}) for w in eight.layers])
    assert error(gate, True) > 2 * rows


def test_fused_mlp_equals_its_two_halves(parts):
    """On weights whose gate and up are interleaved in place; an executor of another kind then refuses the stack."""
    stack, alnum, plan = parts
    ids = trunks((17, 5))
    want = run(fp8(stack), alnum, plan, ids)
    mixed = fp8(stack)
    got = run(mixed, alnum, plan, ids, ops=naive_ops(fused=True))
    for a, b in zip(want, got):
        np.testing.assert_allclose(a.cand, b.cand, atol=2e-5, rtol=0)
    run(mixed, alnum, plan, ids, ops=naive_ops(fused=True))  # a second executor does not interleave again
    with pytest.raises(ValueError, match="interleaved"):
        GpuExecutor(mixed, alnum)


def test_what_the_kernels_cannot_run_is_said(parts):
    stack = parts[0]
    assert "float32" in (unsupported(stack) or "")
    half = replace(stack, embed=stack.embed.bfloat16())
    assert "torch.float32" in (unsupported(half) or "")
    half = replace(half, layers=[replace(w, qkv=w.qkv.bfloat16()) for w in stack.layers])
    assert "head size 16" in (unsupported(half) or "")


def fp8(stack: Stack) -> Stack:
    """Every linear in e4m3 with parts of different scales, static input scales that fit these activations."""
    layers = []
    for spec, w in zip(stack.spec.layers, stack.layers):
        d = spec.head_dim
        cuts = {
            "qkv": [spec.heads * d] + [spec.kv_heads * d] * (1 if spec.k_eq_v else 2), "o": [stack.spec.hidden],
            "gate_up": [stack.spec.intermediate] * 2, "down": [stack.spec.hidden],
        }  # fmt: skip
        values, scales = {}, {}
        for name, cut in cuts.items():
            parts = getattr(w, name).float().split(cut)
            s = [p.abs().max() / 448 * (1 + i) for i, p in enumerate(parts)]
            values[name] = torch.cat([(p / c).to(torch.float8_e4m3fn) for p, c in zip(parts, s)])
            scales[name] = torch.cat([c.repeat(n) for c, n in zip(s, cut)]) if len(cut) > 1 else s[0][None]
        layers.append(replace(w, **values, weight_scale=scales, input_scale={"qkv": 0.0625, "o": 0.0625, "gate_up": 0.0625, "down": 0.0625}))
    return replace(stack, layers=layers, scheme="fp8-static")


def test_slots_of_a_path_are_its_own(parts):
    """No path straddles a block; deleting every other question leaves a path's place in 16-, 32- and 64-wide steps the same."""
    from spinf_stream.engine import forest

    plan = parts[2]
    whole = forest.chunks(plan, plan.nodes)[0]
    own = own_slots(whole)
    for small in forest.chunks(plan, int(plan.depth.max()) + 1):
        part = own_slots(small)
        for r, index in enumerate(small.read_index):
            a, b = int(small.read_node[r]), int(whole.read_node[index])
            if a < 0:
                continue
            assert small.depth[a] == whole.depth[b]
            length, begins = int(small.depth[a]) + 1, (int(part.begin[a]), int(own.begin[b]))
            for begin, table, chunk in ((begins[0], part, small), (begins[1], own, whole)):
                assert begin % 16 == 0
                assert begin % 64 == 0 if length > 32 else begin // 32 == (begin + length - 1) // 32
                path = table.node[begin : begin + length]
                assert (chunk.depth[path] == np.arange(length)).all()
    assert len(own.node) % 64 == 0


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = make_tiny(tmp_path_factory.mktemp("m") / "two", "gemma4", num_hidden_layers=2)
    stack, encoder = load(str(folder), "float32", "cpu", tmp_path_factory.mktemp("cache"))
    return stack, encoder.starts_alnum()


def test_gates_hold_on_the_naive_kernels_within_rounding(small):
    """The gates themselves run and find nothing; a broken executor is found (below)."""
    trial = Trial(GpuExecutor(*small), tolerance=2e-5, lengths=(1, 16, 17), others=(1, 2), count=6, common=12)
    gates = list(trial.gates())
    assert len(gates) == 8 + 3 and [g for g in gates if not g.passed] == []


def test_gates_find_a_row_that_depends_on_its_neighbours(small):
    executor = GpuExecutor(*small)
    fetch = executor.fetch

    def leaky(handle):
        got = fetch(handle)
        return got._replace(cand=got.cand + 1e-4 * len(handle.layout.token))

    executor.fetch = leaky
    trial = Trial(executor, tolerance=2e-6, lengths=(1, 16), others=(1,), count=6, common=12)
    found = {g.name for g in trial.gates() if not g.passed}
    assert {"article alone = packed with 1 others", "question alone = with its siblings", "with = without shared stems"} <= found


def test_a_product_that_depends_on_its_rows_is_given_to_our_own_kernel(parts, tmp_path, monkeypatch, caplog):
    """For good: the record says so to the next start, and the numerics to the fingerprint."""
    from spinf_stream.engine.gpu import gates, proven

    stack, alnum, _ = parts
    bad = tuple(fp8(stack).layers[0].qkv.shape)
    tried = []

    def product(weight, fast, own, rows):
        tried.append((tuple(weight.shape), own))
        return 1.0 if tuple(weight.shape) == bad and not own else 0.0

    monkeypatch.setattr(gates, "_product", product)
    monkeypatch.setattr(proven, "head_gate", lambda *of: gates.Gate("head", 0.0))
    monkeypatch.setattr(gates.Trial, "gates", lambda self: iter(()))
    first, second, third = (GpuExecutor(fp8(stack), alnum) for _ in range(3))
    same = dict(first.numerics)
    assert proven.prove(first, tmp_path, lambda line: None) and first.numerics == same | {"own products": [bad]}
    assert tried.count((bad, False)) == tried.count((bad, True)) == 1 and len(tried) == len({shape for shape, _ in tried}) + 1
    assert "our own kernel takes it over" in caplog.text
    tried.clear()
    assert proven.prove(second, tmp_path, lambda line: None) and second.numerics == first.numerics and tried == []
    for executor, owned in ((first, True), (second, True), (third, False)):
        for forward in (executor.forward, executor.grower.forward):
            for layer, w in zip(forward.layers, stack.layers):
                assert all(p.own == owned for p in (layer.qkv, layer.q, layer.kv) if p is not None and tuple(w.qkv.shape) == bad)
                assert not any(p.own for p in (layer.o, layer.down))
    monkeypatch.setattr(gates, "_product", lambda weight, fast, own, rows: 1.0)
    worse = tmp_path / "worse"
    assert not proven.prove(third, worse, lambda line: None) and "by our own kernel" in next(worse.iterdir()).read_text()
