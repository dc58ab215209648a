"""A static fp8 checkpoint of random weights, as `spinf-stream model quantize` writes real ones: for the commands that load a
model by its name (worker, selftest). Its weights are those of shapes.random_stack in kind, not in value.

    python bench/random_checkpoint.py FOLDER --tokenizer TOKENIZER_JSON [--layers 48]

The 12B takes 13 GB, and as much again in the cache when it is loaded.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from spinf_stream.engine import fp8, safefile
from spinf_stream.engine.models import Piece, describe, pieces

E4M3 = torch.float8_e4m3fn
SPREAD = 60.0  # of the stored e4m3 values
INPUT = {"qkv": 0.0625, "o": 0.03125, "gate_up": 0.0625, "down": 0.0625}
NORM = {"final_norm": 4.0, "attn_out": 0.3, "mlp_out": 0.3}  # around; others 1


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--layers", type=int, default=48)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    began = time.monotonic()
    size = write(args.folder, gemma4_12b(args.layers), args.tokenizer, args.device)
    print(f"{size / 1e9:.1f} GB in {time.monotonic() - began:.0f} s")
    return 0


def gemma4_12b(layers: int = 48) -> dict[str, Any]:
    """The config.json of shapes.gemma4_12b."""
    return {
        "model_type": "gemma4_unified_text", "vocab_size": 262_144, "hidden_size": 3840, "intermediate_size": 15_360,
        "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "num_kv_shared_layers": 0, "sliding_window": 1024,
        "layer_types": ["full_attention" if i % 6 == 5 or i == layers - 1 else "sliding_attention" for i in range(layers)],
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "final_logit_softcapping": 30.0, "tie_word_embeddings": True,
        "bos_token_id": 2, "eos_token_id": 1, "max_position_embeddings": 131_072,
    }  # fmt: skip


def write(folder: Path, config: dict[str, Any], tokenizer: Path, device: str) -> int:
    """Into a new folder; bytes of the weights."""
    folder.mkdir(parents=True)
    spec = describe(config)
    gen = torch.Generator(device=device).manual_seed(0)
    entries = [e for piece in pieces(spec) for e in entries_of(piece, gen, device)]
    safefile.write(folder / "model.safetensors", entries, {"format": "pt"}, lambda size: None)
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": fp8.quantization_config()}, indent=1), "utf-8")
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    return sum(e.size for e in entries)


def entries_of(piece: Piece, gen: torch.Generator, device: str) -> list[safefile.Entry]:
    field = piece.name.rpartition(".")[2]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen, device=device)

    if piece.kind == "linear":
        columns = piece.columns or 0
        out = []
        for part, rows in zip(piece.parts, piece.rows):
            stem = "model." + part.removesuffix("weight")
            out.append(safefile.Entry("model." + part, E4M3, (rows, columns), partial(_linear, normal, rows, columns)))
            for kind, value in (("weight_scale", columns**-0.5 / SPREAD), ("input_scale", INPUT[field])):
                out.append(safefile.Entry(stem + kind, torch.float32, (1,), partial(torch.full, (1,), value)))
        return out
    name = "model." + piece.parts[0]
    if piece.kind == "embed":
        assert piece.columns is not None
        rows, columns = piece.shape
        return [safefile.Entry(name, torch.bfloat16, piece.shape, lambda: (normal(rows, columns) * columns**-0.5).bfloat16().cpu())]
    if piece.kind == "scalar":
        return [safefile.Entry(name, torch.float32, piece.shape, lambda: torch.ones(piece.shape))]
    size = piece.shape[0]
    around = 1.5 * size**-0.25 if field in ("q_norm", "k_norm") else NORM.get(field, 1.0)
    return [safefile.Entry(name, torch.float32, piece.shape, lambda: (around * (1 + 0.1 * normal(size))).cpu())]


def _linear(normal: Any, rows: int, columns: int) -> torch.Tensor:
    return (normal(rows, columns) * SPREAD).clamp(-448, 448).to(E4M3).cpu()


if __name__ == "__main__":
    sys.exit(main())
