"""One matrix product a projection, the rows already in its input type.

fp8: cuBLASLt through torch._scaled_mm; a row's bits do not depend on the number of rows (measured, and gates.py measures
it again on the card it runs on; where they do, the kernel of the bf16 path takes that product over). bf16: a kernel of our
own, because cuBLAS's bits do (kernels/product).
Rows are rounded up to 16 (at least 64) inside buffers that have the room; the rows beyond belong to nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from spinf_stream.engine.stack import LayerWeights
from spinf_stream.kernels.gated.naive import interleave

FP8 = torch.float8_e4m3fn


def padded(rows: int) -> int:
    return max(64, -(-rows // 16) * 16)


class Projection:
    """y = x W^T. In fp8 `scaled` multiplies the static input scale and the weight scale in; otherwise that is the consumer's."""

    def __init__(self, weight: torch.Tensor, scales: tuple[float, float] | None = None, fast: bool = False) -> None:
        self.weight = weight  # [out, in]
        self.turned = weight.t()
        self.fast = fast
        self.fp8 = weight.dtype == FP8
        a, b = scales or (1.0, 1.0)
        self.factor = a * b
        self.own = not self.fp8  # on a card, by our own kernel
        self.a = torch.tensor(a, dtype=torch.float32, device=weight.device)
        self.b = torch.tensor(b, dtype=torch.float32, device=weight.device)

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """x [padded rows, in], out [padded rows, out]."""
        if x.is_cuda and self.own:
            from spinf_stream.kernels.product.triton import product

            product(x, self.weight, out, self.factor)
        elif x.is_cuda:
            torch._scaled_mm(x, self.turned, self.a, self.b, out_dtype=out.dtype, use_fast_accum=self.fast, out=out)
        elif self.fp8:
            out.copy_(x.float() @ self.turned.float() * self.factor)
        else:
            torch.mm(x, self.turned, out=out)


class Layer:
    """A layer's four products and what their consumers must multiply."""

    def __init__(
        self, w: LayerWeights, heads_rows: int, kv_rows: int, k_eq_v: bool, last: bool, row_scales: bool, fast: bool, fused: bool
    ) -> None:
        """fused: the MLP's first half is one kernel on interleaved weights."""
        fp8 = w.qkv.dtype == FP8
        if fp8 and (w.weight_scale is None or w.input_scale is None):
            raise ValueError("an fp8 layer needs weight_scale and input_scale")
        ws = {name: t.float().cpu() for name, t in (w.weight_scale or {}).items()}
        xs = w.input_scale or {}
        self.row_scales = fp8 and row_scales
        # the input scale of qkv and gate_up: one a row where the norm kernel holds the row, or the checkpoint's
        self.inv_in = {n: 1.0 if not fp8 or row_scales else 1.0 / xs[n] for n in ("qkv", "gate_up")}
        left = {n: 1.0 if not fp8 or row_scales else xs[n] for n in ("qkv", "gate_up")}
        q, k, v = 0, heads_rows, heads_rows if k_eq_v else heads_rows + kv_rows
        self.q_factor, self.k_factor, self.v_factor = (left["qkv"] * _part(ws, "qkv", r) for r in (q, k, v))
        half = w.gate_up.shape[0] // 2  # scales stay in the order of the checkpoint: gate's, then up's
        self.fused = fused and fp8
        if self.fused and not w.interleaved:
            interleave(w.gate_up)
            w.interleaved = True
        elif w.interleaved and not self.fused:
            raise ValueError("this stack's gate_up is interleaved: only the executor that did it, or its like, can run it")
        self.mlp_factors = (left["gate_up"] * _part(ws, "gate_up", 0), left["gate_up"] * _part(ws, "gate_up", half))
        self.inv_o = 1.0 / xs["o"] if fp8 else 1.0
        self.inv_down = 1.0 / xs["down"] if fp8 else None  # None: the down projection takes its input as it is
        # the last layer computes queries for read rows alone, keys for all
        self.qkv = None if last else Projection(w.qkv, fast=fast)
        self.q = Projection(w.qkv[:heads_rows], fast=fast) if last else None
        self.kv = Projection(w.qkv[heads_rows:], fast=fast) if last else None
        self.o = Projection(w.o, (xs["o"], _part(ws, "o", 0)) if fp8 else None, fast)
        self.pairs = w.gate_up
        self.gate_up = Projection(w.gate_up, fast=fast)
        self.down = Projection(w.down, (xs["down"], _part(ws, "down", 0)) if fp8 else None, fast)


def use_own(layers: Sequence[Layer], weights: Sequence[LayerWeights], shapes: Collection[tuple[int, int]]) -> None:
    """Products with weights of these shapes [out, in] run on our own kernel."""
    for layer, w in zip(layers, weights):
        for weight, projections in (
            (w.qkv, (layer.qkv, layer.q, layer.kv)), (w.o, (layer.o,)), (w.gate_up, (layer.gate_up,)), (w.down, (layer.down,)),
        ):  # fmt: skip
            for projection in projections:
                if projection is not None and tuple(weight.shape) in shapes:
                    projection.own = True


def _part(scales: dict[str, torch.Tensor], name: str, row: int) -> float:
    if name not in scales:
        return 1.0
    s = scales[name].flatten()
    return float(s[0] if len(s) == 1 else s[row])
