"""On a card: decode steps. Every gate exact for the shapes that ship, graphs equal to plain launches, whole slots alone and
among others, and decoding beside passes from another thread.

    python -m pytest --noconftest -m cuda tests/kernels/test_cuda_slots.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from shapes import gemma3_270m, gemma4_12b, random_stack

from spinf_stream.engine.gpu.executor import GpuExecutor
from spinf_stream.engine.gpu.head import GpuHead
from spinf_stream.engine.gpu.ops import triton_ops
from spinf_stream.engine.gpu.proven import prove_slots
from spinf_stream.engine.gpu.slot_gates import SlotTrial, automata
from spinf_stream.engine.gpu.synthetic import articles, batch, plan_of, questions
from spinf_stream.engine.grow import Step
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.runner import Runner
from spinf_stream.slots.head import SlotHead
from spinf_stream.slots.plan import Sampling, Slot, SlotPlan

pytestmark = pytest.mark.cuda
VOCAB = 262_144
ALNUM = np.arange(VOCAB) % 3 == 0
SHAPES = {
    "12B fp8": lambda: random_stack(gemma4_12b(6), "cuda"),
    "12B bf16": lambda: random_stack(gemma4_12b(3, every=3), "cuda", "bf16"),
    "270M bf16": lambda: random_stack(gemma3_270m(), "cuda", "bf16"),
}
PATHS = questions(12, VOCAB)
PLAN = plan_of(PATHS, (7, 99, 12_345))
FEW, WHOLE = automata(VOCAB)
SLOTS = SlotPlan(
    (
        Slot(np.array(PATHS[1], np.int32), "search", 0, 16),
        Slot(np.array(PATHS[2], np.int32), "search", 1, 8),
        Slot(np.array(PATHS[3], np.int32), "generate", 1, 24, Sampling(1.0, 0.9, 40, 7, 3)),
        Slot(np.array(PATHS[0], np.int32), "generate", 1, 24, Sampling(0.0, 1.0, 1, 0, 1)),
    ),
    (FEW, WHOLE),
)
LENGTHS = (300, 1, 64, 65, 470, 1100)
PASSES = 12
MORE = 58  # articles beside those


def slots(executor, trunks):
    engine = PackedEngine(executor, 1 << 20)
    index = engine.register(PLAN, SLOTS)
    return engine.collect(engine.submit(batch(trunks, [index] * len(trunks)))).trees


def same(one, other):
    assert all(np.array_equal(a, b) for a, b in zip(one.slots, other.slots)), "ptr, token_ptr, token, logprob, taken, complete, rows"


@pytest.mark.parametrize("shape", SHAPES)
def test_every_gate_of_decode_steps_is_exact(shape):
    executor = GpuExecutor(SHAPES[shape](), ALNUM)
    gates = list(SlotTrial(executor).gates())
    assert len(gates) == 10 and [g for g in gates if not g.passed] == []
    assert executor.grower.graphs and executor.grower.captured, "graphs were captured, and replayed in the gates above"


def test_gates_are_remembered(tmp_path):
    executor, said = GpuExecutor(random_stack(gemma3_270m(2), "cuda", "bf16"), ALNUM), []
    for _ in range(2):
        prove_slots(executor, tmp_path, said.append)
        assert executor.slot_faults == [] and len(said) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_slots_alone_and_among_others_with_and_without_graphs(shape):
    """Searched and sampled ones: 64 articles at once are 256 programs and as many sequences."""
    executor = GpuExecutor(SHAPES[shape](), ALNUM)
    trunks = articles([*LENGTHS, *range(100, 100 + MORE)], VOCAB)
    together = slots(executor, trunks)
    for i in (0, 1, 3, 5, 6 + MORE // 2):
        same(slots(executor, trunks[i : i + 1])[0], together[i])
    executor.grower.padded = False
    for one, other in zip(slots(executor, trunks[:6]), together):
        same(one, other)


def test_the_head_reads_what_a_plain_one_reads_and_each_row_the_same_alone():
    """Both kinds of automata and picks in one step, hundreds of rows, an odd number of tokens."""
    rng = np.random.default_rng(3)
    hidden = torch.randn(300, 256, device="cuda").bfloat16()
    embed = (torch.randn(VOCAB, 256, device="cuda") / 4).bfloat16()
    head = GpuHead(triton_ops(hidden.device, 256, 512), embed, 30.0, torch.zeros(VOCAB, dtype=torch.uint8, device="cuda"))
    which, zeros, none = rng.integers(0, 2, 300).astype(np.int32), np.zeros(300, np.int32), np.zeros(0, np.int32)
    pick = rng.integers(0, VOCAB, 600).astype(np.int32)
    step = Step((), none, none, none, none, none, np.arange(300), (FEW, WHOLE), which, zeros, np.arange(301) * 2, pick, 6)
    got, want = head.read(hidden, step), SlotHead(embed.float(), 30.0).read(hidden.float(), step)
    assert len(FEW.token) % 4 == 1, "rows of sums that are not aligned alike"
    for name in ("logprob", "first", "second", "pick"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), atol=2e-4, rtol=2e-4)
    assert (got.token == want.token).mean() > 0.99, "but for near ties"
    for i in (0, 1, 7, 130, 299):
        one = head.read(hidden[i : i + 1], step._replace(read=step.read[:1], automaton=which[i : i + 1], state=zeros[:1], pick_ptr=step.pick_ptr[:2], pick=pick[2 * i : 2 * i + 2]))  # fmt: skip
        assert all(np.array_equal(x[0], y[i]) for x, y in zip(one[:4], got[:4])) and np.array_equal(one.pick, got.pick[2 * i : 2 * i + 2])


def test_decoding_beside_passes_has_the_same_bits():
    executor = GpuExecutor(SHAPES["12B fp8"](), ALNUM)
    trunks, busy = articles(LENGTHS, VOCAB), articles([1500 + i for i in range(8)], VOCAB)
    want = slots(executor, trunks)
    engine = PackedEngine(executor, 1 << 20)
    with_, without = engine.register(PLAN, SLOTS), engine.register(PLAN)

    async def go():
        runner = Runner(engine)
        decoded = [asyncio.create_task(runner.run(batch([t], [with_]))) for t in trunks]
        passes = await asyncio.gather(*(runner.run(batch(busy, [without] * len(busy))) for _ in range(PASSES)))
        out = [(await d).trees[0] for d in decoded]
        await runner.close()
        return out, passes, runner

    got, passes, runner = asyncio.run(go())
    assert 0.5 * runner.wall_seconds < runner.busy_seconds < 1.002 * runner.wall_seconds, "no moment of the device is counted twice"
    for one, other in zip(got, want):
        same(one, other)
    assert all(np.array_equal(a.cand, b.cand) for p in passes[1:] for a, b in zip(p.trees, passes[0].trees))
