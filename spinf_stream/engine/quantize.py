"""Make a static fp8 checkpoint: weights in e4m3, one input scale a projection from a calibration text.

The inputs are those of the unquantised model in float32 (engine/reference.py), so calibrating needs no other engine.
The result is a folder in the Hub's layout (compressed-tensors float-quantized) that vLLM and this engine read; its
embedding stays bfloat16, its norm weights and scalars as they were. q, k, v share a weight scale, so do gate and up.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from spinf_stream.engine import fp8, safefile
from spinf_stream.engine.cache import Cached
from spinf_stream.engine.checkpoint import read_json
from spinf_stream.engine.models import ModelError, Piece, describe, norm_offset, pieces
from spinf_stream.engine.reference import forward
from spinf_stream.engine.stack import Stack

Amax = list[dict[str, float]]  # by layer: projection -> largest absolute input
PREFIX = "model."


def calibrate(stack: Stack, texts: Iterable[Sequence[int]], done: Callable[[int], None]) -> Amax:
    """Largest absolute input of each projection over sequences of ids (BOS included). `done` gets each one's tokens.

    Raises ModelError when there is no text, or an input is not finite.
    """
    amax: Amax = [{} for _ in stack.layers]

    def see(layer: int, name: str, x: torch.Tensor) -> None:
        amax[layer][name] = max(amax[layer].get(name, 0.0), float(x.abs().max()))

    for ids in texts:
        forward(stack, ids, see)
        done(len(ids))
    if not amax[0]:
        raise ModelError("calibration needs at least one article")
    if not all(torch.isfinite(torch.tensor(list(layer.values()))).all() for layer in amax):
        raise ModelError("calibration met an input that is not finite")
    return amax


def check(entry: Cached, out: Path) -> None:
    """Before anything slow. Raises ModelError when the model is fp8 already or `out` holds something."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"{out} is not an empty folder")
    if "float8_e4m3fn" in entry.meta["stored"]:
        raise ModelError(f"model {entry.meta['name']} is fp8 already")


def write(entry: Cached, amax: Amax, out: Path, notes: dict[str, Any]) -> str:
    """Quantise the converted model `entry` into the folder `out` (new, or empty); returns the sha256 of its weights.

    `notes` goes into calibration.json beside what was measured. Raises ModelError, OSError.
    """
    check(entry, out)
    config = read_json(entry.folder / "config.json")
    spec = describe(config)
    text = {**config, **config.get("text_config", {})}  # the text model alone is written
    for key in ("text_config", "vision_config", "audio_config", "architectures"):
        text.pop(key, None)
    text |= {
        "model_type": text["model_type"] if text["model_type"].endswith("_text") else text["model_type"] + "_text",
        "bos_token_id": spec.bos[0],
        "eos_token_id": list(spec.eos),
        "quantization_config": fp8.quantization_config(),
    }
    work = out.parent / f".{out.name}.{os.getpid()}"
    work.mkdir(parents=True)
    try:
        with safe_open(str(entry.folder / "model.safetensors"), "pt") as f:
            entries = [e for piece in pieces(spec) for e in _entries(f, piece, norm_offset(spec), amax)]
            digest = safefile.write(work / "model.safetensors", entries, {"format": "pt"}, lambda size: None)
        (work / "config.json").write_text(json.dumps(text, indent=1), "utf-8")
        shutil.copyfile(entry.folder / "tokenizer.json", work / "tokenizer.json")
        report = {**notes, "source": entry.meta["name"], "source_sha256": entry.digest, "largest_inputs": amax}
        (work / "calibration.json").write_text(json.dumps(report, indent=1), "utf-8")
        if out.exists():
            out.rmdir()
        os.rename(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return digest


def _entries(f: Any, piece: Piece, offset: float, amax: Amax) -> list[safefile.Entry]:
    """The checkpoint tensors of one piece, under the Hub's names."""
    where = f.get_slice(piece.name)
    bounds = [sum(piece.rows[:i]) for i in range(len(piece.rows) + 1)]
    if piece.kind != "linear":
        dtype = torch.bfloat16 if piece.kind == "embed" else torch.float32

        def plain() -> torch.Tensor:
            tensor = f.get_tensor(piece.name)
            return (tensor - offset if piece.kind == "norm" else tensor).to(dtype)

        return [safefile.Entry(PREFIX + piece.parts[0], dtype, piece.shape, plain)]
    _, layer, name = piece.name.split(".")
    scale = fp8.weight_scale(f.get_tensor(piece.name))
    scales = {"weight_scale": scale, "input_scale": fp8.input_scale(amax[int(layer)][name])}
    out = []
    for part, low, high in zip(piece.parts, bounds, bounds[1:]):
        make = partial(_quantised, where, low, high, scale)
        out.append(safefile.Entry(PREFIX + part, torch.float8_e4m3fn, (high - low, piece.columns or 0), make))
        for kind, value in scales.items():
            stored = PREFIX + part.removesuffix("weight") + kind
            out.append(safefile.Entry(stored, torch.float32, (1,), partial(torch.full, (1,), value)))
    return out


def _quantised(where: Any, low: int, high: int, scale: float) -> torch.Tensor:
    return fp8.quantise(where[low:high], scale)
