"""A checkpoint in, one canonical folder out: model.safetensors, config.json, tokenizer.json, meta.json.

Tensors carry engine/stack.py's names (embed, final_norm, layers.0.qkv, ...) and keep the dtype of their source, so
that conversion loses nothing; norm weights become float32 factors. The file's own metadata carry the sha256 of
config.json: its digest stands for the whole model but the tokenizer.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from spinf_stream.engine import fp8, safefile
from spinf_stream.engine.checkpoint import Checkpoint
from spinf_stream.engine.models import ModelError, Piece, Unsupported, describe, norm_offset, pieces
from spinf_stream.engine.tokenizer import Encoder

FORMAT = 1  # of the converted folder; another number makes every folder convert again
Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in all
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def convert(source: Checkpoint, name: str, origin: str, folder: Path, progress: Progress) -> dict[str, Any]:
    """Write the four files into `folder` (empty, private to us) and return meta.json's content.

    Raises Unsupported, ModelError (a tensor missing, of the wrong shape, or unknown), OSError.
    """
    spec = describe(source.config)
    try:
        Encoder(source.tokenizer, spec.bos, spec.vocab)
    except ValueError as e:  # broken, or of another model
        raise ModelError(f"tokenizer.json: {e}") from None
    config = json.dumps(source.config, indent=1, sort_keys=True).encode()
    (folder / "config.json").write_bytes(config)
    (folder / "tokenizer.json").write_bytes(source.tokenizer)

    entries = _plan(source, pieces(spec), 0.0 if source.norms_are_factors else norm_offset(spec))
    total, done = sum(e.size for e in entries), 0

    def written(size: int) -> None:
        nonlocal done
        done += size
        progress("converting weights", done, total)

    labels = {"format": f"spinf-stream/{FORMAT}", "config_sha256": hashlib.sha256(config).hexdigest()}
    digest = safefile.write(folder / "model.safetensors", entries, labels, written)
    files: dict[str, dict[str, Any]] = {}
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        path = folder / file
        files[file] = {"size": path.stat().st_size, "sha256": digest if path.suffix != ".json" else safefile.sha256(path)}
    files["model.safetensors"]["sample"] = safefile.sample(folder / "model.safetensors")  # for the quick look at start
    meta = {
        "format": FORMAT,
        "name": name,
        "origin": origin,
        "family": spec.family,
        "parameters": sum(e.size // e.dtype.itemsize for e in entries),
        "stored": sorted({str(e.dtype).removeprefix("torch.") for e in entries if len(e.shape) == 2}),
        "files": files,
        "made_with": {p: importlib.metadata.version(p) for p in ("torch", "safetensors", "tokenizers")},
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), "utf-8")
    return meta


def _plan(source: Checkpoint, wanted: list[Piece], offset: float) -> list[safefile.Entry]:
    """What to write, checked against the checkpoint's headers before anything is read."""
    quantised = fp8.is_static_fp8(source.config)
    left = source.names()
    entries: list[safefile.Entry] = []
    scales: list[safefile.Entry] = []
    for piece in wanted:
        dtypes = set()
        for part, rows in zip(piece.parts, piece.rows):
            if part not in left:
                raise ModelError(f"the checkpoint has no tensor {part}")
            left.discard(part)
            shape, dtype = source.layout(part)
            expected = (rows,) if piece.columns is None else (rows, piece.columns)
            if shape != expected:
                raise ModelError(f"tensor {part} has shape {list(shape)}, config.json makes it {list(expected)}")
            dtypes.add(dtype)
        if len(dtypes) > 1:
            raise ModelError(f"tensors {', '.join(piece.parts)} differ in dtype: {sorted(map(str, dtypes))}")
        dtype = dtypes.pop()
        if piece.kind == "linear" and dtype is torch.float8_e4m3fn and quantised:
            scales += _scales(source, piece, left)
        elif dtype not in _FLOATS:
            raise Unsupported(f"tensor {piece.parts[0]} is stored as {dtype}, only float32, bfloat16 and float16 are read here")
        if piece.kind in ("norm", "scalar"):
            dtype = torch.float32
        entries.append(safefile.Entry(piece.name, dtype, piece.shape, partial(_make, source, piece, offset)))
    if left:
        shown = ", ".join(sorted(left)[:3])
        raise Unsupported(f"the checkpoint has {len(left)} tensors that this engine does not compute with: {shown} ...")
    return entries + scales


def _make(source: Checkpoint, piece: Piece, offset: float) -> torch.Tensor:
    if piece.kind == "norm":
        return offset + source.tensor(piece.parts[0]).to(torch.float32)
    if piece.kind == "scalar":
        return source.tensor(piece.parts[0]).to(torch.float32)
    parts = [source.tensor(p) for p in piece.parts]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([p.view(torch.uint8) for p in parts]).view(parts[0].dtype)  # bytes: cat knows no fp8


def _scales(source: Checkpoint, piece: Piece, left: set[str]) -> list[safefile.Entry]:
    values: dict[str, list[float]] = {"weight_scale": [], "input_scale": []}
    for part in piece.parts:
        for kind, found in values.items():
            name = part.removesuffix("weight") + kind
            if name not in left:
                raise ModelError(f"the checkpoint has fp8 {part} without {name}")
            left.discard(name)
            scale = source.tensor(name).to(torch.float32)
            if scale.numel() != 1 or not torch.isfinite(scale).all() or scale.item() <= 0:
                raise ModelError(f"tensor {name} must be one positive number")
            found.append(scale.item())
    weight = torch.tensor(values["weight_scale"])
    inputs = torch.tensor([max(values["input_scale"])])
    return [
        safefile.Entry(piece.name + ".weight_scale", torch.float32, tuple(weight.shape), lambda: weight),
        safefile.Entry(piece.name + ".input_scale", torch.float32, (1,), lambda: inputs),
    ]
