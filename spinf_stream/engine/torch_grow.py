"""Decode steps of the plain torch executor; see grow.py for what they mean.

Attention is two score matrices under one softmax: a group of rows against its trunk, each row against its own path.
Nothing of a trunk is copied.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from spinf_stream.engine.grow import Grown, Step
from spinf_stream.engine.stack import LayerSpec
from spinf_stream.slots.head import SlotHead

if TYPE_CHECKING:
    from spinf_stream.engine.torch_executor import TorchExecutor

Trunk = list[tuple[torch.Tensor, torch.Tensor]]  # a layer's keys and values, [P, kv_heads, d]


class TorchGrower:
    def __init__(self, executor: TorchExecutor) -> None:
        self.executor = executor
        self.head = SlotHead(executor.stack.embed, executor.stack.spec.softcap)
        self.own: list[tuple[torch.Tensor, torch.Tensor]] = []  # a layer's pool of own rows

    def grow(self, step: Step) -> Grown:
        from spinf_stream.engine.torch_executor import rms, rotation

        began = time.perf_counter()
        ex, spec = self.executor, self.executor.stack.spec
        self._reserve(int(step.path.max()) + 1)
        token, read = self._on(step.token), self._on(step.read)
        turns = [rotation(self._on(step.position).float(), rope, ex.stack.embed.dtype) for rope in ex.ropes]
        paths = Paths(self, step)
        x = ex.stack.embed[token] * ex.scale
        for i, (layer, w) in enumerate(zip(spec.layers, ex.stack.layers)):
            q, k, v = ex.qkv(rms(x, w.attn_in, spec.eps), layer, w, turns[layer.rope])
            keys, values = self.own[i]
            keys[paths.row], values[paths.row] = k, v
            attended = paths.attend(q, keys, values, [t[i] for t in step.trunks], layer)
            if i == len(spec.layers) - 1:
                attended, x = attended[read], x[read]
            x = ex.after(x, attended, w)
        grown = self.head.read(rms(x, ex.stack.final_norm, spec.eps), step)
        return grown._replace(seconds=time.perf_counter() - began)

    def _reserve(self, rows: int) -> None:
        have = len(self.own[0][0]) if self.own else 0
        if rows <= have:
            return
        size, ex = max(rows, 2 * have, 256), self.executor
        fresh = []
        for i, layer in enumerate(ex.stack.spec.layers):
            pair = []
            for n in range(2):
                pool = torch.zeros(size, layer.kv_heads, layer.head_dim, dtype=ex.stack.embed.dtype, device=ex.device)
                if have:
                    pool[:have] = self.own[i][n]
                pair.append(pool)
            fresh.append((pair[0], pair[1]))
        self.own = fresh

    def _on(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.executor.device)


class Paths:
    """The index arrays of a step on the device, shared by its layers."""

    def __init__(self, grower: TorchGrower, step: Step) -> None:
        on = grower._on
        length = (step.path >= 0).sum(1)
        self.row = on(step.path[np.arange(step.rows), length - 1])
        self.path = on(np.maximum(step.path, 0))  # padding shows row 0, and is masked
        self.position = on(step.position)
        entry = torch.arange(step.path.shape[1], device=self.path.device)
        self.there = on(step.path) >= 0
        self.gap = (self.position - on(step.length[step.trunk]))[:, None] - entry[None, :]  # positions from a path's entry to the row
        cut = np.flatnonzero(np.diff(step.trunk)) + 1
        bounds = [0, *cut.tolist(), step.rows]
        self.groups = [  # rows of one trunk: from, to, the trunk, its length, the rows' earliest position
            (lo, hi, int(step.trunk[lo]), int(step.length[step.trunk[lo]]), int(step.position[lo:hi].min()))
            for lo, hi in itertools.pairwise(bounds)
        ]  # fmt: skip

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
               trunks: Trunk, layer: LayerSpec) -> torch.Tensor:  # fmt: skip
        """q [n, heads, d] -> [n, heads * d]. keys, values: the layer's pool."""
        n, heads, d = q.shape
        q = q.view(n, layer.kv_heads, heads // layer.kv_heads, d)
        own_k, own_v = keys[self.path], values[self.path]  # [n, L, kv, d]
        own = torch.einsum("nkgd,nlkd->nkgl", q, own_k).float() * layer.scale
        visible = self.there if layer.window is None else self.there & (self.gap < layer.window)
        own = own.masked_fill(~visible[:, None, None, :], -torch.inf)
        out = torch.empty_like(q)
        for lo, hi, which, length, earliest in self.groups:
            start = 0 if layer.window is None else min(length, max(0, earliest - layer.window + 1))
            k, v = trunks[which][0][start:], trunks[which][1][start:]
            scores = torch.einsum("nkgd,pkd->nkgp", q[lo:hi], k).float() * layer.scale
            if layer.window is not None:
                at = torch.arange(start, length, device=q.device)
                outside = self.position[lo:hi, None] - at[None, :] >= layer.window
                scores = scores.masked_fill(outside[:, None, None, :], -torch.inf)
            weights = torch.cat([scores, own[lo:hi]], -1).softmax(-1).to(q.dtype)
            far, near = weights.split([length - start, own.shape[-1]], -1)
            out[lo:hi] = torch.einsum("nkgp,pkd->nkgd", far, v) + torch.einsum("nkgl,nlkd->nkgd", near, own_v[lo:hi])
        return out.reshape(n, heads * d)
