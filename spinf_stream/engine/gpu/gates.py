"""Bit gates: what an article's numbers must not depend on, tried on this card with this model, compared with ==.

A gate is a sentence and the largest difference that was found; it passes at 0 (or at `tolerance`, where an executor
promises no more). kernels.md 3.6 lists them, DECISIONS 20 says why a question alone must equal it among its siblings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from spinf_stream.engine.executor import Executor
from spinf_stream.engine.gpu.linear import FP8, Projection, padded
from spinf_stream.engine.gpu.synthetic import articles, batch, plan_of, questions
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.seam import TreeOutput
from spinf_stream.engine.stack import Stack
from spinf_stream.questions.plan import I32, Plan

LENGTHS = (1, 15, 16, 63, 64, 65, 470, 1023, 1024, 1025, 2000)
OTHERS = (1, 7, 23)
QUESTIONS = 56


class Gate(NamedTuple):
    name: str
    worst: float  # largest difference of a log-probability, relative where that is beyond 1 (of an element, for products)
    tolerance: float = 0.0

    @property
    def passed(self) -> bool:
        return self.worst <= self.tolerance  # False for NaN


class Trial:
    """One executor with the gates' questions on it."""

    def __init__(
        self,
        executor: Executor,
        tolerance: float = 0.0,
        lengths: Sequence[int] = LENGTHS,
        others: Sequence[int] = OTHERS,
        count: int = QUESTIONS,
        common: int = 250,
    ) -> None:
        self.executor, self.tolerance, self.others, self.common = executor, tolerance, tuple(others), common
        self.vocab = executor.stack.spec.vocab
        self.lengths = tuple(lengths)
        self.paths = questions(count, self.vocab)
        self.candidates = tuple(int(t) for t in np.random.default_rng(3).choice(self.vocab, 5, replace=False))
        self.whole = plan_of(self.paths, self.candidates)
        self.engine = PackedEngine(executor, 1 << 20)

    def run(self, trunks: Sequence[I32], plans: Sequence[Plan] | None = None, budget: int | None = None) -> list[TreeOutput]:
        engine = PackedEngine(self.executor, budget) if budget else self.engine
        index = [engine.register(p) for p in plans or [self.whole] * len(trunks)]
        return list(engine.collect(engine.submit(batch(trunks, index))).trees)

    def gates(self) -> Iterator[Gate]:
        """All that concern whole passes. Articles of the gates' lengths, with about 56 questions each."""
        common = articles([self.common + 7 * i for i in range(max(self.others) + 1)], self.vocab)
        mine, others = common[0], common[1:]
        alone = self.run([mine])[0]
        for n in self.others:
            yield self.gate(f"article alone = packed with {n} others", [alone], self.run([*others[:n], mine])[-1:])
        forward = self.run([mine, *others[:7]])
        yield self.gate("any order of articles", forward, self.run([*others[:7][::-1], mine])[::-1])
        yield self.siblings(mine, alone)
        yield self.stems(mine, alone)
        odd = articles(self.lengths, self.vocab)
        for trunk, packed in zip(odd, self.run(odd)):
            yield self.gate(f"a trunk of {len(trunk)} tokens, alone = packed with other lengths", self.run([trunk]), [packed])
        yield self.gate("continued passes = one pass", [alone], self.run([mine], budget=len(mine) + 80))
        yield self.outlier(mine, others[0])
        again = [self.run([mine, *others[:2]])[0] for _ in range(3)]
        yield self.gate("the same pass again", [alone] * 3, again)

    def siblings(self, trunk: I32, alone: TreeOutput) -> Gate:
        """Every 5th question asked alone, and half of them without the other half."""
        worst = 0.0
        for some in ([p] for p in self.paths[::5]):
            worst = max(worst, self.differs(trunk, some, alone))
        return self.made("question alone = with its siblings", max(worst, self.differs(trunk, self.paths[::2], alone)))

    def stems(self, trunk: I32, alone: TreeOutput) -> Gate:
        return self.made("with = without shared stems", self.differs(trunk, self.paths, alone, share=False))

    def differs(self, trunk: I32, paths: Sequence[tuple[int, ...]], alone: TreeOutput, share: bool = True) -> float:
        plan = plan_of(paths, self.candidates, share)
        got = self.run([trunk], [plan])[0]
        want = {path: r for r, path in enumerate(paths_of(self.whole))}
        width = len(self.candidates)
        worst = 0.0
        for r, path in enumerate(paths_of(plan)):
            w = want[path]
            worst = worst_of(worst, got.cand[r * width : (r + 1) * width], alone.cand[w * width : (w + 1) * width])
            worst = worst_of(worst, got.end[r : r + 1], alone.end[w : w + 1])
        return worst

    def outlier(self, trunk: I32, other: I32) -> Gate:
        """A neighbour made of one token whose embedding is 1,000 times too large."""
        embed = self.executor.stack.embed
        token = int(np.setdiff1d(np.arange(10, self.vocab), np.concatenate([trunk, self.whole.token]))[0])
        with torch.inference_mode():
            kept = embed[token].clone()
            embed[token] *= 1000
            try:
                strange = np.full_like(other, token)
                strange[0] = other[0]
                alone, got = self.run([trunk])[0], self.run([strange, trunk, strange])[1]
            finally:
                embed[token].copy_(kept)
        return self.gate("an outlier article beside it", [alone], [got])

    def digest(self) -> str:
        """Of a small pass: two processes must agree."""
        h = hashlib.sha256()
        for tree in self.run(articles([3, 130, 64], self.vocab)):
            h.update(tree.cand.tobytes() + tree.end.tobytes())
        return h.hexdigest()

    def gate(self, name: str, want: Sequence[TreeOutput], got: Sequence[TreeOutput]) -> Gate:
        worst = 0.0
        for a, b in zip(want, got, strict=True):
            worst = worst_of(worst_of(worst, a.cand, b.cand), a.end, b.end)
        return self.made(name, worst)

    def made(self, name: str, worst: float) -> Gate:
        return Gate(name, worst, self.tolerance)


def paths_of(plan: Plan) -> list[tuple[int, ...]]:
    """Tokens from the trunk to each read."""
    out = []
    for node in plan.read_node.tolist():
        path: list[int] = []
        while node >= 0:
            path.append(int(plan.token[node]))
            node = int(plan.parent[node])
        out.append(tuple(path[::-1]))
    return out


def worst_of(worst: float, a: np.ndarray, b: np.ndarray) -> float:
    return worst if not len(a) or np.array_equal(a, b) else max(worst, float((np.abs(a - b) / np.maximum(1.0, np.abs(a))).max()))


ROWS = (16, 57, 64, 65, 100, 870, 1024, 4095, 8192)


def products(stack: Stack) -> list[torch.Tensor]:
    """A weight of every shape that is multiplied with."""
    every = [getattr(w, name) for w in stack.layers for name in ("qkv", "o", "gate_up", "down")]
    return list({tuple(weight.shape): weight for weight in reversed(every)}.values())[::-1]


def product_gate(weight: torch.Tensor, fast: bool, own: bool = False, rows: Sequence[int] = ROWS) -> Gate:
    """A row's bits in a matrix product, for every number of rows and place among them."""
    by = ", by our own kernel" if own else ""
    return Gate(f"product {weight.shape[0]} x {weight.shape[1]}{by}: any number of rows", _product(weight, fast, own, rows))


def _product(weight: torch.Tensor, fast: bool, own: bool, rows: Sequence[int]) -> float:
    gen = torch.Generator(device=weight.device).manual_seed(0)
    most = padded(max(rows) + 64)
    x = torch.randn(most, weight.shape[1], generator=gen, device=weight.device)
    x = (x * 40).clamp(-448, 448).to(FP8) if weight.dtype == FP8 else x.to(weight.dtype)
    run = Projection(weight, fast=fast)
    run.own |= own
    kind = torch.bfloat16 if weight.dtype == FP8 else weight.dtype

    def product(a: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(a), weight.shape[0], dtype=kind, device=weight.device)
        run(a, out)
        return out

    whole = product(x)
    worst = 0.0
    for n in map(padded, rows):
        for at in (0, 16, most - n):
            part = product(x[at : at + n].clone())
            if not torch.equal(part, whole[at : at + n]):
                worst = max(worst, float((part.float() - whole[at : at + n].float()).abs().max()))
    return worst


def head_gate(stack: Stack, candidates: Callable[..., None], norms: Callable[..., None], blocks: int, block: int) -> Gate:
    """Candidates are the columns of the full head: its largest logit of every block of columns is theirs, bit for bit."""
    gen = torch.Generator(device=stack.embed.device).manual_seed(0)
    vocab, hidden = stack.embed.shape
    rows, device = 130, stack.embed.device
    h = torch.randn(rows, hidden, generator=gen, device=device).to(stack.embed.dtype)
    cap = stack.spec.softcap or 0.0
    parts = torch.empty(3 * rows, blocks, dtype=torch.float32, device=device)
    ends = torch.zeros(vocab, dtype=torch.uint8, device=device)
    norms(h, stack.embed, ends, cap, parts, torch.empty(rows, 3, dtype=torch.float64, device=device))
    top = parts[:rows]
    order = torch.randperm(vocab, generator=gen, device=device)  # every candidate away from its own column
    z = torch.empty(rows, vocab, dtype=torch.float32, device=device)
    candidates(h, stack.embed, order.int(), cap, z)
    back = torch.empty_like(z)
    back[:, order] = z
    back = torch.nn.functional.pad(back, (0, blocks * block - vocab), value=float("-inf"))
    few = torch.empty(1, 3, dtype=torch.float32, device=device)
    candidates(h[5:6], stack.embed, order[:3].int(), cap, few)
    worst = float((back.view(rows, blocks, block).amax(-1) - top).abs().max())
    return Gate("candidate logits = columns of the full head", max(worst, float((few[0] - z[5, :3]).abs().max())))
