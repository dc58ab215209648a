"""attention/naive.py as a kernel: key blocks of one tile in one loop, one online softmax, a fixed order.

A tile is TOKENS consecutive query rows of one article times the G query heads of one key head. Its block list is its
trunk blocks ascending, then its own-path blocks ascending; only blocks some row sees in part are masked. Keys lie in
slot order, so a block is one contiguous copy (TMA on Hopper). With PIPE the scores of the next block are computed
while this block's softmax runs.

Bits: a block hidden from a row leaves its state as it is (p = 0 exactly, alpha = exp2(0) = 1); a path lies in one block
or starts at one, so the number of rescalings is the row's own; scores come pre-scaled, so that no multiply-add can
be contracted in one place and not in another; products of masked keys are exact zeros and sums over 16-aligned groups
do not depend on where the group lies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from spinf_stream.kernels.launch import launch
from spinf_stream.kernels.quantise.triton import saturate


@triton.jit
def _first(i, trunk_blocks, trunk_begin, own_begin, BN: tl.constexpr):
    return tl.where(i < trunk_blocks, trunk_begin + i, own_begin + i - trunk_blocks) * BN


@triton.jit
def _block(kv, first, col, BN: tl.constexpr, D: tl.constexpr, STRIDE: tl.constexpr, TMA: tl.constexpr):
    if TMA:
        return kv.load([first, col])
    else:
        at = (first + tl.arange(0, BN)).to(tl.int64) * STRIDE + col
        return tl.load(kv + at[:, None] + tl.arange(0, D)[None, :])


@triton.jit
def _visible(s, first, row_ptr, live, BN: tl.constexpr):
    a = tl.load(row_ptr, mask=live, other=0)[:, None]
    b = tl.load(row_ptr + 1, mask=live, other=0)[:, None]
    c = tl.load(row_ptr + 2, mask=live, other=0)[:, None]
    d = tl.load(row_ptr + 3, mask=live, other=0)[:, None]
    t = (first + tl.arange(0, BN))[None, :]
    return tl.where(((t >= a) & (t < b)) | ((t >= c) & (t < d)), s, float("-inf"))


@triton.jit
def forest_attention_kernel(
    q_ptr, kv, out_ptr, tile_ptr, rows_ptr, inv_scale,
    D: tl.constexpr, G: tl.constexpr, KV: tl.constexpr, TOKENS: tl.constexpr, BN: tl.constexpr,
    QUANT: tl.constexpr, PIPE: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    BM: tl.constexpr = TOKENS * G
    STRIDE: tl.constexpr = 2 * KV * D
    head = tl.program_id(1)
    tile = tile_ptr + tl.program_id(0).to(tl.int64) * 8
    row0 = tl.load(tile).to(tl.int64)
    count = tl.load(tile + 1)
    trunk_begin = tl.load(tile + 2)
    trunk_blocks = tl.load(tile + 3)
    own_begin = tl.load(tile + 4)
    blocks = tl.load(tile + 5)
    whole_begin = tl.load(tile + 6)  # blocks whole_begin .. whole_end-1 of the list are seen whole by every row
    whole_end = tl.load(tile + 7)

    token = tl.arange(0, BM) // G
    live = token < count
    at = (row0 + token) * (KV * G * D) + head * (G * D) + (tl.arange(0, BM) % G) * D
    at = at[:, None] + tl.arange(0, D)[None, :]
    row_ptr = rows_ptr + (row0 + token) * 4
    q = tl.load(q_ptr + at, mask=live[:, None], other=0.0)
    m = tl.full([BM], -1e30, tl.float32)  # finite: a row may see nothing of its first blocks
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)

    if PIPE:
        k = _block(kv, _first(0, trunk_blocks, trunk_begin, own_begin, BN), head * D, BN, D, STRIDE, TMA)
        s = tl.dot(q, k.T, input_precision="ieee")
        for i in tl.range(0, blocks, num_stages=STAGES):
            first = _first(i, trunk_blocks, trunk_begin, own_begin, BN)
            after = _first(tl.minimum(i + 1, blocks - 1), trunk_blocks, trunk_begin, own_begin, BN)
            k = _block(kv, after, head * D, BN, D, STRIDE, TMA)
            s_after = tl.dot(q, k.T, input_precision="ieee")
            if (i < whole_begin) | (i >= whole_end):
                s = _visible(s, first, row_ptr, live, BN)
            top = tl.maximum(m, tl.max(s, 1))
            alpha = tl.math.exp2(m - top)
            p = tl.math.exp2(s - top[:, None])
            l = tl.fma(l, alpha, tl.sum(p, 1))
            acc = acc * alpha[:, None]
            v = _block(kv, first, (KV + head) * D, BN, D, STRIDE, TMA)
            acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
            m = top
            s = s_after
    else:
        for i in tl.range(0, blocks, num_stages=STAGES):
            first = _first(i, trunk_blocks, trunk_begin, own_begin, BN)
            k = _block(kv, first, head * D, BN, D, STRIDE, TMA)
            s = tl.dot(q, k.T, input_precision="ieee")
            if (i < whole_begin) | (i >= whole_end):
                s = _visible(s, first, row_ptr, live, BN)
            top = tl.maximum(m, tl.max(s, 1))
            alpha = tl.math.exp2(m - top)
            p = tl.math.exp2(s - top[:, None])
            l = tl.fma(l, alpha, tl.sum(p, 1))
            acc = acc * alpha[:, None]
            v = _block(kv, first, (KV + head) * D, BN, D, STRIDE, TMA)
            acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
            m = top

    o = acc * ((1.0 / tl.where(l > 0, l, 1.0)) * inv_scale)[:, None]
    if QUANT:
        o = saturate(o)
    tl.store(out_ptr + at, o.to(out_ptr.dtype.element_ty), mask=live[:, None])


class Tile(NamedTuple):
    """A compiled shape. rows * group query rows and `keys` keys at a time; fixed per (arch, head_dim), never tuned at run time."""

    rows: int  # M of the matrix instruction: tokens * group
    keys: int
    warps: int
    stages: int
    pipe: bool
    tma: bool


def tile_for(head_dim: int, arch: int) -> Tile:
    """arch = 10 * major + minor. Ada has 99 KB of shared memory and no TMA."""
    if arch >= 90 and arch < 120:
        return Tile(64, 32, 8, 2, False, True) if head_dim > 256 else Tile(64, 32, 4, 2, True, True)
    return Tile(16, 16, 4, 2, False, False) if head_dim > 256 else Tile(64, 32, 8, 2, False, False)


def decode_tile_for(head_dim: int, arch: int) -> Tile:
    """Of decode steps: a few tiles a multiprocessor at most, so that what loads ahead may take its shared memory (22 in place of
    30 us for 48 rows below 12 trunks on an H200, the same bits; a pass keeps two tiles there instead)."""
    tile = tile_for(head_dim, arch)
    return tile._replace(stages=4, pipe=False) if tile.tma and head_dim <= 256 else tile


def tokens_of(tile: Tile, group: int) -> int:
    """Query rows of an article in one tile."""
    return max(1, tile.rows // group)


def keys_of(kv: torch.Tensor, head_dim: int, tile: Tile) -> Any:
    """What the kernel reads keys through: a TMA descriptor of the slot buffer, or the buffer."""
    if not tile.tma:
        return kv
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(kv, [tile.keys, head_dim])


def forest_attention(
    q: torch.Tensor, kv: torch.Tensor, tiles: torch.Tensor, rows: torch.Tensor, head_dim: int, kv_heads: int,
    inv_scale: float, out: torch.Tensor, tile: Tile, keys: Any = None,
) -> None:  # fmt: skip
    group = q.shape[1] // head_dim // kv_heads
    args = (q, keys_of(kv, head_dim, tile) if keys is None else keys, out, tiles, rows, inv_scale)
    constants = {
        "D": head_dim, "G": group, "KV": kv_heads, "TOKENS": tokens_of(tile, group), "BN": tile.keys,
        "QUANT": out.element_size() == 1, "PIPE": tile.pipe, "TMA": tile.tma, "STAGES": tile.stages,
    }  # fmt: skip
    launch(forest_attention_kernel, (tiles.shape[0], kv_heads), args, constants, tile.warps, tile.stages)
