"""One pass on the device: the order of the kernels, and the buffers between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from spinf_stream.engine.forest import Layout
from spinf_stream.engine.gpu.buffers import Arena
from spinf_stream.engine.gpu.indices import Heads, kind
from spinf_stream.engine.gpu.linear import FP8, Layer, padded
from spinf_stream.engine.gpu.ops import Ops
from spinf_stream.engine.stack import LayerSpec, Stack
from spinf_stream.kernels.quantise.naive import NONE, ROW, STATIC

Index = dict[str, torch.Tensor]
Keys = Callable[[int, torch.Tensor], torch.Tensor]
Store = Callable[[int, torch.Tensor], None]


class Rows(NamedTuple):
    """A buffer: `all` with the rows that a product is rounded up to, `live` without them."""

    all: torch.Tensor  # [padded(n), width]
    live: torch.Tensor  # [n, width]


class Forward:
    def __init__(
        self, stack: Stack, starts_alnum: NDArray[np.bool_], ops: Ops, arena: Arena, row_scales: bool, fast_accum: bool
    ) -> None:
        self.stack, self.ops, self.arena = stack, ops, arena
        self.fp8 = stack.layers[0].qkv.dtype == FP8
        self.dtype = stack.embed.dtype
        self.input = FP8 if self.fp8 else self.dtype  # of products
        self.mode = NONE if not self.fp8 else ROW if row_scales else STATIC
        specs = stack.spec.layers
        self.layers = [
            Layer(w, s.heads * s.head_dim, s.kv_heads * s.head_dim, s.k_eq_v, i == len(specs) - 1, row_scales, fast_accum, ops.gated is not None)
            for i, (s, w) in enumerate(zip(specs, stack.layers))
        ]
        self.positions = 0
        self.ropes: list[tuple[torch.Tensor, torch.Tensor]] = []
        ends = np.ones(stack.spec.vocab, np.uint8)  # rows beyond the tokenizer's own are never letters
        ends[: len(starts_alnum)] = ~starts_alnum[: stack.spec.vocab]
        self.ends = torch.from_numpy(ends).to(stack.embed.device)
        self.kept: list[torch.Tensor] = []  # trunk slots of each layer, kept for a pass that continues
        self.embed_scale = float(torch.tensor(stack.spec.embed_scale, dtype=self.dtype))
        self.views: dict[tuple[str, int, int], Rows] = {}  # of this pass: slicing 15 buffers a layer costs milliseconds

    def __call__(self, ix: Index, heads: Heads, layout: Layout, store: Store | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """(cand [c] float32 logits, norms [need, 3] float64). store: is handed each layer's key slots."""
        self.rotations(int(layout.position.max()) + 1)
        past, kept = self.kept, []

        def keys(i: int, kv: torch.Tensor) -> torch.Tensor:
            if layout.past:
                kv[: len(past[i])].copy_(past[i])
            elif layout.keep:
                kept.append(kv[: int(layout.trunk[0])].clone())
            if store is not None:
                store(i, kv)
            return kv

        hidden = self.hidden(ix, keys)
        if layout.keep:
            self.kept = kept
        elif not layout.past:
            self.kept = []
        return self._head(hidden, ix, heads)

    def hidden(self, ix: Index, keys: Keys) -> torch.Tensor:
        """[reads, hidden] after the final norm, of the rows in ix["read"]. keys: a layer's number and this pass's keys and
        values in ix["slot_row"]'s order -> the slots that its rows attend."""
        self.views.clear()
        spec, ops, w = self.stack.spec, self.ops, self.stack.layers
        h, inner, eps, last = spec.hidden, spec.intermediate, spec.eps, len(w) - 1
        n = len(ix["token"])
        x, a, scale = self._rows("x", n, h).live, self._rows("a", n, h, self.input), self._scale("scale", n)
        ops.embed_norm(
            ix["token"], self.stack.embed, self.embed_scale, w[0].attn_in, eps, x, a.live, scale, self.mode, self.layers[0].inv_in["qkv"]
        )
        for i, s in enumerate(spec.layers):
            layer, of = self.layers[i], w[i]
            o = self._attended(i, s, layer, ix, keys, a, scale)
            if i == last:  # nothing reads the other rows
                n, every = len(ix["read"]), x
                x, a, scale = self._rows("x:read", n, h).live, self._rows("a:read", n, h, self.input), self._scale("scale:read", n)
                ops.gather_rows(every, ix["read"], x)
            y = self._rows("y", n, h)
            layer.o(o.all, y.all)
            ops.residual_norm(x, y.live, of.attn_out, 1.0, of.mlp_in, eps, a.live, scale, self.mode, layer.inv_in["gate_up"])
            m, scales = self._rows("m", n, inner, self.input), scale if layer.row_scales else None
            if layer.fused and ops.gated is not None and layer.inv_down is not None:
                ops.gated(a.live, scales, layer.pairs, layer.mlp_factors, m.live, layer.inv_down)
            else:
                gate_up = self._rows("gate_up", n, 2 * inner)
                layer.gate_up(a.all, gate_up.all)
                ops.geglu(gate_up.live, scales, layer.mlp_factors, m.live, layer.inv_down)
            layer.down(m.all, y.all)
            if i < last:
                after, out, mode, inv = w[i + 1].attn_in, a, self.mode, self.layers[i + 1].inv_in["qkv"]
            else:
                after, out, mode, inv = self.stack.final_norm, self._rows("hidden", n, h), NONE, 1.0
            ops.residual_norm(x, y.live, of.mlp_out, of.layer_scalar, after, eps, out.live, scale, mode, inv)
        return out.live

    def forget(self) -> None:
        """Give every buffer back, after a pass that did not fit."""
        self.views.clear()
        self.arena.clear()

    def _attended(self, i: int, s: LayerSpec, layer: Layer, ix: Index, keys: Keys, a: Rows, scale: torch.Tensor) -> Rows:
        """o-projection's input, [rows, heads * d]; of the last layer for read rows alone."""
        ops, of, eps = self.ops, self.stack.layers[i], self.stack.spec.eps
        n, q_rows = len(ix["token"]), s.heads * s.head_dim
        scales = q_scales = scale if layer.row_scales else None
        where, tiles, position = ix[f"rows:{s.window}"], ix[f"tiles:{kind(s)}"], ix["position"]
        if layer.qkv is not None:
            qkv = self._rows("qkv", n, s.qkv_rows)
            layer.qkv(a.all, qkv.all)
            q_raw, kv_raw = self._parts(qkv.live, q_rows)
        else:
            assert layer.q is not None and layer.kv is not None
            kv_all = self._rows("kv:raw", n, s.qkv_rows - q_rows)
            layer.kv(a.all, kv_all.all)
            n, where, tiles, position = len(ix["read"]), ix["last:rows"], ix["last:tiles"], ix["last:position"]
            a_read, q_all = self._rows("a:read", n, a.all.shape[1], self.input), self._rows("qkv", n, q_rows)
            ops.gather_rows(a.live, ix["read"], a_read.live)
            layer.q(a_read.all, q_all.all)
            if scales is not None:
                q_scales = torch.index_select(scales, 0, ix["read"])
            q_raw, kv_raw = q_all.live, kv_all.live
        q, o = self._rows("q", n, q_rows).live, self._rows("o", n, q_rows, self.input)
        cos, sin = self.ropes[s.rope]
        ops.queries(q_raw, q_scales, layer.q_factor, position, cos, sin, of.q_norm, eps, s.scale, q)
        kv = self._exact("kv", len(ix["slot_row"]), 2 * s.kv_heads * s.head_dim)
        ops.keys_values(
            kv_raw, scales, (layer.k_factor, layer.v_factor), ix["position"], ix["slot_row"],
            cos, sin, of.k_norm, eps, s.v_norm or s.k_eq_v, s.k_eq_v, kv,
        )  # fmt: skip
        ops.attention(q, keys(i, kv), tiles, where, s.head_dim, s.kv_heads, layer.inv_o, o.live)
        return o

    def _head(self, hidden: torch.Tensor, ix: Index, heads: Heads) -> tuple[torch.Tensor, torch.Tensor]:
        embed, cap, ops = self.stack.embed, self.stack.spec.softcap or 0.0, self.ops
        cand = self.arena.get("cand", 1, max(1, len(ix["pick"])), torch.float32)[0, : len(ix["pick"])]
        for lo, hi, c_lo, c_hi in heads.steps:
            if c_hi > c_lo:
                z = self.arena.get("logits", hi - lo, heads.distinct, torch.float32)
                ops.candidates(hidden[lo:hi], embed, ix["cand_token"], cap, z)
                torch.index_select(z.view(-1), 0, ix["pick"][c_lo:c_hi], out=cand[c_lo:c_hi])
        n = len(heads.need)
        norms = self.arena.get("norms", n, 3, torch.float64)
        if n:
            if n < len(hidden):
                some = self._rows("hidden:need", n, hidden.shape[1]).live
                ops.gather_rows(hidden, ix["need"], some)
                hidden = some
            parts = self.arena.get("parts", 3 * n, ops.head_blocks(len(embed)), torch.float32)
            ops.norms(hidden, embed, self.ends, cap, parts, norms)
        return cand, norms

    def rotations(self, positions: int) -> None:
        """cos and sin tables [positions, d / 2], float32, grown by doubling: a row of them never changes."""
        if positions <= self.positions:
            return
        self.positions = max(8192, 1 << (positions - 1).bit_length())
        device = self.stack.embed.device
        at = torch.arange(self.positions, dtype=torch.float32, device=device)
        angles = [at[:, None] * torch.tensor(r, dtype=torch.float32, device=device) for r in self.stack.spec.ropes]
        self.ropes = [(t.cos(), t.sin()) for t in angles]

    def _rows(self, name: str, n: int, width: int, dtype: torch.dtype | None = None) -> Rows:
        key = (name, n, width)
        if key not in self.views:
            every = self.arena.get(name, padded(n), width, dtype or self.dtype)
            self.views[key] = Rows(every, every[:n])
        return self.views[key]

    def _exact(self, name: str, n: int, width: int) -> torch.Tensor:
        """A buffer that no product writes: no rows beyond its own."""
        key = (name, n, width)
        if key not in self.views:
            every = self.arena.get(name, n, width, self.dtype)
            self.views[key] = Rows(every, every)
        return self.views[key].live

    def _parts(self, qkv: torch.Tensor, q_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        key = ("qkv:parts", q_rows, qkv.shape[1])
        if key not in self.views:
            self.views[key] = Rows(qkv[:, :q_rows], qkv[:, q_rows:])
        return self.views[key]

    def _scale(self, name: str, n: int) -> torch.Tensor:
        return self.arena.get(name, 1, n, torch.float32)[0]
