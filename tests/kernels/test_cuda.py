"""On a card: every gate exact for the shapes that ship, the executor against plain torch, and what happens without memory.

    python -m pytest --noconftest -m cuda tests/kernels/test_cuda.py
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from shapes import gemma3_270m, gemma4_12b, random_stack

from spinf_stream.engine.gpu.executor import GpuExecutor
from spinf_stream.engine.gpu.gates import product_gate, products
from spinf_stream.engine.gpu.linear import Projection
from spinf_stream.engine.gpu.proven import every_gate, prove
from spinf_stream.engine.gpu.synthetic import articles, batch, plan_of, questions
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.seam import OutOfMemory
from spinf_stream.engine.torch_executor import TorchExecutor

pytestmark = pytest.mark.cuda
ALNUM = np.arange(262_144) % 3 == 0
SHAPES = {
    "12B fp8": lambda: random_stack(gemma4_12b(6), "cuda"),
    "12B bf16": lambda: random_stack(gemma4_12b(3, every=3), "cuda", "bf16"),
    "270M bf16": lambda: random_stack(gemma3_270m(), "cuda", "bf16"),
}


def plan():
    paths = questions(24, 262_144)
    return plan_of(paths, (7, 99, 12_345, 262_143))


def read(executor, trunks, budget=1 << 20):
    engine = PackedEngine(executor, budget)
    index = engine.register(PLAN)
    return engine, engine.collect(engine.submit(batch(trunks, [index] * len(trunks)))).trees


PLAN = plan()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_gate_is_exact(shape):
    gates = list(every_gate(GpuExecutor(SHAPES[shape](), ALNUM)))
    assert len(gates) >= 24 and [g for g in gates if not g.passed] == []


def test_our_own_kernel_multiplies_eight_bits_as_cublas_does_and_each_row_the_same():
    """It takes over where a product's bits depend on the number of rows; nothing here does."""
    stack = random_stack(gemma4_12b(6), "cuda")
    for weight in products(stack):
        assert product_gate(weight, True, own=True).passed, weight.shape
        x = (torch.randn(80, weight.shape[1], device="cuda") * 40).clamp(-448, 448).to(weight.dtype)
        run, out = Projection(weight, (0.5, 2.0), fast=True), [torch.empty(80, weight.shape[0], dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        for run.own in (False, True):
            run(x, out[run.own])
        error = (out[0].float() - out[1].float()).abs().max() / out[0].float().abs().max()
        assert error < 0.01, (weight.shape, float(error))


def test_gates_are_remembered(tmp_path):
    executor = GpuExecutor(random_stack(gemma3_270m(2), "cuda", "bf16"), ALNUM)
    said: list[str] = []
    assert prove(executor, tmp_path, said.append) and executor.bit_exact and len(said) == 1
    assert prove(executor, tmp_path, said.append) and len(said) == 1


@pytest.mark.parametrize("shape", ["12B bf16", "270M bf16"])
def test_bf16_follows_plain_float32(shape):
    """Of the same weights; no further away than plain torch in bfloat16 is."""
    stack = SHAPES[shape]()
    names = ("qkv", "o", "gate_up", "down")
    exact = replace(stack, embed=stack.embed.float(), layers=[replace(w, **{n: getattr(w, n).float() for n in names}) for w in stack.layers])
    trunks = articles([1, 40, 300], 262_144)
    want, plain, fused = (read(e, trunks)[1] for e in (TorchExecutor(exact, ALNUM), TorchExecutor(stack, ALNUM), GpuExecutor(stack, ALNUM)))

    def error(trees):
        return float(np.sqrt(np.mean([np.mean((t.cand - w.cand) ** 2) for t, w in zip(trees, want)])))

    assert error(fused) < 1.2 * error(plain), (error(fused), error(plain))
    assert max(np.abs(f.end - w.end).max() for f, w in zip(fused, want)) < 0.2


def test_a_pass_that_does_not_fit_is_an_error_and_a_smaller_one_has_the_same_bits():
    executor = GpuExecutor(random_stack(gemma4_12b(2, every=2), "cuda"), ALNUM)
    small, large = articles([200, 64], 262_144), articles([4000 + i for i in range(40)], 262_144)  # 8 GiB of buffers
    before = read(executor, small)[1]
    torch.cuda.empty_cache()  # what earlier tests left would make room
    whole, used = torch.cuda.mem_get_info()[1], torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((used + (3 << 30)) / whole)
    try:
        engine = PackedEngine(executor, 1 << 20)
        index = engine.register(PLAN)
        with pytest.raises(OutOfMemory, match="does not fit"):
            engine.submit(batch(large, [index] * len(large)))
        assert engine.budget < 1 << 20
        after = read(executor, small)[1]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(np.array_equal(a.cand, b.cand) for a, b in zip(before, after))


def test_outgrown_buffers_are_freed_and_forgetting_frees_the_rest():
    """Attention remembers its keys' buffers; what it remembered is let go with them."""
    executor = GpuExecutor(random_stack(gemma4_12b(2, every=2), "cuda"), ALNUM)
    beside = []
    for count in (1, 4, 12):
        read(executor, articles([1500 + i for i in range(count)], 262_144))
        held = sum(t.nbytes for t in executor.forward.arena.of.values())
        beside.append(torch.cuda.memory_allocated() - held)
    assert max(beside) - beside[0] < 32 << 20, [b / 2**20 for b in beside]  # uploads grow too
    before = torch.cuda.memory_allocated()
    executor.forward.forget()
    assert before - torch.cuda.memory_allocated() >= held > 512 << 20


def test_nan_stays_in_its_article():
    stack = random_stack(gemma3_270m(3), "cuda", "bf16")
    executor = GpuExecutor(stack, ALNUM)
    trunks = articles([70, 33, 129], 262_144)
    clean = executor.fetch(executor.launch(_layout(trunks)))
    token = int(np.setdiff1d(np.arange(10, 5000), np.concatenate([*trunks, PLAN.token]))[0])
    stack.embed[token, :] = float("nan")
    trunks[1][5] = token
    fault = executor.fetch(executor.launch(_layout(trunks)))
    per = int(PLAN.cand_ptr[-1])
    # the token is in the vocabulary too, so norms are NaN everywhere: bare logits tell the articles apart
    assert np.isnan(fault.cand).all() and np.isfinite(clean.cand).all()
    logits = _logits(executor, trunks)
    stack.embed[token, :] = 0.0
    trunks[1][5] = 11
    want = _logits(executor, trunks)
    assert np.array_equal(logits[:per], want[:per]) and np.array_equal(logits[2 * per :], want[2 * per :])
    assert np.isnan(logits[per : 2 * per]).all()


def _layout(trunks, norm=True):
    from spinf_stream.engine import forest

    plan_ = PLAN if norm else replace(PLAN, read_norm=np.zeros_like(PLAN.read_norm), read_end=np.zeros_like(PLAN.read_end))
    chunk = forest.chunks(plan_, 1 << 20)[0]
    start = np.concatenate([[0], np.cumsum([len(t) for t in trunks])]).astype(np.int64)
    return forest.layout(np.concatenate(trunks), start, (chunk,) * len(trunks))


def _logits(executor, trunks):
    return executor.fetch(executor.launch(_layout(trunks, norm=False))).cand
