"""From the raw projections to what attention reads: per-head norms, rotary embedding, scales.

Queries stay in row order. Keys and values go to *slots*: an article's slots are its trunk, then each leaf's whole path
from a 16-aligned start, so attention reads key blocks that are contiguous, never straddle articles, and look the same
whichever siblings a question has. A slot whose row is -1 is padding and becomes zeros.
"""

from __future__ import annotations

import torch

from spinf_stream.kernels.norm.naive import rms

LOG2E = 1.4426950408889634


def queries(
    raw: torch.Tensor, scale: torch.Tensor | None, factor: float, position: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    weight: torch.Tensor, eps: float, attention_scale: float, out: torch.Tensor,
) -> None:  # fmt: skip
    """out[i] = rope(rms(raw[i] * scale[i] * factor, weight), position[i]) * attention_scale * log2(e), a head at a time.

    raw [n, heads * d] (rows may be strided), scale [n] or None, position [n], cos and sin [positions, d / 2], weight [d].
    factor: the weight scale that the matrix product left out. log2(e): the attention works in powers of two.
    """
    d = weight.shape[0]
    x = raw.float() * factor if scale is None else raw.float() * (scale * factor)[:, None]
    x = rope(rms(x.unflatten(1, (-1, d)), weight, eps), cos[position.long()], sin[position.long()])
    out.copy_((x * (attention_scale * LOG2E)).flatten(1))


def keys_values(
    raw: torch.Tensor, scale: torch.Tensor | None, factors: tuple[float, float], position: torch.Tensor, slot_row: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, weight: torch.Tensor, eps: float, v_norm: bool, k_eq_v: bool, kv: torch.Tensor,
) -> None:  # fmt: skip
    """kv[s] = (keys, values) of row slot_row[s]: rope(rms(k, weight)), then v or rms(v).

    raw [n, kv_rows]: k heads, then v heads unless k_eq_v (then v comes from the raw k); scale and factors (of k, of v)
    as in queries. kv [slots, 2 * kv_heads * d].
    """
    d = weight.shape[0]
    row = slot_row.long().clamp(min=0)
    x = (raw.float() if scale is None else raw.float() * scale[:, None])[row].unflatten(1, (-1, d))
    k, v = (x, x) if k_eq_v else x.chunk(2, dim=1)
    k, v = k * factors[0], v * factors[1]
    at = position.long()[row]
    k = rope(rms(k, weight, eps), cos[at], sin[at])
    v = rms(v, None, eps) if v_norm else v
    both = torch.cat([k.flatten(1), v.flatten(1)], dim=1)
    kv.copy_(torch.where(slot_row[:, None] >= 0, both, 0.0))


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate-half: x [n, heads, d], cos and sin [n, d / 2]."""
    lo, hi = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([lo * cos - hi * sin, hi * cos + lo * sin], dim=-1)
