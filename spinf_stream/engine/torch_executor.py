"""Runs any Stack in plain torch: the engine of a CPU, and the plain path of a GPU.

Attention never sees a pass-wide mask. A tree's trunk is ordinary causal attention; its branches attend the whole trunk
and their own ancestors, in bundles of neighbouring subtrees so that little is computed only to be masked.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from spinf_stream.engine.executor import Fetched
from spinf_stream.engine.forest import Chunk, Layout
from spinf_stream.engine.grow import Grown, Step
from spinf_stream.engine.heads import Head
from spinf_stream.engine.seam import EngineFatal, OutOfMemory
from spinf_stream.engine.stack import LayerSpec, LayerWeights, Stack
from spinf_stream.engine.torch_grow import TorchGrower, Trunk
from spinf_stream.questions.plan import F64

T = TypeVar("T")
BUNDLE = 128  # branch rows that share one attention call


class Bundle(NamedTuple):
    """Whole root subtrees, neighbours in the chunk."""

    lo: int
    hi: int
    ancestor: torch.Tensor  # [n, n] bool: key node is the query node or above it
    depth: torch.Tensor  # [n]


class TorchExecutor:
    bit_exact = False

    def __init__(self, stack: Stack, starts_alnum: NDArray[np.bool_], threads: int | None = None) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.stack = stack
        self.device = stack.embed.device
        self.default_budget = 32_768 if self.device.type == "cuda" else 2_048
        self.head = Head(stack.embed, stack.spec.softcap, starts_alnum)
        self.ropes = [torch.tensor(r, dtype=torch.float32, device=self.device) for r in stack.spec.ropes]
        self.scale = torch.tensor(stack.spec.embed_scale, dtype=stack.embed.dtype, device=self.device)
        self.bundles: dict[Chunk, list[Bundle]] = {}
        self.past: list[tuple[torch.Tensor, torch.Tensor]] = []  # trunk keys and values of the pass that asked to keep them
        self.trunks: list[Trunk] = []  # of Layout.kept, a layer's pair each
        self.grower = TorchGrower(self)
        self.numerics: dict[str, object] = {
            "executor": "torch/1",
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads() if self.device.type == "cpu" else 0,
            "dtype": str(stack.embed.dtype),
        }

    def launch(self, layout: Layout) -> Layout:
        return layout

    def fetch(self, handle: Layout) -> Fetched:
        began = time.perf_counter()
        with torch.inference_mode():
            cand, end = self._guard(lambda: self._read(handle))
        return Fetched(cand, end, time.perf_counter() - began, tuple(self.trunks))

    def grow(self, step: Step) -> Grown:
        with torch.inference_mode():
            return self._guard(lambda: self.grower.grow(step))

    def _read(self, layout: Layout) -> tuple[F64, F64]:
        return self.head.read(self.forward(layout), layout.read_norm, layout.read_end, layout.cand_ptr, layout.cand_token)

    def _guard(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except torch.cuda.OutOfMemoryError as e:
            raise OutOfMemory(str(e)) from None
        except RuntimeError as e:
            if "CUDA error" in str(e):
                raise EngineFatal(str(e)) from None
            if "DefaultCPUAllocator" in str(e):
                raise OutOfMemory("the CPU has not enough memory for this pass") from None
            raise

    def forward(self, layout: Layout) -> torch.Tensor:
        """Hidden rows after the final norm, [r, H], in the order of layout.read_row."""
        spec = self.stack.spec
        token = torch.from_numpy(layout.token.astype(np.int64)).to(self.device)
        position = torch.from_numpy(layout.position.astype(np.float32)).to(self.device)
        reads = torch.from_numpy(layout.read_row).to(self.device)
        turns = [rotation(position, rope, self.stack.embed.dtype) for rope in self.ropes]
        past, kept = self.past, []
        self.trunks = [[] for _ in layout.kept]
        x = self.stack.embed[token] * self.scale
        for i, (layer, w) in enumerate(zip(spec.layers, self.stack.layers)):
            q, k, v = self.qkv(rms(x, w.attn_in, spec.eps), layer, w, turns[layer.rope])
            attended = self.attend(q, k, v, layer, layout, past[i] if layout.past else None)
            if layout.keep:
                stop = int(layout.trunk[0])
                kept.append((k[:stop].clone(), v[:stop].clone()))
            for tree, trunk in zip(layout.kept, self.trunks):
                own = slice(int(layout.row[tree]), int(layout.row[tree] + layout.trunk[tree]))
                trunk.append((k[own].clone(), v[own].clone()))
            if i == len(spec.layers) - 1:  # nothing reads the other rows
                attended, x = attended[reads], x[reads]
            x = self.after(x, attended, w)
        if layout.keep:
            self.past = kept
        elif not layout.past:
            self.past = []
        return rms(x, self.stack.final_norm, spec.eps)

    def after(self, x: torch.Tensor, attended: torch.Tensor, w: LayerWeights) -> torch.Tensor:
        """What a layer does with a row once it has attended."""
        eps = self.stack.spec.eps
        x = x + rms(F.linear(attended, w.o), w.attn_out, eps)
        gate, up = F.linear(rms(x, w.mlp_in, eps), w.gate_up).chunk(2, -1)
        x = x + rms(F.linear(F.gelu(gate, approximate="tanh") * up, w.down), w.mlp_out, eps)
        return x * w.layer_scalar if w.layer_scalar != 1.0 else x

    def qkv(self, x: torch.Tensor, layer: LayerSpec, w: LayerWeights, turn: Rotation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [T, H] -> q [T, heads, d], k and v [T, kv_heads, d]."""
        eps, d = self.stack.spec.eps, layer.head_dim
        q, *kv = F.linear(x, w.qkv).split([layer.heads * d] + [layer.kv_heads * d] * (1 if layer.k_eq_v else 2), -1)
        k, v = kv[0].view(-1, layer.kv_heads, d), kv[-1].view(-1, layer.kv_heads, d)
        if layer.v_norm or layer.k_eq_v:
            v = rms(v, None, eps)
        return turn(rms(q.view(-1, layer.heads, d), w.q_norm, eps)), turn(rms(k, w.k_norm, eps)), v

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: LayerSpec, layout: Layout,
               past: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:  # fmt: skip
        """[T, heads, d] -> [T, heads * d]."""
        out = torch.empty_like(q)
        for i, chunk in enumerate(layout.chunk):
            lo, trunk = int(layout.row[i]), int(layout.trunk[i])
            if past is None:
                mid = lo + trunk
                out[lo:mid] = attention(q[lo:mid], k[lo:mid], v[lo:mid], trunk_mask(trunk, layer.window, q.device), layer.scale)
                tk, tv = k[lo:mid], v[lo:mid]
            else:
                mid, (tk, tv) = lo, past
            for b in self.bundled(chunk):
                own = slice(mid + b.lo, mid + b.hi)
                mask = branch_mask(b, trunk, layer.window)
                out[own] = attention(q[own], torch.cat([tk, k[own]]), torch.cat([tv, v[own]]), mask, layer.scale)
        return out.flatten(1)

    def bundled(self, chunk: Chunk) -> list[Bundle]:
        if chunk not in self.bundles:
            if len(self.bundles) > 64:
                self.bundles.clear()
            self.bundles[chunk] = bundles(chunk, self.device)
        return self.bundles[chunk]


def bundles(chunk: Chunk, device: torch.device) -> list[Bundle]:
    """Cut a chunk before root nodes, each bundle about BUNDLE rows (a larger subtree stays whole)."""
    roots = [int(r) for r in np.flatnonzero(chunk.parent == -1)] + [chunk.nodes]
    cuts = [0]
    for here, there in itertools.pairwise(roots[1:]):
        if there - cuts[-1] > BUNDLE:
            cuts.append(here)
    if chunk.nodes:
        cuts.append(chunk.nodes)
    out = []
    for lo, hi in itertools.pairwise(cuts):
        at = torch.arange(lo, hi, device=device)
        end = torch.from_numpy(chunk.end[lo:hi].astype(np.int64)).to(device)
        ancestor = (at[None, :] <= at[:, None]) & (at[:, None] < end[None, :])
        out.append(Bundle(lo, hi, ancestor, torch.from_numpy(chunk.depth[lo:hi].astype(np.int64)).to(device)))
    return out


def trunk_mask(n: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """None = plain causal."""
    if window is None or n <= window:
        return None
    at = torch.arange(n, device=device)
    gap = at[:, None] - at[None, :]
    return (gap >= 0) & (gap < window)


def branch_mask(b: Bundle, trunk: int, window: int | None) -> torch.Tensor:
    """[n, trunk + n] bool: which keys a branch row sees. The window counts positions, not rows."""
    n = b.hi - b.lo
    seen = torch.ones(n, trunk, dtype=torch.bool, device=b.depth.device)
    own = b.ancestor
    if window is not None and trunk + int(b.depth.max()) >= window:
        at = torch.arange(trunk, device=b.depth.device)
        seen = (trunk + b.depth)[:, None] - at[None, :] < window
        own = own & (b.depth[:, None] - b.depth[None, :] < window)
    return torch.cat([seen, own], 1)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    """q [n, heads, d], k and v [m, kv_heads, d], mask [n, m] or None for causal (n = m) -> [n, heads, d]."""
    if len(q) == 0:
        return q
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None],
        attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True,
    )  # fmt: skip
    return out[0].transpose(0, 1)


class Rotation(NamedTuple):
    cos: torch.Tensor  # [T, 1, d]
    sin: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, heads, d], rotate-half."""
        low, high = x.chunk(2, -1)
        return x * self.cos + torch.cat([-high, low], -1) * self.sin


def rotation(position: torch.Tensor, inverse: torch.Tensor, dtype: torch.dtype) -> Rotation:
    angle = position[:, None] * inverse[None, :]
    angle = torch.cat([angle, angle], -1)[:, None, :]
    return Rotation(angle.cos().to(dtype), angle.sin().to(dtype))


def rms(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    f = x.float()
    f = f * torch.pow(f.pow(2).mean(-1, keepdim=True) + eps, -0.5)
    return (f if weight is None else f * weight).to(x.dtype)
