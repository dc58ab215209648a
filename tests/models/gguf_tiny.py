"""Write a tiny model as llama.cpp's converter (conversion/gemma.py) would: its keys, its names, its folded norms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
WORDS = ("▁yes", "▁no", "the", "▁the", "ing", "10", "▁world")


def vocabulary(size: int) -> tuple[list[str], list[int]]:
    """(tokens, token types): controls, user-defined, 256 bytes, letters, words, unused rows."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]", "<start_of_turn>", "\n", "\n\n", "  ", "   ", "<h1>"]
    types = [3, 3, 3, 3, 3, 4, 3, 4, 4, 4, 4, 4]
    tokens += [f"<0x{b:02X}>" for b in range(256)]
    types += [6] * 256
    for word in (*"▁abcdefghijklmnopqrstuvwxyz0123456789.<>", *(w[:n] for w in WORDS for n in range(2, len(w) + 1))):
        if word not in tokens:
            tokens.append(word)
            types.append(1)
    while len(tokens) < size:
        types.append(3)
        tokens.append(f"<unused{len(tokens)}>")
    return tokens, types


def write(path: Path, folder: Path, kind: str = "F32", merges: list[str] | None = None) -> Path:
    """The model of `folder` as GGUF; its matrices quantised as `kind`. Returns path."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    arch = "gemma3" if config["model_type"].startswith("gemma3") else "gemma4"
    out = gguf.GGUFWriter(path, arch)
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_sliding_window(config["sliding_window"])
    if config.get("final_logit_softcapping"):
        out.add_final_logit_softcapping(config["final_logit_softcapping"])
    slides = [k == "sliding_attention" for k in config["layer_types"]]
    if arch == "gemma3":
        out.add_head_count_kv(config["num_key_value_heads"])
        out.add_key_length(config["head_dim"])
        out.add_rope_freq_base(config["rope_theta"])
        if scaling := config.get("rope_scaling"):
            out.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
            out.add_rope_scaling_factor(scaling["factor"])
    else:
        full = config["rope_parameters"]["full_attention"]
        wide = config["num_global_key_value_heads"] if config["attention_k_eq_v"] else config["num_key_value_heads"]
        out.add_head_count_kv([config["num_key_value_heads"] if s else wide for s in slides])
        out.add_key_length(config["global_head_dim"])
        out.add_key_length_swa(config["head_dim"])
        out.add_sliding_window_pattern(slides)
        out.add_shared_kv_layers(config["num_kv_shared_layers"])
        out.add_embedding_length_per_layer_input(0)
        out.add_rope_freq_base(full["rope_theta"])
        out.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
        pairs = config["global_head_dim"] // 2
        rotating = int(pairs * full["partial_rotary_factor"])
        out.add_tensor("rope_freqs.weight", np.array([1.0] * rotating + [1e30] * (pairs - rotating), np.float32))
    tokens, types = vocabulary(config["vocab_size"])
    out.add_tokenizer_model("llama" if merges is None else "gemma4")
    out.add_token_list(tokens)
    out.add_token_scores([-float(i) for i in range(len(tokens))])
    out.add_token_types(types)
    if merges is not None:
        out.add_token_merges(merges)
    out.add_bos_token_id(2)
    out.add_eos_token_id(1)
    out.add_unk_token_id(3)
    out.add_add_space_prefix(False)
    for stored, tensor in load_file(folder / "model.safetensors").items():
        _tensor(out, stored.removeprefix("model."), tensor, kind, 1.0 if arch == "gemma3" else 0.0)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def _tensor(out: gguf.GGUFWriter, name: str, tensor: np.ndarray, kind: str, shift: float) -> None:
    if name.endswith("layer_scalar"):
        out.add_tensor(f"blk.{name.split('.')[1]}.layer_output_scale.weight", tensor)
        return
    stem = name.removesuffix(".weight")
    if name.endswith("norm.weight"):
        tensor = tensor + np.float32(shift)
    if stem in ("embed_tokens", "norm"):
        to = {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[stem]
    else:
        _, layer, rest = stem.split(".", 2)
        to = f"blk.{layer}.{NAMES[rest]}.weight"
    if tensor.ndim == 2 and kind != "F32":
        quantised = gguf.GGMLQuantizationType[kind]
        out.add_tensor(to, gguf.quants.quantize(tensor, quantised), raw_dtype=quantised)
    else:
        out.add_tensor(to, tensor)
