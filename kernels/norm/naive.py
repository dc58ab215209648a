"""RMS norms between the linears, with what surrounds them: embedding, residual sum, layer scalar, quantised output."""

from __future__ import annotations

import torch

from spinf_stream.kernels.quantise.naive import write


def rms(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """x * (mean(x^2) + eps)^-0.5 * weight over the last axis, in float32."""
    x = x.float()
    x = x * (x.square().mean(-1, keepdim=True) + eps) ** -0.5
    return x if weight is None else x * weight.float()


def embed_norm(
    token: torch.Tensor, embed: torch.Tensor, embed_scale: float, weight: torch.Tensor, eps: float,
    x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, mode: int, inv_scale: float,
) -> None:  # fmt: skip
    """x[i] = embed[token[i]] * embed_scale; out = quantised rms(x, weight). token [n], x and out [n, hidden], scale [n]."""
    x.copy_(embed[token.long()].float() * embed_scale)
    write(rms(x, weight, eps), out, scale, mode, inv_scale)


def residual_norm(
    x: torch.Tensor, y: torch.Tensor, post: torch.Tensor, scalar: float, weight: torch.Tensor, eps: float,
    out: torch.Tensor, scale: torch.Tensor, mode: int, inv_scale: float,
) -> None:  # fmt: skip
    """x = (x + rms(y, post)) * scalar, in place; out = quantised rms(x, weight). Rows [n, hidden]; the norm sees x as stored."""
    x.copy_((x.float() + rms(y, post, eps)) * scalar)
    write(rms(x, weight, eps), out, scale, mode, inv_scale)
