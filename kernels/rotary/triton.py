"""rotary/naive.py as kernels: one program a row (queries) or a slot (keys and values), halves of a head side by side."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from spinf_stream.kernels.launch import launch


@triton.jit
def _normed(ptr, heads, live, factor, eps, w_lo, w_hi, D: tl.constexpr, NORM: tl.constexpr, WEIGHT: tl.constexpr):
    """Two halves [heads, D / 2] of every head: raw * factor, normed over the head."""
    col = tl.arange(0, D // 2)
    at = ptr + heads[:, None] * D + col[None, :]
    lo = tl.load(at, mask=live[:, None], other=0.0).to(tl.float32) * factor
    hi = tl.load(at + D // 2, mask=live[:, None], other=0.0).to(tl.float32) * factor
    if NORM:
        r = tl.rsqrt((tl.sum(lo * lo, 1) + tl.sum(hi * hi, 1)) * (1.0 / D) + eps)[:, None]
        lo = lo * r
        hi = hi * r
        if WEIGHT:
            lo = lo * w_lo[None, :]
            hi = hi * w_hi[None, :]
    return lo, hi


@triton.jit
def queries_kernel(
    raw_ptr, scale_ptr, position_ptr, cos_ptr, sin_ptr, weight_ptr, out_ptr, factor, out_factor, eps,
    STRIDE: tl.constexpr, HEADS: tl.constexpr, HB: tl.constexpr, D: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, HB)
    live = heads < HEADS
    col = tl.arange(0, D // 2)
    if ROW:
        factor = factor * tl.load(scale_ptr + row)
    w_lo = tl.load(weight_ptr + col)
    w_hi = tl.load(weight_ptr + D // 2 + col)
    lo, hi = _normed(raw_ptr + row * STRIDE, heads, live, factor, eps, w_lo, w_hi, D, True, True)
    at = tl.load(position_ptr + row).to(tl.int64) * (D // 2) + col
    cos = tl.load(cos_ptr + at)[None, :]
    sin = tl.load(sin_ptr + at)[None, :]
    o = out_ptr + row * (HEADS * D) + heads[:, None] * D + col[None, :]
    ty = out_ptr.dtype.element_ty
    tl.store(o, ((lo * cos - hi * sin) * out_factor).to(ty), mask=live[:, None])
    tl.store(o + D // 2, ((hi * cos + lo * sin) * out_factor).to(ty), mask=live[:, None])


@triton.jit
def keys_values_kernel(
    raw_ptr, scale_ptr, position_ptr, slot_row_ptr, cos_ptr, sin_ptr, weight_ptr, kv_ptr, k_factor, v_factor, eps,
    STRIDE: tl.constexpr, KV: tl.constexpr, HB: tl.constexpr, D: tl.constexpr, ROW: tl.constexpr,
    V_NORM: tl.constexpr, K_EQ_V: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    row = tl.load(slot_row_ptr + slot)
    heads = tl.arange(0, HB)
    col = tl.arange(0, D // 2)
    there = heads < KV
    live = there & (row >= 0)  # padding loads nothing: 0 * r = 0, so it stores zeros
    row = tl.maximum(row, 0).to(tl.int64)
    if ROW:
        scale = tl.load(scale_ptr + row)  # padding reads row 0's, which may be NaN in an article at fault
        scale = tl.where(tl.load(slot_row_ptr + slot) >= 0, scale, 1.0)
        k_factor = k_factor * scale
        v_factor = v_factor * scale
    w_lo = tl.load(weight_ptr + col)
    w_hi = tl.load(weight_ptr + D // 2 + col)
    raw = raw_ptr + row * STRIDE
    lo, hi = _normed(raw, heads, live, k_factor, eps, w_lo, w_hi, D, True, True)
    at = tl.load(position_ptr + row).to(tl.int64) * (D // 2) + col
    cos = tl.load(cos_ptr + at)[None, :]
    sin = tl.load(sin_ptr + at)[None, :]
    o = kv_ptr + slot * (2 * KV * D) + heads[:, None] * D + col[None, :]
    ty = kv_ptr.dtype.element_ty
    tl.store(o, (lo * cos - hi * sin).to(ty), mask=there[:, None])
    tl.store(o + D // 2, (hi * cos + lo * sin).to(ty), mask=there[:, None])
    if K_EQ_V:
        lo, hi = _normed(raw, heads, live, v_factor, eps, w_lo, w_hi, D, V_NORM, False)
    else:
        lo, hi = _normed(raw + KV * D, heads, live, v_factor, eps, w_lo, w_hi, D, V_NORM, False)
    tl.store(o + KV * D, lo.to(ty), mask=there[:, None])
    tl.store(o + KV * D + D // 2, hi.to(ty), mask=there[:, None])


LOG2E = 1.4426950408889634
WARPS = 2


def queries(
    raw: torch.Tensor, scale: torch.Tensor | None, factor: float, position: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    weight: torch.Tensor, eps: float, attention_scale: float, out: torch.Tensor,
) -> None:  # fmt: skip
    d = weight.shape[0]
    n, heads = out.shape[0], out.shape[1] // d
    args = (raw, out if scale is None else scale, position, cos, sin, weight, out, factor, attention_scale * LOG2E, eps)
    constants = {"STRIDE": raw.stride(0), "HEADS": heads, "HB": triton.next_power_of_2(heads), "D": d, "ROW": scale is not None}
    launch(queries_kernel, (n,), args, constants, WARPS)


def keys_values(
    raw: torch.Tensor, scale: torch.Tensor | None, factors: tuple[float, float], position: torch.Tensor, slot_row: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, weight: torch.Tensor, eps: float, v_norm: bool, k_eq_v: bool, kv: torch.Tensor,
) -> None:  # fmt: skip
    d = weight.shape[0]
    heads = kv.shape[1] // (2 * d)
    args = (raw, kv if scale is None else scale, position, slot_row, cos, sin, weight, kv, *factors, eps)
    constants = {
        "STRIDE": raw.stride(0), "KV": heads, "HB": triton.next_power_of_2(heads), "D": d, "ROW": scale is not None,
        "V_NORM": v_norm, "K_EQ_V": k_eq_v,
    }  # fmt: skip
    launch(keys_values_kernel, (kv.shape[0],), args, constants, WARPS)
