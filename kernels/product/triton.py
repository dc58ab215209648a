"""product/naive.py as a kernel, for one reason: cuBLAS splits a bf16 product's sum in other ways for other row counts
(seen on an H200 at 3840 x 4096 and 3840 x 8192), so a row's bits depend on its neighbours. Here the order is fixed.

Programs walk 128 x 256 tiles, TMA on Hopper; elsewhere one program a 128 x 128 tile.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from spinf_stream.kernels.launch import launch


@triton.jit
def _loaded(x, first, k, rows, K: tl.constexpr, B: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr):
    if TMA:
        return x.load([first, k])
    else:
        row = tl.minimum(first + tl.arange(0, B), rows - 1)  # rows beyond compute what nobody stores
        return tl.load(x + row.to(tl.int64)[:, None] * K + (k + tl.arange(0, BK))[None, :])


@triton.jit(do_not_specialize=["rows"])
def product_kernel(
    x, weight, out_ptr, factor, rows,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(rows, BM)
    COLUMNS: tl.constexpr = (N + BN - 1) // BN
    for t in tl.range(tl.program_id(0), blocks * COLUMNS, PROGRAMS, flatten=TMA):
        first = t // (GROUP * COLUMNS) * GROUP
        size = tl.minimum(blocks - first, GROUP)
        m = (first + t % (GROUP * COLUMNS) % size) * BM
        n = t % (GROUP * COLUMNS) // size * BN
        acc = tl.zeros([BM, BN], tl.float32)
        for k in tl.range(0, K, BK, num_stages=STAGES):
            a = _loaded(x, m, k, rows, K, BM, BK, TMA)
            b = _loaded(weight, n, k, N, K, BN, BK, TMA)
            acc = tl.dot(a, b.T, acc, input_precision="ieee")
        row = m + tl.arange(0, BM)
        col = n + tl.arange(0, BN)
        at = row.to(tl.int64)[:, None] * N + col[None, :]
        tl.store(out_ptr + at, (acc * factor).to(out_ptr.dtype.element_ty), mask=(row < rows)[:, None] & (col < N)[None, :])


class Tile(NamedTuple):
    rows: int
    columns: int
    depth: int
    group: int
    warps: int
    stages: int
    tma: bool


HOPPER, OTHERS = Tile(128, 256, 64, 16, 8, 3, True), Tile(128, 128, 32, 16, 8, 3, False)


@functools.cache
def tile_for(device: torch.device) -> Tile:
    return HOPPER if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9 else OTHERS


@functools.cache
def _programs(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def tiles_of(x: torch.Tensor, rows: int, depth: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(x, [rows, depth])


def product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, factor: float = 1.0, tile: Tile | None = None) -> None:
    """As naive. k must be a multiple of the tile's depth (64 on Hopper, 32 elsewhere)."""
    t = tile or tile_for(x.device)
    (rows, k), n = x.shape, weight.shape[0]
    if k % t.depth:
        raise ValueError(f"a product over {k} columns does not divide into steps of {t.depth}")
    tiles = triton.cdiv(rows, t.rows) * triton.cdiv(n, t.columns)
    programs = _programs(x.device) if t.tma else 1 << 30
    constants = {
        "N": n, "K": k, "BM": t.rows, "BN": t.columns, "BK": t.depth, "GROUP": t.group, "PROGRAMS": programs,
        "STAGES": t.stages, "TMA": t.tma,
    }  # fmt: skip
    left, right = (tiles_of(x, t.rows, t.depth), tiles_of(weight, t.columns, t.depth)) if t.tma else (x, weight)
    launch(product_kernel, (min(tiles, programs),), (left, right, out, factor, rows), constants, t.warps, t.stages)
