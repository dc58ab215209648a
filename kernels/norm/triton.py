"""norm/naive.py as kernels: a row stays in registers. The residual norm's programs walk rows, weights held, the next row
already on its way."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from spinf_stream.kernels.launch import launch
from spinf_stream.kernels.quantise.triton import row_scale, saturate


@triton.jit
def _emit(v, live, out_ptr, scale_ptr, row, at, inv_scale, MODE: tl.constexpr):
    if MODE == 2:
        scale, inv = row_scale(tl.max(tl.abs(v), 0))
        tl.store(scale_ptr + row, scale)
        v = saturate(v * inv)
    elif MODE == 1:
        v = saturate(v * inv_scale)
    tl.store(out_ptr + at, v.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
def embed_norm_kernel(
    token_ptr, embed_ptr, weight_ptr, x_ptr, out_ptr, scale_ptr, embed_scale, inv_scale, eps,
    H: tl.constexpr, BLOCK: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    live = col < H
    token = tl.load(token_ptr + row).to(tl.int64)
    x = tl.load(embed_ptr + token * H + col, mask=live, other=0.0).to(tl.float32) * embed_scale
    x = x.to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + row * H + col, x, mask=live)
    x = x.to(tl.float32)
    w = tl.load(weight_ptr + col, mask=live, other=0.0)
    v = x * tl.rsqrt(tl.sum(x * x, 0) * (1.0 / H) + eps) * w
    _emit(v, live, out_ptr, scale_ptr, row, row * H + col, inv_scale, MODE)


@triton.jit(do_not_specialize=["rows"])
def residual_norm_kernel(
    x_ptr, y_ptr, post_ptr, weight_ptr, out_ptr, scale_ptr, scalar, inv_scale, eps, rows,
    H: tl.constexpr, BLOCK: tl.constexpr, MODE: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, BLOCK)
    live = col < H
    post = tl.load(post_ptr + col, mask=live, other=0.0)
    w = tl.load(weight_ptr + col, mask=live, other=0.0)
    row = tl.program_id(0)
    at = row.to(tl.int64) * H + col
    y_next = tl.load(y_ptr + at, mask=live & (row < rows), other=0.0)
    x_next = tl.load(x_ptr + at, mask=live & (row < rows), other=0.0)
    while row < rows:
        at = row.to(tl.int64) * H + col
        y = y_next.to(tl.float32)
        x = x_next.to(tl.float32)
        after = row + PROGRAMS
        at_next = after.to(tl.int64) * H + col
        y_next = tl.load(y_ptr + at_next, mask=live & (after < rows), other=0.0)
        x_next = tl.load(x_ptr + at_next, mask=live & (after < rows), other=0.0)
        x = (x + y * tl.rsqrt(tl.sum(y * y, 0) * (1.0 / H) + eps) * post) * scalar
        x = x.to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + at, x, mask=live)
        x = x.to(tl.float32)
        v = x * tl.rsqrt(tl.sum(x * x, 0) * (1.0 / H) + eps) * w
        _emit(v, live, out_ptr, scale_ptr, row, at, inv_scale, MODE)
        row = after


WARPS = 4  # fixed: the reduction tree depends on it
PER_SM = 6  # twice the 3 that are resident: measured best on an H200


@functools.cache
def _programs(device: torch.device) -> int:
    return PER_SM * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def embed_norm(
    token: torch.Tensor, embed: torch.Tensor, embed_scale: float, weight: torch.Tensor, eps: float,
    x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, mode: int, inv_scale: float,
) -> None:  # fmt: skip
    n, h = out.shape
    constants = {"H": h, "BLOCK": triton.next_power_of_2(h), "MODE": mode}
    launch(embed_norm_kernel, (n,), (token, embed, weight, x, out, scale, embed_scale, inv_scale, eps), constants, WARPS)


def residual_norm(
    x: torch.Tensor, y: torch.Tensor, post: torch.Tensor, scalar: float, weight: torch.Tensor, eps: float,
    out: torch.Tensor, scale: torch.Tensor, mode: int, inv_scale: float,
) -> None:  # fmt: skip
    n, h = out.shape
    programs = _programs(x.device)
    constants = {"H": h, "BLOCK": triton.next_power_of_2(h), "MODE": mode, "PROGRAMS": programs}
    args = (x, y, post, weight, out, scale, scalar, inv_scale, eps, n)
    launch(residual_norm_kernel, (min(n, programs),), args, constants, WARPS)
