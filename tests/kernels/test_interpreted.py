"""Kernels' index logic under the Triton interpreter against naive.py: float32, tiny shapes, memory poisoned with NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from poisoned import GEN, close, poison, rand

from spinf_stream.engine.forest import Chunk, layout
from spinf_stream.engine.gpu import tables
from spinf_stream.kernels.attention import naive as attention_naive
from spinf_stream.kernels.attention import triton as attention
from spinf_stream.kernels.gated import naive as gated_naive
from spinf_stream.kernels.gated import triton as gated
from spinf_stream.kernels.gather import naive as gather_naive
from spinf_stream.kernels.gather import triton as gather
from spinf_stream.kernels.geglu import naive as geglu_naive
from spinf_stream.kernels.geglu import triton as geglu
from spinf_stream.kernels.head import naive as head_naive
from spinf_stream.kernels.head import triton as head
from spinf_stream.kernels.norm import naive as norm_naive
from spinf_stream.kernels.norm import triton as norm
from spinf_stream.kernels.product import naive as product_naive
from spinf_stream.kernels.product import triton as product
from spinf_stream.kernels.quantise import naive as quantise
from spinf_stream.kernels.rotary import naive as rotary_naive
from spinf_stream.kernels.rotary import triton as rotary


@pytest.mark.parametrize("mode", [quantise.NONE, quantise.STATIC, quantise.ROW])
def test_norms(mode):
    n, h = 5, 48  # stored as float32: the interpreter's cast to e4m3 rounds in a way of its own (kernels.md 4.2)
    token, embed, w, post = torch.tensor([3, 0, 6, 6, 1], dtype=torch.int32), rand(7, h), rand(h), rand(h)
    embed[0] = 0  # a zero row quantises to zeros
    a, b = ((poison(n, h), poison(n, h), poison(n)) for _ in range(2))
    norm_naive.embed_norm(token, embed, 3.0, w, 1e-6, *a, mode, 0.5)
    norm.embed_norm(token, embed, 3.0, w, 1e-6, *b, mode, 0.5)
    close(b[0], a[0])
    close(b[1], a[1], 2e-3)
    if mode == quantise.ROW:
        assert torch.equal(a[2], b[2])
    y = rand(n, h)
    norm_naive.residual_norm(a[0], y, post, 0.5, w, 1e-6, a[1], a[2], mode, 0.5)
    norm.residual_norm(b[0], y, post, 0.5, w, 1e-6, b[1], b[2], mode, 0.5)
    close(b[0], a[0])
    close(b[1], a[1], 2e-3)


def test_row_scales_are_powers_of_two_that_fit():
    amax = torch.tensor([0.0, 1e-30, 1.0, 447.9, 448.0, 448.1, 6592.0, 3e38])
    s = quantise.row_scale(amax)
    assert torch.equal(torch.log2(s), torch.log2(s).round())
    assert (amax / s <= 448).all() and torch.isfinite(s).all() and (s > 0).all()
    assert (amax[2:] / s[2:] > 223.9).all()


@pytest.mark.parametrize("row", [False, True])
def test_geglu(row):
    n, width = 3, 2500  # more than one block, and a ragged one
    x, scale = rand(n, 2 * width) * 3, torch.tensor([1.0, 0.5, 4.0]) if row else None
    a, b = poison(n, width), poison(n, width)
    geglu_naive.geglu(x, scale, (0.5, 2.0), a, None)
    geglu.geglu(x, scale, (0.5, 2.0), b, None)
    close(b, a)
    assert torch.equal(torch.isfinite(b), torch.isfinite(a))


@pytest.mark.parametrize("row", [False, True])
def test_gated(row, monkeypatch):
    """Float32 through the same tiles: several row blocks and groups of them, the last ones ragged."""
    for name, value in {"BM": 16, "BN": 16, "BK": 16, "GROUP": 2}.items():
        monkeypatch.setattr(gated, name, value)
    n, hidden, width = 52, 48, 24
    x, pairs = rand(n, hidden), rand(2 * width, hidden) / 4
    scale = torch.rand(n, generator=GEN) + 0.5 if row else None
    a, b = poison(n, width), poison(n, width)
    gated_naive.gated(x, scale, pairs, (0.5, 2.0), a, 0.25)
    gated.gated(x, scale, pairs, (0.5, 2.0), b, 0.25)
    close(b, a, 1e-4)


def test_product():
    """Ragged in rows and columns, more tiles than one group."""
    tile = product.Tile(16, 16, 16, 2, 4, 2, False)
    x, w = rand(37, 48), rand(40, 48)
    a, b = poison(37, 40), poison(37, 40)
    for factor in (1.0, 0.25):
        product_naive.product(x, w, a, factor)
        product.product(x, w, b, factor, tile)
        close(b, a, 1e-4)
    with pytest.raises(ValueError, match="steps of 32"):
        product.product(x, w, b)


def test_interleaving_is_what_the_truth_reads():
    w = rand(8, 4)
    pairs = w.clone()
    gated_naive.interleave(pairs)
    assert torch.equal(pairs[0::2], w[:4]) and torch.equal(pairs[1::2], w[4:])


def test_gather():
    src, index = rand(6, 2100), torch.tensor([5, 0, 5, 2])
    a, b = poison(4, 2100), poison(4, 2100)
    gather_naive.gather_rows(src, index, a)
    gather.gather_rows(src, index, b)
    assert torch.equal(a, b)


def test_moving_rows_leaves_the_others():
    src, index, to = rand(6, 2100), torch.tensor([5, 0, 5, 2]), torch.tensor([3, 7, 0, 1])
    a, b = rand(8, 2100), poison(8, 2100)
    b[[2, 4, 5, 6]] = a[[2, 4, 5, 6]]
    gather_naive.move_rows(src, index, a, to)
    gather.move_rows(src, index, b, to)
    assert torch.equal(a, b)


@pytest.mark.parametrize("k_eq_v,v_norm,scaled", [(False, False, False), (False, True, True), (True, True, True)])
def test_rotary(k_eq_v, v_norm, scaled):
    n, heads, kv_heads, d = 5, 3, 2, 16
    at = torch.arange(12).float()[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03, 0.0, 0.0, 0.0, 0.0])
    cos, sin = at.cos(), at.sin()
    position = torch.tensor([0, 4, 11, 2, 2], dtype=torch.int32)
    raw = rand(n, (heads + kv_heads * (1 if k_eq_v else 2)) * d)
    scale = torch.tensor([1.0, 2.0, 0.5, 1.0, 4.0]) if scaled else None
    w = rand(d)
    q, k = raw[:, : heads * d], raw[:, heads * d :]
    a, b = poison(n, heads * d), poison(n, heads * d)
    rotary_naive.queries(q, scale, 0.5, position, cos, sin, w, 1e-6, 0.25, a)
    rotary.queries(q, scale, 0.5, position, cos, sin, w, 1e-6, 0.25, b)
    close(b, a)
    slot = torch.tensor([0, 1, -1, 3, 4, 2, -1, 2], dtype=torch.int32)
    a, b = poison(8, 2 * kv_heads * d), poison(8, 2 * kv_heads * d)
    rotary_naive.keys_values(k, scale, (0.5, 3.0), position, slot, cos, sin, w, 1e-6, v_norm, k_eq_v, a)
    rotary.keys_values(k, scale, (0.5, 3.0), position, slot, cos, sin, w, 1e-6, v_norm, k_eq_v, b)
    close(b, a)
    assert (b[2] == 0).all() and (b[6] == 0).all()


def test_rotary_padding_hides_an_article_at_fault():
    """Padding reads row 0 as a stand-in: its NaN must not come through."""
    raw, scale = rand(2, 64), torch.tensor([float("nan"), 1.0])
    raw[0] = float("nan")
    slot, cos = torch.tensor([1, -1], dtype=torch.int32), torch.ones(4, 8)
    kv = poison(2, 64)
    rotary.keys_values(raw, scale, (1.0, 1.0), torch.zeros(2, dtype=torch.int32), slot, cos, cos * 0, rand(16), 1e-6, True, False, kv)
    assert (kv[1] == 0).all() and torch.isfinite(kv[0]).all()


def tree(paths: list[list[int]]) -> Chunk:
    """A chunk from root-to-leaf paths of distinct labels, in order."""
    nodes: list[tuple[int, int]] = []  # parent, depth
    known: dict[tuple[int, ...], int] = {}
    for path in paths:
        for k in range(len(path)):
            key = tuple(path[: k + 1])
            if key not in known:
                known[key] = len(nodes)
                nodes.append((known.get(key[:-1], -1), k))
    parent, depth = (np.array(c, np.int32) for c in zip(*nodes))
    end = np.array([1 + max([i, *(j for j in range(i, len(nodes)) if _below(parent, j, i))]) for i in range(len(nodes))], np.int32)
    leaf = np.array([known[tuple(p)] for p in paths], np.int32)
    r = len(leaf)
    return Chunk(
        np.arange(len(nodes), dtype=np.int32), parent, depth, end, leaf, np.arange(r, dtype=np.int32), np.ones(r, bool),
        np.zeros(r, bool), np.arange(r + 1, dtype=np.int32), np.zeros(r, np.int32), np.arange(r, dtype=np.int32),
    )  # fmt: skip


def _below(parent: np.ndarray, node: int, above: int) -> bool:
    while node > above:
        node = int(parent[node])
    return node == above


STEM = list(range(100, 105))
FOREST = tree([[*STEM, 1, 2], [*STEM, 3], [7], [*range(200, 220)], [*range(300, 340)]])


@pytest.mark.parametrize("pipe", [False, True])
@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("group,kv_heads", [(2, 2), (4, 1)])
def test_attention(pipe, window, group, kv_heads):
    d, keys = 16, 16
    trunk = [1, 37]
    ids = np.zeros(sum(trunk), np.int32)
    lay = layout(ids, np.array([0, 1, 38]), (FOREST, FOREST))
    places = tables.Slots().places(lay)
    rows = tables.visible(places, lay.position, window)
    tile = attention.Tile(16, keys, 4, 2, pipe, False)
    cut = tables.tiles(rows, lay.row, attention.tokens_of(tile, group), keys)
    assert cut[:, 1].sum() == len(lay.token)
    kv = torch.where(torch.from_numpy(places.slot_row)[:, None] >= 0, rand(len(places.slot_row), 2 * kv_heads * d), 0.0)
    q = rand(len(lay.token), kv_heads * group * d)
    a, b = poison(*q.shape), poison(*q.shape)
    attention_naive.forest_attention(q, kv, None, torch.from_numpy(rows), d, kv_heads, 0.5, a)
    # rows of no article lie around those of the pass, all NaN
    around = torch.cat([poison(3, q.shape[1]), q, poison(5, q.shape[1])])[3:-5]
    attention.forest_attention(around, kv, torch.from_numpy(cut), torch.from_numpy(rows), d, kv_heads, 0.5, b, tile)
    close(b, a)


def test_attention_of_one_article_ignores_the_next():
    """An article whose keys are all NaN leaves its neighbours as they are: key blocks never straddle articles."""
    d = 16
    lay = layout(np.zeros(40, np.int32), np.array([0, 20, 40]), (FOREST, FOREST))
    places = tables.Slots().places(lay)
    rows = tables.visible(places, lay.position, None)
    tile = attention.Tile(16, 16, 4, 2, False, False)
    cut = torch.from_numpy(tables.tiles(rows, lay.row, attention.tokens_of(tile, 1), 16))
    kv, q = rand(len(places.slot_row), 2 * d), rand(len(lay.token), d)
    outs = []
    for fault in (False, True):
        if fault:
            kv[int(places.base[1]) :] = float("nan")
            q[int(lay.row[1]) :] = float("nan")
        out = poison(*q.shape)
        attention.forest_attention(q, kv, cut, torch.from_numpy(rows), d, 1, 1.0, out, tile)
        outs.append(out[: int(lay.row[1])])
    assert torch.isfinite(outs[0]).all() and torch.equal(*outs)


@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_head(cap):
    n, h, vocab, block = 5, 64, 40, (16, 16, 32)
    hidden, embed = rand(n, h), rand(vocab, h)
    token = torch.tensor([3, 39, 0, 17, 18], dtype=torch.int32)
    a, b = poison(n, 5), poison(n, 5)
    head_naive.candidates(hidden, embed, token, cap, a)
    head.candidates(hidden, embed, token, cap, b, block)
    close(b, a, 1e-4)
    ends = torch.from_numpy((np.arange(vocab) % 3 == 0).astype(np.uint8))
    a, b = (torch.full((n, 3), float("nan"), dtype=torch.float64) for _ in range(2))
    head_naive.norms(hidden, embed, ends, cap, None, a)
    head.norms(hidden, embed, ends, cap, poison(3 * n, head.blocks_of(vocab, 16)), b, block)
    close(b[:, 0] + torch.log(b[:, 1]), a[:, 0] + torch.log(a[:, 1]), 1e-4)
    close(b[:, 2] / b[:, 1], a[:, 2] / a[:, 1], 1e-4)
