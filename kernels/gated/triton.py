"""gated/naive.py as a kernel: the matrix product keeps gate and up in registers, so 123 KB a row never touch memory.

One program a multiprocessor walks 128 x 256 tiles (Hopper: TMA loads, wgmma on e4m3, sums in the tensor cores' own
accumulators, the epilogue of a tile under the loads of the next). Pairs of rows are interleaved in the weight, so gate
and up of a column are neighbours in one thread. Tiles of a group of row blocks share their weight rows in L2.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from spinf_stream.kernels.launch import launch


@triton.jit
def _falling(w, MACHINE: tl.constexpr):
    """1 / (1 + 2^w): inf gives 0. Three instructions where Triton's exp2 and division guard ranges that cannot occur."""
    if MACHINE:
        code: tl.constexpr = "{.reg .f32 t; ex2.approx.ftz.f32 t, $1; add.ftz.f32 t, t, 0f3F800000; rcp.approx.ftz.f32 $0, t;}"
        return tl.inline_asm_elementwise(code, "=f,f", [w], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 / (1.0 + tl.math.exp2(w))


@triton.jit(do_not_specialize=["rows"])
def gated_kernel(
    x, pairs, scale_ptr, out_ptr, gate_factor, up_factor, inv_scale, rows,
    WIDTH: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, PROGRAMS: tl.constexpr, STAGES: tl.constexpr, ROW: tl.constexpr, MACHINE: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(rows, BM)
    COLUMNS: tl.constexpr = 2 * WIDTH // BN
    for t in tl.range(tl.program_id(0), blocks * COLUMNS, PROGRAMS, flatten=True):
        first = t // (GROUP * COLUMNS) * GROUP
        size = tl.minimum(blocks - first, GROUP)
        m = first + t % (GROUP * COLUMNS) % size
        n = t % (GROUP * COLUMNS) // size
        acc = tl.zeros([BM, BN], tl.float32)
        for k in tl.range(0, K, BK, num_stages=STAGES):
            acc = tl.dot(x.load([m * BM, k]), pairs.load([n * BN, k]).T, acc)
        gate, up = tl.split(acc.reshape(BM, BN // 2, 2))
        row = m * BM + tl.arange(0, BM)
        live = row < rows
        if ROW:
            scale = tl.load(scale_ptr + row, mask=live, other=1.0)
            gate = gate * (scale * gate_factor)[:, None]
            up = up * (scale * (up_factor * inv_scale))[:, None]
        else:
            gate = gate * gate_factor
            up = up * (up_factor * inv_scale)
        # gelu_tanh(x) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3); the cast to e4m3 saturates by itself (test_compiled)
        v = gate * up * _falling(gate * tl.fma(gate * gate, -0.1029432396, -2.3022081981), MACHINE)
        at = row.to(tl.int64)[:, None] * WIDTH + n * (BN // 2) + tl.arange(0, BN // 2)[None, :]
        tl.store(out_ptr + at, v.to(out_ptr.dtype.element_ty), mask=live[:, None])


BM, BN, BK, GROUP, WARPS, STAGES = 128, 256, 128, 32, 8, 4


def fits(device: torch.device, hidden: int, width: int) -> bool:
    """Whether this card and these sizes can take the kernel."""
    return _major(device) == 9 and hidden % BK == 0 and 2 * width % BN == 0


@functools.cache
def _major(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


@functools.cache
def _programs(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def tiles_of(x: torch.Tensor, rows: int) -> Any:
    """A TMA descriptor that reads x [n, K] in blocks of rows x BK."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(x, [rows, BK])


def gated(
    x: torch.Tensor, scale: torch.Tensor | None, pairs: torch.Tensor, factors: tuple[float, float], out: torch.Tensor, inv_scale: float,
    pairs_tiles: Any = None,
) -> None:  # fmt: skip
    (n, hidden), width = x.shape, out.shape[1]
    args = (
        tiles_of(x, BM), tiles_of(pairs, BN) if pairs_tiles is None else pairs_tiles,
        out if scale is None else scale, out, *factors, inv_scale, n,
    )  # fmt: skip
    programs = _programs(x.device)
    constants = {
        "WIDTH": width, "K": hidden, "BM": BM, "BN": BN, "BK": BK, "GROUP": GROUP, "PROGRAMS": programs, "STAGES": STAGES,
        "ROW": scale is not None, "MACHINE": x.is_cuda,
    }  # fmt: skip
    launch(gated_kernel, (programs,), args, constants, WARPS, STAGES)
