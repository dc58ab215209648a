"""Load a model by name: "demo", a local folder, a .gguf file, or hub-id@revision.

    name --sources.find--> Source --cache.fetch--> Cached --load--> Stack, Encoder

The converted file is mapped, not read: on a CPU in the stored dtype the weights cost nothing until they are used.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from spinf_stream.engine import fp8
from spinf_stream.engine.cache import Cached, cached, fetch, verify
from spinf_stream.engine.checkpoint import read_json
from spinf_stream.engine.models import ModelAway, ModelError, Piece, Unsupported, describe, pieces
from spinf_stream.engine.stack import LayerWeights, Stack
from spinf_stream.engine.tokenizer import Encoder

__all__ = ["Cached", "ModelAway", "ModelError", "Unsupported", "cached", "fetch", "load", "verify"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp8": torch.bfloat16}
_SCHEMES = {"float32": "fp32", "bfloat16": "bf16", "fp8": "fp8-static"}


def load(
    name: str, dtype: str = "auto", device: str | torch.device = "auto", cache: Path | None = None
) -> tuple[Stack, Encoder]:
    """A model ready to run, and its tokenizer; converted first when it is not in the cache yet.

    dtype: float32, bfloat16, fp8 (a static fp8 checkpoint, natively), or auto: float32 on a CPU; on a GPU fp8 where
    checkpoint and card have it, else bfloat16. An fp8 checkpoint loads dequantised as float32 or bfloat16.
    cache: the settings' cache_dir when None. Raises ModelError (also Unsupported, ModelAway).
    """
    entry = fetch(name, cache)
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    native = "float8_e4m3fn" in entry.meta["stored"]
    if dtype == "auto":
        dtype = "float32" if device.type == "cpu" else "bfloat16"
        if native and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
            dtype = "fp8"
    if dtype not in _DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of auto, {', '.join(_DTYPES)}")
    if dtype == "fp8" and not native:
        raise ModelError(f"model {name!r} has no fp8 weights; make them with: spinf-stream model quantize")
    stack = _stack(entry, dtype, device)
    return stack, Encoder.from_file(entry.folder / "tokenizer.json", stack.spec.bos, stack.spec.vocab)


def _stack(entry: Cached, dtype: str, device: torch.device) -> Stack:
    spec = describe(read_json(entry.folder / "config.json"))
    compute = _DTYPES[dtype]
    spec = replace(spec, embed_scale=_rounded(spec.embed_scale, compute))
    read: dict[str, Any] = {}
    layers: list[dict[str, Any]] = [{} for _ in spec.layers]
    with safe_open(str(entry.folder / "model.safetensors"), "pt", device="cpu") as f:
        present = set(f.keys())
        for piece in pieces(spec):
            tensor = f.get_tensor(piece.name).to(device)
            to: dict[str, Any] = read
            *where, field = piece.name.split(".")
            if where:
                to = layers[int(where[1])]
            if piece.kind == "norm":
                to[field] = tensor
            elif piece.kind == "scalar":
                to[field] = _rounded(tensor.item(), compute)
            elif f"{piece.name}.weight_scale" not in present:
                to[field] = tensor.to(compute)
                if piece.kind == "linear" and dtype == "fp8":
                    raise ModelError(f"{piece.name} is not fp8 in this checkpoint: load it as bfloat16")
            else:
                scales = f.get_tensor(f"{piece.name}.weight_scale").tolist()
                if dtype == "fp8":
                    to[field] = tensor
                    to.setdefault("weight_scale", {})[field] = _weight_scale(scales, piece).to(device)
                    to.setdefault("input_scale", {})[field] = f.get_tensor(f"{piece.name}.input_scale").item()
                else:
                    to[field] = fp8.dequantise(tensor, scales, piece.rows, compute)
    return Stack(
        spec=spec,
        embed=read["embed"],
        final_norm=read["final_norm"],
        layers=[LayerWeights(**layer) for layer in layers],
        digest=entry.digest,
        name=str(entry.meta["name"]),
        scheme=_SCHEMES[dtype],
    )


def _weight_scale(scales: list[float], piece: Piece) -> torch.Tensor:
    """[1] where the parts agree, else each row's."""
    return torch.tensor(scales[:1]) if len(set(scales)) == 1 else fp8.row_scale(scales, piece.rows)


def _rounded(value: float, dtype: torch.dtype) -> float:
    """As transformers holds it: a float32 number cast to the weights' dtype (62.0, not 61.97, in bfloat16)."""
    return float(torch.tensor(value, dtype=torch.float32).to(dtype))
