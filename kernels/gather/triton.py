"""gather/naive.py as a kernel, 64-bit offsets: one program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from spinf_stream.kernels.launch import launch


@triton.jit
def gather_rows_kernel(src_ptr, index_ptr, out_ptr, W: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    src = tl.load(index_ptr + row).to(tl.int64)
    for lo in tl.static_range(0, W, BLOCK):
        col = lo + tl.arange(0, BLOCK)
        tl.store(out_ptr + row * W + col, tl.load(src_ptr + src * W + col, mask=col < W), mask=col < W)


@triton.jit
def move_rows_kernel(src_ptr, index_ptr, out_ptr, to_ptr, W: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    src = tl.load(index_ptr + row).to(tl.int64)
    to = tl.load(to_ptr + row).to(tl.int64)
    for lo in tl.static_range(0, W, BLOCK):
        col = lo + tl.arange(0, BLOCK)
        tl.store(out_ptr + to * W + col, tl.load(src_ptr + src * W + col, mask=col < W), mask=col < W)


def gather_rows(src: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    n, width = out.shape
    launch(gather_rows_kernel, (n,), (src, index, out), {"W": width, "BLOCK": min(2048, triton.next_power_of_2(width))}, 4)


def move_rows(src: torch.Tensor, index: torch.Tensor, out: torch.Tensor, to: torch.Tensor) -> None:
    width = out.shape[1]
    launch(move_rows_kernel, (len(index),), (src, index, out, to), {"W": width, "BLOCK": min(2048, triton.next_power_of_2(width))}, 4)
