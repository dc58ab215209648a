"""A Gemma in a GGUF file as a checkpoint: its metadata become config.json and tokenizer.json, its tensors float32.

llama.cpp's converter (conversion/gemma.py) writes Gemma 3's norm weights with the 1 already added, leaves q and k as
they are, and keeps no merges for Gemma 3: they follow from the vocabulary, whose order is the merges' order.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from spinf_stream.engine.gguf_file import GgufFile
from spinf_stream.engine.models import ModelError, Unsupported

_TENSORS = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "layer_output_scale.weight": "layer_scalar",
}
_CONTROL, _USER_DEFINED = 3, 4  # token types


class GgufCheckpoint:
    """A checkpoint.Checkpoint."""

    norms_are_factors = True

    def __init__(self, path: Path) -> None:
        """Raises ModelError, Unsupported."""
        self.file = GgufFile(path)
        self.config = _config(self.file)
        self.tokenizer = _tokenizer(self.file).to_str().encode()
        self._at = {_name(stored): stored for stored in self.file.tensors if stored != "rope_freqs.weight"}

    def names(self) -> set[str]:
        return set(self._at)

    def layout(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        return self.file.tensors[self._at[name]].shape, torch.float32

    def tensor(self, name: str) -> torch.Tensor:
        return self.file.tensor(self._at[name])


def _name(stored: str) -> str:
    if stored in ("token_embd.weight", "output_norm.weight"):
        return {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}[stored]
    layer = re.fullmatch(r"blk\.(\d+)\.(.+)", stored)
    if layer and layer[2] in _TENSORS:
        return f"layers.{layer[1]}.{_TENSORS[layer[2]]}"
    return stored  # unknown: conversion refuses it by this name


def _config(file: GgufFile) -> dict[str, Any]:
    arch = file.meta.get("general.architecture")
    if arch not in ("gemma3", "gemma4"):
        raise Unsupported(f"{file.path}: architecture {arch!r} is not supported in GGUF, only gemma3 and gemma4")

    def get(key: str, default: Any = None) -> Any:
        value = file.meta.get(f"{arch}.{key}", default)
        if value is None:
            raise ModelError(f"{file.path}: the metadata have no {arch}.{key}")
        return value.tolist() if hasattr(value, "tolist") else value

    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: no tensor token_embd.weight")
    count = get("block_count")
    config = {
        "model_type": f"{arch}_text",
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": count,
        "num_attention_heads": get("attention.head_count"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "sliding_window": get("attention.sliding_window"),
        "max_position_embeddings": get("context_length"),
        "layer_types": _layer_types(get("attention.sliding_window_pattern", 6), count),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "final_logit_softcapping": file.meta.get(f"{arch}.final_logit_softcapping"),
        "bos_token_id": file.meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.meta.get("tokenizer.ggml.eos_token_id"),
    }
    own = _gemma3(get, config) if arch == "gemma3" else _gemma4(get, config, file)
    return {**config, **own}


def _layer_types(pattern: int | list[bool], count: int) -> list[str]:
    """A list says which layers slide; a number n: every n-th layer does not."""
    slides = pattern if isinstance(pattern, list) else [(i + 1) % pattern != 0 for i in range(count)]
    return ["sliding_attention" if s else "full_attention" for s in slides]


def _gemma3(get: Any, config: dict[str, Any]) -> dict[str, Any]:
    head_dim = get("attention.key_length")
    scaling = get("rope.scaling.type", "none")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": get("rope.freq_base")}
    if scaling != "none":
        rope |= {"rope_type": scaling, "factor": get("rope.scaling.factor")}
    # no key says how queries are scaled: llama.cpp, too, knows the one exception (27B) by its layers
    large = config["num_hidden_layers"] == 62
    return {
        "head_dim": head_dim,
        "num_key_value_heads": get("attention.head_count_kv"),
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if large else head_dim,
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": get("rope.freq_base_swa", 10_000.0)},
        },
    }


def _gemma4(get: Any, config: dict[str, Any], file: GgufFile) -> dict[str, Any]:
    kinds, kv = config["layer_types"], get("attention.head_count_kv")
    kv = kv if isinstance(kv, list) else [kv] * len(kinds)
    wide, head_dim = get("attention.key_length"), get("attention.key_length_swa")
    full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    own_v = {f"blk.{i}.attn_v.weight" in file.tensors for i in full}
    if len(own_v) > 1 or "rope_freqs.weight" not in file.tensors:
        raise Unsupported(f"{file.path}: global layers with and without values of their own, or no rope_freqs.weight")
    # the converter marks pairs that do not rotate with a factor of 1e30
    factors = file.tensor("rope_freqs.weight")
    rotating = int((factors == 1.0).sum())
    if not torch.equal(factors == 1.0, torch.arange(len(factors)) < rotating) or (factors[rotating:] < 1e20).any():
        raise Unsupported(f"{file.path}: rope_freqs.weight is not a partial rotary table")
    return {
        "head_dim": head_dim,
        "num_key_value_heads": next((n for n, kind in zip(kv, kinds) if kind != "full_attention"), kv[0]),
        "per_layer_config": {str(i): {"head_dim": wide, "num_key_value_heads": kv[i]} for i in full},
        "attention_k_eq_v": own_v == {False},
        "num_kv_shared_layers": get("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": get("embedding_length_per_layer_input", 0),
        "enable_moe_block": bool(get("expert_count", 0)),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": rotating / len(factors),
                "rope_theta": get("rope.freq_base"),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": get("rope.freq_base_swa", 10_000.0)},
        },
    }


def _tokenizer(file: GgufFile) -> Tokenizer:
    """Gemma's tokenizer.json: BPE with byte fallback over the metadata's vocabulary; as transformers builds it."""
    kind = file.meta.get("tokenizer.ggml.model")
    tokens, types = file.meta.get("tokenizer.ggml.tokens"), file.meta.get("tokenizer.ggml.token_type")
    if kind not in ("llama", "gemma4") or not tokens or types is None or file.meta.get("tokenizer.ggml.add_space_prefix"):
        raise Unsupported(f"{file.path}: tokenizer.ggml.model {kind!r} is not a Gemma tokenizer")
    if kind == "llama":  # runs of spaces are stored as spaces, and looked up as the space marker
        vocab = {"▁" * len(t) if t.isspace() and set(t) == {" "} else t: i for i, t in enumerate(tokens)}
        merges = _merges(vocab)
    else:
        vocab = {t: i for i, t in enumerate(tokens)}
        listed = file.meta.get("tokenizer.ggml.merges")
        if not listed:
            raise ModelError(f"{file.path}: the metadata have no tokenizer.ggml.merges")
        merges = [(left, right) for left, _, right in (m.partition(" ") for m in listed)]
    unknown = tokens[file.meta.get("tokenizer.ggml.unknown_token_id", 3)]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.pre_tokenizer = pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous", invert=False)
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    control = [t for t, kind in zip(tokens, types) if kind == _CONTROL]
    user = [t for t, kind in zip(tokens, types) if kind == _USER_DEFINED and t in vocab]
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    tok.add_tokens([AddedToken(t, normalized=False, special=False) for t in user])
    return tok


def _merges(vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to cut a token into two tokens, tokens in order, the longer left part first."""
    return [
        (token[:cut], token[cut:])
        for token in vocab
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in vocab and token[cut:] in vocab
    ]
