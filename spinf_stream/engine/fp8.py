"""Static fp8 checkpoints: compressed-tensors "float-quantized", per-tensor scales for weights and inputs.

    w8 = e4m3(clamp(w / weight_scale, +-448)),  weight_scale = max|w| / 448 (at least 1e-12 / 448)
    x8 = e4m3(clamp(x / input_scale, +-448)),   y = (x8 w8^T) * input_scale * weight_scale

One fused projection (qkv, gate_up) has several parts. In a foreign checkpoint their weight scales differ and stay as
they are, one a part: nothing is quantised twice. Their input scales belong to the same input; were they different, the
larger would be used. The checkpoints written here give the parts one scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spinf_stream.engine.models import Unsupported

E4M3_MAX = 448.0


def is_static_fp8(config: Mapping[str, Any]) -> bool:
    """Whether a config.json says static per-tensor fp8. Raises Unsupported for any other quantisation."""
    table = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    if table is None:
        return False
    where = "config.json: quantization_config"
    if table.get("quant_method") != "compressed-tensors" or table.get("format") != "float-quantized":
        raise Unsupported(
            f"{where}: {table.get('quant_method')!r} {table.get('format')!r} is not supported, only compressed-tensors "
            "float-quantized (spinf-stream model quantize writes it)"
        )
    groups = list((table.get("config_groups") or {}).values())
    for group in groups:
        for part, what in ((group.get("weights"), "weights"), (group.get("input_activations"), "input_activations")):
            wanted = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
            if not isinstance(part, Mapping) or any(part.get(k, v) != v for k, v in wanted.items()):
                raise Unsupported(f"{where}: {what} must be static symmetric 8-bit floats with one scale a tensor")
    if not groups:
        raise Unsupported(f"{where}: no config_groups")
    if table.get("kv_cache_scheme") is not None:
        raise Unsupported(f"{where}: kv_cache_scheme is not supported, keys and values are never quantised here")
    return True


def dequantise(weight: torch.Tensor, scales: Sequence[float], rows: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """[out, in] in `dtype` from e4m3; scales and rows of each part."""
    return (weight.to(torch.float32) * row_scale(scales, rows).to(weight.device)[:, None]).to(dtype)


def row_scale(scales: Sequence[float], rows: Sequence[int]) -> torch.Tensor:
    """[sum of rows] float32: each row's weight scale."""
    return torch.repeat_interleave(torch.tensor(scales, dtype=torch.float32), torch.tensor(rows))


def weight_scale(weight: torch.Tensor) -> float:
    """Of a whole fused projection: e4m3 is a floating format, a scale shared by the parts costs it next to nothing."""
    return float(weight.abs().amax().to(torch.float32).clamp_min(1e-12)) / E4M3_MAX


def input_scale(amax: float) -> float:
    """A power of two with headroom of two over the largest input seen in calibration."""
    return 2.0 ** math.ceil(math.log2(2.0 * max(amax, 1e-12) / E4M3_MAX))


def quantise(weight: torch.Tensor, scale: float) -> torch.Tensor:
    """e4m3, rounded to nearest even."""
    return (weight.to(torch.float32) / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def quantization_config() -> dict[str, Any]:
    """What a config.json says about such a checkpoint."""
    part = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": part, "input_activations": part}},
        "ignore": ["lm_head"],
    }
