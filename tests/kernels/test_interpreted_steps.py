"""What decode steps alone do, under the Triton interpreter against naive.py: sums over an automaton's sets, the best of a few
tokens, attention below trunks that lie apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from poisoned import GEN, close, poison, rand

from spinf_stream.engine.gpu import steps
from spinf_stream.engine.grow import Step
from spinf_stream.engine.stack import LayerSpec
from spinf_stream.kernels.attention import naive as attention_naive
from spinf_stream.kernels.attention import triton as attention
from spinf_stream.kernels.gather import triton as gather
from spinf_stream.kernels.sets import naive as sets_naive
from spinf_stream.kernels.sets import triton as sets


def decode_step(rows, trunks):
    """rows: (trunk, own rows of its path)."""
    length = np.array([len(p) for _, p in rows], np.int32)
    path = np.array([[*p, *[-1] * (int(length.max()) - len(p))] for _, p in rows], np.int64)
    trunk, n = np.array([t for t, _ in rows], np.int32), len(rows)
    base, none = np.array(trunks, np.int32), np.zeros(n, np.int32)
    return Step(
        tuple(range(len(trunks))), base, trunk, none, base[trunk] + length - 1, path, np.arange(n), (), none, none, np.zeros(n + 1, np.int64), none[:0], 0
    )  # fmt: skip


@pytest.mark.parametrize("k", [5, 301, 900, 5000])
def test_sets(k):
    """A few tokens and many, ragged, in runs of 256; a row of NaN stays alone."""
    n, states = 7, 4
    z, table = rand(n, k) * 4, torch.randint(0, 8, (states, k), generator=GEN, dtype=torch.uint8)
    table[1] &= 3  # a state from which nothing leads on
    state = torch.tensor([0, 3, 1, 2, 0, 3, 3], dtype=torch.int32)
    norms = torch.stack([z.amax(1).double() + 1, torch.rand(n, generator=GEN).double() + 2, torch.zeros(n).double()], dim=1)
    z[5] = float("nan")
    left, right = z.clone(), z.clone()
    a, b = poison(n, 2, dtype=torch.float64), poison(n, 2, dtype=torch.float64)
    best_a, best_b = (poison(n, -(-k // 256)) for _ in range(2))
    sets_naive.sets(left, table, state, norms, a, best_a)
    sets.sets(right, table, state, norms, b, best_b)
    whole = [i for i in range(n) if i != 5]
    torch.testing.assert_close(b[whole], a[whole], atol=1e-7, rtol=1e-6)
    assert torch.equal(right[whole], left[whole]) and torch.isnan(b[5]).any()
    assert torch.equal(best_b[whole], best_a[whole])
    p = ((z[0].double() - norms[0, 0]).exp() / norms[0, 1])[(table[0] & 1) != 0].sum()
    assert abs(float(b[0, 0] - p)) < 1e-6 and not torch.isfinite(right[2]).any()


@pytest.mark.parametrize("k,top", [(5, 6), (301, 40), (301, 0), (1300, 6)])
def test_few(k, top):
    """Ties go by place, and fewer than are wanted are filled up; a row of NaN stays alone."""
    n, states = 7, 4
    z, table = torch.randint(-3, 4, (n, k), generator=GEN).float(), torch.randint(0, 8, (states, k), generator=GEN, dtype=torch.uint8)
    table[1] &= 3
    token = torch.arange(7, 7 + 3 * k, 3, dtype=torch.int32)
    state = torch.tensor([0, 3, 1, 2, 0, 3, 3], dtype=torch.int32)
    norms = torch.stack([z.amax(1).double() + 1, torch.rand(n, generator=GEN).double() + 2, torch.zeros(n).double()], dim=1)
    z[5] = float("nan")
    said = [(poison(n, 2, dtype=torch.float64), torch.full((n, top), -7, dtype=torch.int32), poison(n, top, dtype=torch.float64)) for _ in range(2)]
    before = z.clone()
    for module, (sums, best, logprob) in zip((sets_naive, sets), said):
        module.few(z, token, table, state, norms, sums, best, logprob)
    whole = [i for i in range(n) if i != 5]
    assert torch.equal(z[whole], before[whole])
    for a, b in zip(*said):
        torch.testing.assert_close(b[whole], a[whole], atol=1e-7, rtol=1e-6)
    assert torch.isnan(said[1][0][5]).any() and (said[1][1][2] == -1).all()


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("padded", [False, True])
def test_attention_of_a_decode_step(window, padded):
    """Its rows attend trunks that lie apart in the cache, and paths gathered from the pool, whoever is beside them: a slot
    that belongs to nobody is NaN, and so is all of an article at fault."""
    d, keys, spec = 16, 16, LayerSpec(heads=2, kv_heads=1, head_dim=16, window=window, scale=1.0, rope=0)
    stem = list(range(18))
    mine = [(0, stem[:9]), (0, stem), (0, [*stem, 20, 21]), (0, [*stem, 30]), (0, list(range(40, 77)))]
    tile = attention.Tile(16, keys, 4, 2, False, False)
    own, starts, first = rand(200, 2 * d), [128, 0, 320], 448
    own[0] = 0.0
    slots = torch.full((4096, 2 * d), float("nan"))
    for at, length in zip(starts, (37, 64, 90)):
        slots[at : at + -(-length // 64) * 64] = 0.0
        slots[at : at + length] = rand(length, 2 * d)
    slots[0:64], own[150:] = float("nan"), float("nan")  # the second article and its rows
    queries = rand(len(mine), 2 * d)

    def read(rows, q):
        step = decode_step(rows, [37, 64, 90])
        of = steps.paths(step)
        a = steps.arrays(step, of, starts, first, [spec], lambda *_: (attention.tokens_of(tile, 2), keys), steps.shape(step, of) if padded else None)
        held = slots.clone()
        gather.gather_rows(own, torch.from_numpy(a["source"]), held[first : first + len(a["source"])])
        q = torch.cat([q, poison(len(a["token"]) - len(q), 2 * d)])
        where, cut = (torch.from_numpy(a[f"{n}"]) for n in (f"rows:{window}", f"tiles:{(window, d, 2)}"))
        out, want = poison(*q.shape), poison(len(rows), 2 * d)
        attention.forest_attention(q, held, cut, where, d, 1, 1.0, out, tile)
        attention_naive.forest_attention(q[: len(rows)], held, None, where[: len(rows)], d, 1, 1.0, want)
        return out[: len(rows)], want

    alone = [read([row], queries[i : i + 1])[0][0] for i, row in enumerate(mine)]
    others = [(0, [*stem, 90 + i]) for i in range(9)]
    out, want = read(
        [*others[:4], *mine, *others[4:], (1, [150 - 2, 149]), (1, [151 - 2]), (2, [120])],
        torch.cat([rand(4, 2 * d), queries, rand(5, 2 * d), poison(2, 2 * d), rand(1, 2 * d)]),
    )
    got, want = out[4 : 4 + len(mine)], want[4 : 4 + len(mine)]
    close(got, want)
    assert all(torch.equal(a, b) for a, b in zip(alone, got))
    assert torch.isfinite(out[-1]).all() and torch.isnan(out[-3:-1]).all()
