"""The truth: one sequence, one plain forward, float32, no packing, no cache. Slow, and obvious on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spinf_stream.engine.stack import LayerSpec, LayerWeights, Stack


def logprobs(stack: Stack, ids: Sequence[int], at: Sequence[int] | None = None) -> torch.Tensor:
    """[len(at), vocab] float64 log-probabilities of the token after each position in `at` (all of them when None).

    ids: the whole sequence, BOS included. Weights are taken as float32 (fp8 ones times their scale); softcap applied.
    """
    hidden = forward(stack, ids)
    rows = hidden if at is None else hidden[list(at)]
    logits = rms(rows, stack.final_norm, stack.spec.eps) @ stack.embed.float().T
    if stack.spec.softcap is not None:
        logits = stack.spec.softcap * torch.tanh(logits / stack.spec.softcap)
    return torch.log_softmax(logits.double(), dim=-1)


See = Callable[[int, str, torch.Tensor], None]  # layer, projection (qkv, o, gate_up, down), its input [T, in]


@torch.no_grad()
def forward(stack: Stack, ids: Sequence[int], see: See = lambda layer, name, x: None) -> torch.Tensor:
    """[T, hidden] float32 after the last layer, before the final norm. `see` is shown what each projection reads."""
    spec = stack.spec
    x = stack.embed[list(ids)].float() * spec.embed_scale
    for i, (layer, w) in enumerate(zip(spec.layers, stack.layers)):

        def project(name: str, rows: torch.Tensor, i: int = i, w: LayerWeights = w) -> torch.Tensor:
            see(i, name, rows)
            return rows @ linear(w, name).T

        inverse = torch.tensor(spec.ropes[layer.rope], dtype=torch.float32, device=x.device)
        mixed = attention(layer, w, project("qkv", rms(x, w.attn_in, spec.eps)), inverse, spec.eps)
        x = x + rms(project("o", mixed), w.attn_out, spec.eps)
        gate, up = project("gate_up", rms(x, w.mlp_in, spec.eps)).chunk(2, dim=-1)
        mlp = project("down", torch.nn.functional.gelu(gate, approximate="tanh") * up)
        x = (x + rms(mlp, w.mlp_out, spec.eps)) * w.layer_scalar
    return x


def attention(layer: LayerSpec, w: LayerWeights, qkv: torch.Tensor, inverse: torch.Tensor, eps: float) -> torch.Tensor:
    """[T, heads * head_dim] from the fused projection qkv [T, qkv_rows]."""
    length, d = len(qkv), layer.head_dim
    heads = qkv.view(length, -1, d).transpose(0, 1)  # [q + k (+ v) heads, T, d]
    q, k = heads[: layer.heads], heads[layer.heads : layer.heads + layer.kv_heads]
    v = k if layer.k_eq_v else heads[layer.heads + layer.kv_heads :]
    if layer.v_norm or layer.k_eq_v:
        v = rms(v, None, eps)
    position = torch.arange(length, device=qkv.device)
    q = rotate(rms(q, w.q_norm, eps), position, inverse)
    k = rotate(rms(k, w.k_norm, eps), position, inverse)
    group = layer.heads // layer.kv_heads
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * layer.scale
    distance = position[:, None] - position[None, :]
    seen = distance >= 0
    if layer.window is not None:
        seen &= distance < layer.window
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    mixed = weights @ v.repeat_interleave(group, 0)
    return mixed.transpose(0, 1).reshape(length, -1)


def rms(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    normed = x * (x.pow(2).mean(-1, keepdim=True) + eps).pow(-0.5)
    return normed if weight is None else normed * weight


def rotate(x: torch.Tensor, position: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Rotate-half: dimension i pairs with i + d/2. x [heads, T, d], position [T], inverse frequencies [d/2]."""
    angle = position.float()[:, None] * inverse
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def linear(w: LayerWeights, name: str) -> torch.Tensor:
    """A weight as float32."""
    weight: torch.Tensor = getattr(w, name).float()
    if w.weight_scale is not None:
        weight = weight * w.weight_scale[name][:, None]
    return weight
