"""Inverse frequencies of the rotary embeddings, in float32 step by step as transformers' modeling_rope_utils does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spinf_stream.engine.models.errors import Unsupported


def table(params: Mapping[str, Any], head_dim: int, theta: float) -> tuple[float, ...]:
    """[head_dim / 2] inverse frequencies; 0 where a pair of dimensions does not rotate.

    params: one entry of `rope_parameters` (rope_type default, linear or proportional); `theta` stands for an absent
    rope_theta. Raises Unsupported for another type.
    """
    if "type" in params and "rope_type" not in params:  # transformers reads this older key differently by family
        raise Unsupported("config.json: a rotary table has `type`; rename it to rope_type")
    kind = params.get("rope_type", "default")
    base = params.get("rope_theta", theta)
    if kind not in ("default", "linear", "proportional"):
        raise Unsupported(f"config.json: rope_type {kind!r} is not supported, only default, linear and proportional")
    part = params.get("partial_rotary_factor", 1.0)
    if part != 1.0 and kind != "proportional":
        raise Unsupported(f"config.json: partial_rotary_factor {part!r} is not supported with rope_type {kind!r}")
    rotating = int(part * head_dim // 2)
    angles = torch.arange(0, 2 * rotating, 2, dtype=torch.float32) / head_dim
    frequencies = torch.zeros(head_dim // 2)
    frequencies[:rotating] = 1.0 / base**angles
    if kind != "default":
        frequencies /= params.get("factor", 1.0)
    return tuple(frequencies.tolist())
