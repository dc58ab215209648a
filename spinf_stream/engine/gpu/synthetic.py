"""Made-up questions and articles for the gates: token paths of awkward lengths, with and without shared stems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spinf_stream.engine.seam import PassInput
from spinf_stream.questions.plan import I32, Plan

Path = tuple[int, ...]


def plan_of(paths: Sequence[Path], candidates: Sequence[int], share: bool = True) -> Plan:
    """A plan that reads `candidates` at the end of every path. share=False lays every path out on its own."""
    children: list[dict[int, int]] = [{}]
    grown: list[tuple[int, int]] = [(-1, -1)]  # (parent, token) of the nodes in the order they were met
    ends: list[int] = []
    for path in paths:
        at = 0
        for k, t in enumerate(path):
            if t in children[at] and (share or k):
                at = children[at][t]
                continue
            grown.append((at, t))
            children.append({})
            at_new = len(grown) - 1
            if share or k:
                children[at][t] = at_new
            else:
                children[at][-len(grown)] = at_new  # a key that no token has: a root of its own
            at = at_new
        ends.append(at)
    order: list[int] = []
    stack = [0]
    while stack:
        at = stack.pop()
        order.append(at)
        stack.extend(reversed(list(children[at].values())))
    new = {old: i - 1 for i, old in enumerate(order)}
    n = len(order) - 1
    token, parent, depth = np.zeros(n, np.int32), np.zeros(n, np.int32), np.zeros(n, np.int32)
    end = np.arange(1, n + 1, dtype=np.int32)
    for old in order[1:]:
        i = new[old]
        parent[i], token[i] = new[grown[old][0]], grown[old][1]
        depth[i] = 0 if parent[i] < 0 else depth[parent[i]] + 1
    for i in range(n - 1, -1, -1):
        if parent[i] >= 0:
            end[parent[i]] = max(end[parent[i]], end[i])
    reads = sorted({new[e] for e in ends})
    r, c = len(reads), len(candidates)
    count = r * c
    return Plan(
        token, parent, depth, end, np.array(reads, np.int32), np.ones(r, bool), np.ones(r, bool),
        np.arange(0, count + 1, c, dtype=np.int32), np.tile(np.sort(np.array(candidates, np.int32)), r),
        np.arange(count + 1, dtype=np.int32), np.arange(count, dtype=np.int32), np.full(count, -1, np.int32),
        np.arange(count, dtype=np.int32), np.repeat(np.arange(r, dtype=np.int32), c), np.ones(r, bool),
    )  # fmt: skip


def questions(count: int, vocab: int, seed: int = 0) -> list[Path]:
    """Paths below stems: many short ones of a shared stem, and a few of 16, 17, 32, 33, 48, 64 and 70 tokens."""
    rng = np.random.default_rng(seed)

    def tokens(n: int) -> Path:
        return tuple(int(t) for t in rng.integers(10, vocab, n))

    stems = [tokens(5), tokens(9)]
    out: list[Path] = []
    for i in range(count):
        stem = stems[i % 2] if i % 3 else ()
        out.append((*stem, *tokens(int(rng.integers(3, 10)))))
    out[::8] = [tokens(n) for n in (16, 17, 32, 33, 48, 64, 70)][: len(out[::8])] + out[::8][7:]
    return out


def articles(lengths: Sequence[int], vocab: int, bos: int = 2, seed: int = 1) -> list[I32]:
    """A trunk's tokens depend on its length and the seed alone."""
    return [
        np.concatenate([[bos], np.random.default_rng([seed, n]).integers(10, vocab, n - 1)]).astype(np.int32) for n in lengths
    ]


def batch(trunks: Sequence[I32], plans: Sequence[int]) -> PassInput:
    start = np.zeros(len(trunks) + 1, np.int64)
    np.cumsum([len(t) for t in trunks], out=start[1:])
    return PassInput(np.concatenate(trunks), start, np.array(plans, np.int32))
