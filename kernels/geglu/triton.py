"""geglu/naive.py as a kernel: memory-bound, 77 KB a row at 15,360 columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from spinf_stream.kernels.launch import launch
from spinf_stream.kernels.quantise.triton import saturate


@triton.jit
def gelu_tanh(x):
    """tanh(u) = 1 - 2 / (1 + e^2u): one exp2 and one division; e^2u = inf gives 1 and 0 gives -1."""
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (2.0 - 2.0 / (1.0 + tl.math.exp2(u * 2.8853900817779268)))


@triton.jit
def geglu_kernel(
    in_ptr, scale_ptr, out_ptr, gate_factor, up_factor, inv_scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROW: tl.constexpr, STATIC: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = (part // BLOCKS).to(tl.int64)
    col = (part % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    live = col < WIDTH
    gate = tl.load(in_ptr + row * (2 * WIDTH) + col, mask=live, other=0.0).to(tl.float32)
    up = tl.load(in_ptr + row * (2 * WIDTH) + WIDTH + col, mask=live, other=0.0).to(tl.float32)
    if ROW:
        scale = tl.load(scale_ptr + row)
        gate_factor = gate_factor * scale
        up_factor = up_factor * scale
    gate = gate * gate_factor
    up = up * up_factor
    v = gelu_tanh(gate) * up
    if STATIC:
        v = saturate(v * inv_scale)
    tl.store(out_ptr + row * WIDTH + col, v.to(out_ptr.dtype.element_ty), mask=live)


BLOCK, WARPS = 2048, 4


def geglu(
    gate_up: torch.Tensor, scale: torch.Tensor | None, factors: tuple[float, float], out: torch.Tensor, inv_scale: float | None
) -> None:
    n, width = out.shape
    block = min(BLOCK, triton.next_power_of_2(width))
    args = (gate_up, out if scale is None else scale, out, *factors, 1.0 if inv_scale is None else inv_scale)
    constants = {"WIDTH": width, "BLOCK": block, "ROW": scale is not None, "STATIC": inv_scale is not None}
    launch(geglu_kernel, (n * triton.cdiv(width, block),), args, constants, WARPS)
