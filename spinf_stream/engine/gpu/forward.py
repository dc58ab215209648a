"""One pass on the device: the order of the kernels, and the buffers between them."""

from __future__ import annotations

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


class Forward:
    def __init__(self, stack: Stack, starts_alnum: NDArray[np.bool_], ops: Ops, arena: Arena, row_scales: bool) -> None:
        self.stack, self.ops, self.arena = stack, ops, arena
        self.fp8 = stack.layers[0].qkv.dtype == FP8
        self.dtype = stack.embed.dtype
        self.mode = NONE if not self.fp8 else ROW if row_scales else STATIC
        specs = stack.spec.layers
        self.layers = [
            Layer(w, s.heads * s.head_dim, s.kv_heads * s.head_dim, s.k_eq_v, i == len(specs) - 1, row_scales)
            for i, (s, w) in enumerate(zip(specs, stack.layers))
        ]
        self.positions = 0
        self.ropes: list[tuple[torch.Tensor, torch.Tensor]] = []
        ends = np.ones(stack.spec.vocab, np.uint8)  # rows beyond the tokenizer's own are never letters
        ends[: len(starts_alnum)] = ~starts_alnum[: stack.spec.vocab]
        self.ends = torch.from_numpy(ends).to(stack.embed.device)
        self.kept: list[torch.Tensor] = []  # trunk slots of each layer, kept for a pass that continues
        self.embed_scale = float(torch.tensor(stack.spec.embed_scale, dtype=self.dtype))

    def __call__(self, ix: Index, heads: Heads, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """(cand [c] float32 logits, norms [need, 3] float64)."""
        self._rotations(int(layout.position.max()) + 1)
        spec, ops, w = self.stack.spec, self.ops, self.stack.layers
        rows, reads, last = len(layout.token), len(layout.read_row), len(w) - 1
        x, a, y = self._rows("x", rows, spec.hidden), self._quantised("a", rows, spec.hidden), self._rows("y", rows, spec.hidden)
        scale = self._scale("scale", rows)
        ops.embed_norm(
            ix["token"], self.stack.embed, self.embed_scale, w[0].attn_in, spec.eps,
            x[:rows], a[:rows], scale, self.mode, self.layers[0].inv_in["qkv"],
        )  # fmt: skip
        keep: list[torch.Tensor] = []
        for i, s in enumerate(spec.layers):
            layer, of = self.layers[i], w[i]
            o = self._attended(i, s, layer, ix, layout, a, scale, keep)
            n = rows
            if i == last:  # nothing reads the other rows
                n, every, x = reads, x, self._rows("x:read", reads, spec.hidden)
                ops.gather_rows(every[:rows], ix["read"], x[:n])
            y_ = layer.o(o, y, n)
            ops.residual_norm(x[:n], y_, of.attn_out, 1.0, of.mlp_in, spec.eps, a[:n], scale[:n], self.mode, layer.inv_in["gate_up"])
            gate_up = layer.gate_up(a, self._rows("gate_up", n, 2 * spec.intermediate), n)
            h = self._quantised("h", n, spec.intermediate)
            ops.geglu(gate_up, scale[:n] if layer.row_scales else None, layer.mlp_factors, h[:n], layer.inv_down)
            y_ = layer.down(h, y, n)
            if i < last:
                after, out, mode, inv = w[i + 1].attn_in, a, self.mode, self.layers[i + 1].inv_in["qkv"]
            else:
                after, out, mode, inv = self.stack.final_norm, self._rows("hidden", n, spec.hidden), NONE, 1.0
            ops.residual_norm(x[:n], y_, of.mlp_out, of.layer_scalar, after, spec.eps, out[:n], scale[:n], mode, inv)
        if layout.keep:
            self.kept = keep
        elif not layout.past:
            self.kept = []
        return self._head(out[:reads], ix, heads)

    def _attended(
        self, i: int, s: LayerSpec, layer: Layer, ix: Index, layout: Layout, a: torch.Tensor, scale: torch.Tensor, keep: list[torch.Tensor]
    ) -> torch.Tensor:
        """o-projection's input, [rows, heads * d]; of the last layer for read rows alone."""
        spec, ops, of = self.stack.spec, self.ops, self.stack.layers[i]
        rows, q_rows = len(layout.token), s.heads * s.head_dim
        scales = scale[:rows] if layer.row_scales else None
        where, tiles, position = ix[f"rows:{s.window}"], ix[f"tiles:{kind(s)}"], ix["position"]
        n, q_scales = rows, scales
        if layer.qkv is not None:
            qkv = layer.qkv(a, self._rows("qkv", rows, s.qkv_rows), rows)
            q_raw, kv_raw = qkv[:, :q_rows], qkv[:, q_rows:]
        else:
            assert layer.q is not None and layer.kv is not None
            n, where, tiles, position = len(layout.read_row), ix["last:rows"], ix["last:tiles"], ix["last:position"]
            kv_raw = layer.kv(a, self._rows("kv:raw", rows, s.qkv_rows - q_rows), rows)
            a_read = self._quantised("a:read", n, spec.hidden)
            ops.gather_rows(a[:rows], ix["read"], a_read[:n])
            if scales is not None:
                q_scales = torch.index_select(scales, 0, ix["read"])
            q_raw = layer.q(a_read, self._rows("qkv", n, q_rows), n)
        q = self._rows("q", n, q_rows)[:n]
        cos, sin = self.ropes[s.rope]
        ops.queries(q_raw, q_scales, layer.q_factor, position, cos, sin, of.q_norm, spec.eps, s.scale, q)
        slots = len(ix["slot_row"])
        kv = self.arena.get("kv", slots, 2 * s.kv_heads * s.head_dim, self.dtype)
        ops.keys_values(
            kv_raw, scales, (layer.k_factor, layer.v_factor), ix["position"], ix["slot_row"],
            cos, sin, of.k_norm, spec.eps, s.v_norm or s.k_eq_v, s.k_eq_v, kv,
        )  # fmt: skip
        if layout.past:
            kv[: len(self.kept[i])].copy_(self.kept[i])
        elif layout.keep:
            keep.append(kv[: int(layout.trunk[0])].clone())
        o = self._quantised("o", n, q_rows)
        ops.attention(q, kv, tiles, where, s.head_dim, s.kv_heads, layer.inv_o, o[:n])
        return o

    def _head(self, hidden: torch.Tensor, ix: Index, heads: Heads) -> tuple[torch.Tensor, torch.Tensor]:
        embed, cap, ops = self.stack.embed, self.stack.spec.softcap or 0.0, self.ops
        cand = self.arena.get("cand", 1, max(1, len(ix["pick"])), torch.float32)[0, : len(ix["pick"])]
        u = heads.distinct
        for lo, hi, c_lo, c_hi in heads.steps:
            if c_hi > c_lo:
                z = self.arena.get("logits", hi - lo, u, torch.float32)
                ops.candidates(hidden[lo:hi], embed, ix["cand_token"], cap, z)
                torch.index_select(z.view(-1), 0, ix["pick"][c_lo:c_hi], out=cand[c_lo:c_hi])
        n = len(heads.need)
        norms = self.arena.get("norms", n, 3, torch.float64)
        if n:
            if n < len(hidden):
                some = self._rows("hidden:need", n, self.stack.spec.hidden)[:n]
                ops.gather_rows(hidden, ix["need"], some)
                hidden = some
            parts = self.arena.get("parts", 3 * n, ops.head_blocks(len(embed)), torch.float32)
            ops.norms(hidden, embed, self.ends, cap, parts, norms)
        return cand, norms

    def _rotations(self, positions: int) -> None:
        """cos and sin tables [positions, d / 2], float32, grown by doubling: a row of them never changes."""
        if positions <= self.positions:
            return
        self.positions = max(8192, 1 << (positions - 1).bit_length())
        device = self.stack.embed.device
        at = torch.arange(self.positions, dtype=torch.float32, device=device)
        angles = [at[:, None] * torch.tensor(r, dtype=torch.float32, device=device) for r in self.stack.spec.ropes]
        self.ropes = [(t.cos(), t.sin()) for t in angles]

    def _rows(self, name: str, rows: int, width: int) -> torch.Tensor:
        return self.arena.get(name, padded(rows), width, self.dtype)

    def _quantised(self, name: str, rows: int, width: int) -> torch.Tensor:
        return self.arena.get(name, padded(rows), width, FP8 if self.fp8 else self.dtype)

    def _scale(self, name: str, rows: int) -> torch.Tensor:
        return self.arena.get(name, 1, rows, torch.float32)[0]
