"""Rows to e4m3: static per-tensor scales, or one power-of-two scale a row. The truth beside triton.py.

A row's scale depends on the row alone, so it never carries a neighbour's outlier across (vllm#57016 shows what a
per-tensor dynamic scale does). It is a power of two: dividing by it is exact, and the consumer of the product may
multiply it back before or after any rounding with the same bits.
"""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
NONE, STATIC, ROW = 0, 1, 2  # how a producer writes its output: as it is, with a static scale, with a scale a row


def row_scale(amax: torch.Tensor) -> torch.Tensor:
    """Smallest power of two s with amax / s <= 448, for finite float32 amax >= 0; at least 2^-39, so zero rows stay finite."""
    t = torch.clamp(amax.float() * (1.0 / E4M3_MAX), min=2.0**-39)
    bits = (t.view(torch.int32) + 0x7FFFFF) & 0x7F800000
    return bits.view(torch.float32)


def saturated(v: torch.Tensor) -> torch.Tensor:
    """Into e4m3's range; NaN stays NaN."""
    return v.clamp(-E4M3_MAX, E4M3_MAX)


def write(v: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, mode: int, inv_scale: float) -> None:
    """Store float32 rows v [n, w] into out [n, w]; mode ROW also stores each row's scale into scale [n]."""
    if mode == ROW:
        s = row_scale(v.abs().amax(-1))
        scale.copy_(s)
        v = saturated(v * (1.0 / s)[:, None])
    elif mode == STATIC:
        v = saturated(v * inv_scale)
    out.copy_(v.to(out.dtype))
