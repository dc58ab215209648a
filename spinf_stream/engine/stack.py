"""A model, described: what a family file makes of a checkpoint and what an executor runs.

A family (models/gemma3.py, models/gemma4.py) maps a checkpoint's config and tensor names onto this; an executor
(torch_stack.py on any device, gpu/ with fused fp8 kernels, reference.py in the plainest torch) runs it without knowing
the family. Conventions, all of them the numbers `transformers` uses:

    x      = embed[token] * embed_scale                      (scale rounded to the weights' dtype first)
    h      = x + rms(attn(rms(x, attn_in)), attn_out)
    y      = (h + rms(mlp(rms(h, mlp_in)), mlp_out)) * layer_scalar
    attn   : q = rope(rms(q, q_norm)), k = rope(rms(k, k_norm)), v = rms(v, 1) where v_norm;
             where k_eq_v: v = rms(raw k, 1). softmax(q k^T * scale) v, causal, pos_q - pos_k < window
    mlp    : down(gelu_tanh(gate x) * up x)
    logits = cap * tanh(rms(y, final_norm) embed^T / cap)
    rms(x, w) = x * (mean(x^2) + eps)^-0.5 * w               in float32; w is the factor itself (Gemma 3's 1 + w is folded)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerSpec:
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None  # sliding window in positions (itself included), None = global
    scale: float  # factor on q k^T
    rope: int  # index into StackSpec.ropes
    k_eq_v: bool = False  # no v projection: v comes from the raw k projection
    v_norm: bool = False

    @property
    def qkv_rows(self) -> int:
        """Rows of the fused projection: q heads, k heads, then v heads unless k_eq_v."""
        return (self.heads + self.kv_heads * (1 if self.k_eq_v else 2)) * self.head_dim


@dataclass(frozen=True, slots=True)
class StackSpec:
    family: str
    hidden: int
    intermediate: int
    vocab: int
    eps: float
    embed_scale: float
    softcap: float | None
    layers: tuple[LayerSpec, ...]
    ropes: tuple[tuple[float, ...], ...]  # inverse frequencies [head_dim / 2] of each table, rotate-half; 0 = does not rotate
    bos: tuple[int, ...]
    eos: tuple[int, ...]


@dataclass(slots=True)
class LayerWeights:
    """Linear weights are [out, in], in the compute dtype (or e4m3 with scales); norm weights are float32."""

    qkv: torch.Tensor  # [qkv_rows, hidden]: q, k, (v)
    o: torch.Tensor  # [hidden, heads * head_dim]
    gate_up: torch.Tensor  # [2 * intermediate, hidden]: gate rows, then up rows
    down: torch.Tensor  # [hidden, intermediate]
    attn_in: torch.Tensor  # [hidden]
    attn_out: torch.Tensor  # [hidden]
    mlp_in: torch.Tensor  # [hidden]
    mlp_out: torch.Tensor  # [hidden]
    q_norm: torch.Tensor  # [head_dim]
    k_norm: torch.Tensor  # [head_dim]
    layer_scalar: float = 1.0
    interleaved: bool = False  # gate_up rows alternate (gate 0, up 0, gate 1, ...): what gpu/ makes of them, in place
    # fp8 only, of qkv, o, gate_up, down. Weight scales: float32 [1], or [rows] where the parts of a fused projection
    # have different scales (quantising them again to a common one would cost accuracy). Input scales are static.
    weight_scale: dict[str, torch.Tensor] | None = None
    input_scale: dict[str, float] | None = None


@dataclass(slots=True)
class Stack:
    """A loaded model. `digest` is the sha256 (hex) of the converted weights file, part of the fingerprint."""

    spec: StackSpec
    embed: torch.Tensor  # [vocab, hidden], tied with the head
    final_norm: torch.Tensor  # [hidden] float32
    layers: list[LayerWeights]
    digest: str
    name: str  # what `model` in a scores record says
    scheme: str  # "fp32", "bf16", "fp8-static"
