"""The gated half of an MLP in one go: gelu_tanh(x W_gate^T) * (x W_up^T), quantised."""

from __future__ import annotations

import torch

from spinf_stream.kernels.geglu import naive as geglu


def interleave(gate_up: torch.Tensor) -> None:
    """Rows gate 0 .. I-1, up 0 .. I-1 become gate 0, up 0, gate 1, ..., in place: a tile then holds both of a column."""
    gate, up = gate_up.clone().chunk(2)
    pairs = gate_up.view(-1, 2, gate_up.shape[1])
    pairs[:, 0].copy_(gate)
    pairs[:, 1].copy_(up)


def gated(
    x: torch.Tensor, scale: torch.Tensor | None, pairs: torch.Tensor, factors: tuple[float, float], out: torch.Tensor, inv_scale: float
) -> None:
    """x [n, hidden] e4m3, pairs [2 I, hidden] e4m3 as interleave leaves them; scale, factors, out, inv_scale as in geglu."""
    gate_up = torch.cat([x.float() @ pairs[0::2].float().t(), x.float() @ pairs[1::2].float().t()], dim=1)
    geglu.geglu(gate_up, scale, factors, out, inv_scale)
