"""head/naive.py as kernels. Candidates and norms multiply tiles of one shape, so a candidate's logit has the bits of its
column, whichever way the tile was loaded.

norms: programs walk 128 x 256 tiles of the logits, which never leave registers: each tile leaves (max, sum, sum over
ends) of its columns; a second kernel merges a row's blocks in a fixed order, in float64.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from spinf_stream.kernels.launch import launch


@triton.jit
def _logits(h_ptr, embed_ptr, row, token, n, cap, H: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CAP: tl.constexpr):
    col = tl.arange(0, BK)
    a_ptr = h_ptr + tl.minimum(row, n - 1).to(tl.int64)[:, None] * H + col[None, :]
    b_ptr = embed_ptr + token.to(tl.int64)[:, None] * H + col[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, H, BK):
        acc = tl.dot(tl.load(a_ptr + k), tl.load(b_ptr + k).T, acc, input_precision="ieee")
    return _capped(acc, cap, CAP)


@triton.jit
def _capped(z, cap, CAP: tl.constexpr):
    """cap * tanh(z / cap), tanh by one exp2: tanh(u) = 1 - 2 / (1 + e^2u)."""
    if CAP:
        z = cap * (1.0 - 2.0 / (1.0 + tl.math.exp2(z / cap * 2.8853900817779268)))
    return z


@triton.jit(do_not_specialize=["n"])
def norms_kernel(
    h, embed, ends_ptr, parts_ptr, n, cap,
    V: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CAP: tl.constexpr,
    PROGRAMS: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (V + BN - 1) // BN
    tiles = tl.cdiv(n, BM)
    for t in tl.range(tl.program_id(0), tiles * BLOCKS, PROGRAMS, flatten=TMA):
        block = t // tiles  # row tiles vary fastest: a block of the embedding is read from memory once
        row = t % tiles * BM + tl.arange(0, BM)
        token = block * BN + tl.arange(0, BN)
        if TMA:
            acc = tl.zeros([BM, BN], tl.float32)
            for k in tl.range(0, H, BK, num_stages=STAGES):
                acc = tl.dot(h.load([t % tiles * BM, k]), embed.load([block * BN, k]).T, acc)
            z = _capped(acc, cap, CAP)
        else:
            z = _logits(h, embed, row, tl.minimum(token, V - 1), n, cap, H, BM, BN, BK, CAP)
        z = tl.where((token < V)[None, :], z, float("-inf"))
        top = tl.max(z, 1)
        e = tl.math.exp2((z - top[:, None]) * 1.4426950408889634)
        ends = tl.load(ends_ptr + tl.minimum(token, V - 1)).to(tl.float32)
        at = row.to(tl.int64) * BLOCKS + block
        size = n.to(tl.int64) * BLOCKS
        tl.store(parts_ptr + at, top, mask=row < n)
        tl.store(parts_ptr + size + at, tl.sum(e, 1), mask=row < n)
        tl.store(parts_ptr + 2 * size + at, tl.sum(e * ends[None, :], 1), mask=row < n)


@triton.jit(do_not_specialize=["n"])
def merge_kernel(parts_ptr, out_ptr, n, BLOCKS: tl.constexpr, PAD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PAD)
    at = row * BLOCKS + i
    size = n.to(tl.int64) * BLOCKS
    top = tl.load(parts_ptr + at, mask=i < BLOCKS, other=float("-inf"))
    best = tl.max(top, 0)
    w = tl.math.exp2((top - best) * 1.4426950408889634).to(tl.float64)
    total = tl.sum(w * tl.load(parts_ptr + size + at, mask=i < BLOCKS, other=0.0).to(tl.float64), 0)
    ends = tl.sum(w * tl.load(parts_ptr + 2 * size + at, mask=i < BLOCKS, other=0.0).to(tl.float64), 0)
    tl.store(out_ptr + row * 3, best.to(tl.float64))
    tl.store(out_ptr + row * 3 + 1, total)
    tl.store(out_ptr + row * 3 + 2, ends)


@triton.jit(do_not_specialize=["n", "u"])
def candidates_kernel(
    h_ptr, embed_ptr, token_ptr, out_ptr, n, u, cap,
    H: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    col = tl.program_id(1) * BN + tl.arange(0, BN)
    token = tl.load(token_ptr + tl.minimum(col, u - 1))
    z = _logits(h_ptr, embed_ptr, row, token, n, cap, H, BM, BN, BK, CAP)
    at = row.to(tl.int64)[:, None] * u + col[None, :]
    tl.store(out_ptr + at, z, mask=(row < n)[:, None] & (col < u)[None, :])


BM, BN, BK, WARPS, NORM_STAGES = 128, 256, 64, 8, 3


@functools.cache
def stages(device: torch.device) -> int:
    """Ada and consumer Blackwell have 99 KB of shared memory a block."""
    if device.type != "cuda":
        return 2
    return 3 if torch.cuda.get_device_capability(device)[0] in (9, 10) else 2


@functools.cache
def _walk(device: torch.device) -> tuple[bool, int]:
    """(TMA, programs): on Hopper as many programs as multiprocessors; elsewhere one a tile (0)."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return False, 0
    return True, torch.cuda.get_device_properties(device).multi_processor_count


def tiles_of(x: torch.Tensor, rows: int, depth: int = BK) -> Any:
    """A TMA descriptor that reads x [n, hidden] in blocks of rows x depth."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(x, [rows, depth])


def blocks_of(vocab: int, block: int = BN) -> int:
    """Vocabulary blocks: the last axis of the scratch of `norms`."""
    return -(-vocab // block)


def candidates(
    h: torch.Tensor, embed: torch.Tensor, token: torch.Tensor, cap: float, out: torch.Tensor,
    block: tuple[int, int, int] = (BM, BN, BK),
) -> None:  # fmt: skip
    (n, u), (bm, bn, bk) = out.shape, block
    constants = {"H": h.shape[1], "BM": bm, "BN": bn, "BK": bk, "CAP": bool(cap)}
    grid = (triton.cdiv(n, bm), triton.cdiv(u, bn))
    launch(candidates_kernel, grid, (h, embed, token, out, n, u, cap or 1.0), constants, WARPS, stages(h.device))


def norms(
    h: torch.Tensor, embed: torch.Tensor, ends: torch.Tensor, cap: float, parts: torch.Tensor, out: torch.Tensor,
    block: tuple[int, int, int] = (BM, BN, BK),
) -> None:  # fmt: skip
    (vocab, hidden), n, (bm, bn, bk) = embed.shape, h.shape[0], block
    blocks = blocks_of(vocab, bn)
    tma, programs = _walk(h.device)
    tiles = triton.cdiv(n, bm) * blocks
    constants = {
        "V": vocab, "H": hidden, "BM": bm, "BN": bn, "BK": bk, "CAP": bool(cap),
        "PROGRAMS": programs or 1 << 30, "STAGES": NORM_STAGES, "TMA": tma,
    }  # fmt: skip
    args = (tiles_of(h, bm, bk) if tma else h, tiles_of(embed, bn, bk) if tma else embed, ends, parts, n, cap or 1.0)
    launch(norms_kernel, (min(tiles, programs) if programs else tiles,), args, constants, WARPS, NORM_STAGES if tma else stages(h.device))
    launch(merge_kernel, (n,), (parts, out, n), {"BLOCKS": blocks, "PAD": triton.next_power_of_2(blocks)}, 4)
