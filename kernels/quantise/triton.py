"""Device helpers of quantise/naive.py, shared by the producer kernels."""

from __future__ import annotations

import triton
import triton.language as tl

NONE, STATIC, ROW = 0, 1, 2


@triton.jit
def row_scale(amax):
    """(scale, 1 / scale): the smallest power of two with amax / scale <= 448, and its exact reciprocal."""
    t = tl.maximum(amax * (1.0 / 448.0), 1.8189894035458565e-12)
    bits = (t.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
    return bits.to(tl.float32, bitcast=True), (0x7F000000 - bits).to(tl.float32, bitcast=True)


@triton.jit
def saturate(v):
    """Triton's cast to e4m3 has no defined saturation. NaN must stay NaN: an article's fault may not be hidden."""
    return tl.where(v != v, v, tl.minimum(tl.maximum(v, -448.0), 448.0))
