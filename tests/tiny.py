"""Tiny random models: real files in the real format, loaded in milliseconds, made without importing transformers.

`make_tiny` writes config.json, model.safetensors and tokenizer.json as the Hub would hold them, so that plumbing tests
take the same way through weights.py as a real checkpoint. The tokenizer is byte-level (any text encodes, decodes back
exactly) with a few merges, so that some words are one token, some are several, and some joins merge.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
WORDS = (" yes", " no", " sport", " politics", " business", " tech", " the", " of", "ing", "10", "wor", "world", "\n\n")

_COMMON: dict[str, Any] = {
    "vocab_size": 384,  # more rows than the tokenizer has tokens, as in real checkpoints
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
_FAMILY: dict[str, dict[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "query_pre_attn_scalar": 16,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "final_logit_softcapping": None,
    },
    "gemma4": {
        "model_type": "gemma4_unified_text",
        "architectures": ["Gemma4UnifiedForCausalLM"],
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "final_logit_softcapping": 30.0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        },
    },
}


def make_tiny(folder: Path, family: str = "gemma3", seed: int = 0, words: Sequence[str] = (), **overrides: Any) -> Path:
    """Write a tiny random model of `family` ("gemma3" or "gemma4") into `folder` and return the folder.
    `words`: more that its tokenizer spells in few tokens, such as the options of an official pack.

    `overrides` replace keys of config.json; layer_types follows num_hidden_layers unless it is given too. Same
    arguments, same bytes.
    """
    tokenizer = byte_level_tokenizer(words)
    config = {**_COMMON, "vocab_size": max(_COMMON["vocab_size"], tokenizer.get_vocab_size() + 1), **_FAMILY[family], **overrides}
    count = config["num_hidden_layers"]
    if "layer_types" not in overrides:  # every third layer and the last are global
        config["layer_types"] = [
            "full_attention" if i % 3 == 2 or i == count - 1 else "sliding_attention" for i in range(count)
        ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    save_file(_weights(config, seed), str(folder / "model.safetensors"), {"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def byte_level_tokenizer(words: Sequence[str] = ()) -> Tokenizer:
    """The tokenizer of every tiny model: specials, 256 bytes, and merges that spell `words`, then WORDS."""
    vocab = {token: i for i, token in enumerate((*SPECIAL, *map(_char, range(256))))}
    merges: list[tuple[str, str]] = []
    for word in (*words, *WORDS):
        letters = [_char(b) for b in word.encode()]
        for end in range(1, len(letters)):
            pair = ("".join(letters[:end]), letters[end])
            if pair not in merges:
                merges.append(pair)
                vocab.setdefault("".join(pair), len(vocab))
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in SPECIAL])
    return tok


def _char(byte: int) -> str:
    """The printable character that byte-level BPE writes for a byte (the table of GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return chr(byte) if byte in plain else chr(256 + [b for b in range(256) if b not in plain].index(byte))


def _weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    gemma4 = config["model_type"].startswith("gemma4")

    def linear(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=gen) * columns**-0.5

    def norm(size: int) -> torch.Tensor:  # far from neutral, so that a forgotten or doubled norm weight shows
        return torch.randn(size, generator=gen) * 0.2 + (1.0 if gemma4 else 0.0)

    # small embeddings and a large final norm: the layers, not the token itself, decide what comes next
    out = {"model.embed_tokens.weight": torch.randn(config["vocab_size"], hidden, generator=gen) * 0.1}
    for i, kind in enumerate(config["layer_types"]):
        wide = gemma4 and kind == "full_attention"
        dim = config["global_head_dim"] if wide else config["head_dim"]
        shared = wide and config["attention_k_eq_v"]
        kv = config["num_global_key_value_heads"] if shared else config["num_key_value_heads"]
        at = f"model.layers.{i}."
        out[at + "self_attn.q_proj.weight"] = linear(config["num_attention_heads"] * dim, hidden)
        out[at + "self_attn.k_proj.weight"] = linear(kv * dim, hidden)
        if not shared:
            out[at + "self_attn.v_proj.weight"] = linear(kv * dim, hidden)
        out[at + "self_attn.o_proj.weight"] = linear(hidden, config["num_attention_heads"] * dim)
        soft = dim**-0.25 if gemma4 else 1.0  # no 1/sqrt(d) in Gemma 4: its norms keep the scores moderate
        out[at + "self_attn.q_norm.weight"] = norm(dim) * soft
        out[at + "self_attn.k_norm.weight"] = norm(dim) * soft
        out[at + "mlp.gate_proj.weight"] = linear(inner, hidden)
        out[at + "mlp.up_proj.weight"] = linear(inner, hidden)
        out[at + "mlp.down_proj.weight"] = linear(hidden, inner)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            out[f"{at}{name}_layernorm.weight"] = norm(hidden)
        if gemma4:
            out[at + "layer_scalar"] = torch.rand(1, generator=gen) * 0.5 + 0.5
    out["model.norm.weight"] = norm(hidden) + 3.0
    return out
