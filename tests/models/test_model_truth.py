"""Each family equals transformers: every position's whole distribution, fp32, within 1e-4 in log-probability.

Sequences are longer than the window (16); norm weights and layer scalars are far from neutral (tiny.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_tiny

from spinf_stream.engine.reference import logprobs
from spinf_stream.engine.weights import load

transformers = pytest.importorskip("transformers")  # a hard dependency; imported late, it takes seconds

GEMMA3: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"final_logit_softcapping": 5.0},
    "query scale of its own": {"query_pre_attn_scalar": 40},
    "linear rope scaling": {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "window of one": {"sliding_window": 1},
    "all global": {"layer_types": ["full_attention"] * 3},
    "one KV head, heads wider than hidden / heads": {"num_key_value_heads": 1, "head_dim": 32},
    "class defaults": {"num_hidden_layers": 7, "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"]},
    "eps": {"rms_norm_eps": 1e-2},
}
GEMMA4: dict[str, dict[str, Any]] = {
    "unified": {},
    "not unified": {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "hidden_size_per_layer_input": 0},
    "no softcap": {"final_logit_softcapping": None},
    "values of their own": {"attention_k_eq_v": False},
    "two global KV heads": {"num_global_key_value_heads": 2},
    "half of the pairs rotate": {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 5000.0},
        }
    },
    "class defaults": {"global_head_dim": 64},
    "six layers": {"num_hidden_layers": 6, "sliding_window": 5},
}
# keys that "class defaults" leaves out of config.json: transformers' own defaults must be ours
ABSENT = ("layer_types", "rope_theta", "rope_local_base_freq", "rope_parameters", "rms_norm_eps", "eos_token_id", "bos_token_id")
CASES = [("gemma3", n) for n in GEMMA3] + [("gemma4", n) for n in GEMMA4]


def ids_of(length: int, vocab: int = 384, seed: int = 5) -> list[int]:
    gen = torch.Generator().manual_seed(seed)
    return [2, *torch.randint(6, vocab, (length - 1,), generator=gen).tolist()]


def truth(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return out


def hf(folder: Path) -> Any:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    return model.eval()


@pytest.mark.parametrize(("family", "case"), CASES)
def test_equals_transformers(tmp_path: Path, family: str, case: str) -> None:
    overrides = (GEMMA3 if family == "gemma3" else GEMMA4)[case]
    folder = make_tiny(tmp_path / "m", family, seed=3, **overrides)
    if case == "class defaults":
        config = json.loads((folder / "config.json").read_text())
        keep = {k: v for k, v in config.items() if k not in ABSENT or (k == "layer_types" and family == "gemma4")}
        (folder / "config.json").write_text(json.dumps(keep))
    stack, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    ids = ids_of(70)
    assert stack.spec.family == family
    assert (logprobs(stack, ids) - truth(hf(folder), ids)).abs().max() <= 1e-4


@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_what_transformers_saves_loads_the_same(tmp_path: Path, family: str) -> None:
    """transformers 5 writes other keys than the Hub holds: rope_parameters, per_layer_config."""
    folder = make_tiny(tmp_path / "m", family, seed=1)
    hf(folder).save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    one, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    two, _ = load(str(tmp_path / "saved"), "float32", "cpu", tmp_path / "cache")
    assert one.spec == two.spec
    assert torch.equal(logprobs(one, ids_of(40)), logprobs(two, ids_of(40)))


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_text_part_of_a_multimodal_checkpoint(tmp_path: Path, family: str, prefix: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_tiny(tmp_path / "m", family, seed=2)
    plain, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"].removesuffix("_text")
    wrapped = {"model_type": kind, "eos_token_id": [1, 106], "text_config": config, "vision_config": {"hidden_size": 8}}
    del config["eos_token_id"]
    (folder / "config.json").write_text(json.dumps(wrapped))
    tensors = load_file(folder / "model.safetensors")
    named = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    named["vision_tower.patch.weight"] = torch.ones(3)
    named["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(named, folder / "model.safetensors")
    stack, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    assert stack.spec.eos == (1, 106)
    assert torch.equal(logprobs(stack, ids_of(40)), logprobs(plain, ids_of(40)))


def test_softcap_bounds_the_logits(tmp_path: Path) -> None:
    """Large logits: capped, equal to transformers, and not what an engine without the cap would say."""
    folder = make_tiny(tmp_path / "m", "gemma4", seed=4, final_logit_softcapping=3.0)
    stack, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    stack.final_norm = stack.final_norm * 6
    capped = logprobs(stack, ids_of(20))
    assert (capped.max(-1).values - capped.min(-1).values).max() <= 6.0 + 1e-6
    model = hf(folder)
    model.model.norm.weight.data *= 6
    assert (capped - truth(model, ids_of(20))).abs().max() <= 1e-4
    model.config.final_logit_softcapping = None
    assert (capped - truth(model, ids_of(20))).abs().max() > 1


@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_bfloat16_rounds_what_transformers_rounds(tmp_path: Path, family: str) -> None:
    """bfloat16 weights in a plain float32 forward: as far from transformers' own bfloat16 as that is from float32."""
    folder = make_tiny(tmp_path / "m", family, seed=6, hidden_size=60)
    stack, _ = load(str(folder), "bfloat16", "cpu", tmp_path / "cache")
    exact, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    assert stack.embed.dtype == stack.layers[0].qkv.dtype == torch.bfloat16 and stack.final_norm.dtype == torch.float32
    assert stack.spec.embed_scale == float(model.model.embed_tokens.embed_scale.bfloat16()) != exact.spec.embed_scale
    ids = ids_of(60)
    theirs = (truth(model, ids) - logprobs(exact, ids)).abs().mean()
    ours = (logprobs(stack, ids) - logprobs(exact, ids)).abs().mean()
    assert ours < theirs


def test_positions_asked_for(tmp_path: Path) -> None:
    stack, _ = load(str(make_tiny(tmp_path / "m")), "float32", "cpu", tmp_path / "cache")
    ids = ids_of(30)
    every = logprobs(stack, ids)
    assert every.dtype == torch.float64 and every.shape == (30, 384)
    torch.testing.assert_close(logprobs(stack, ids, [29, 0, 7]), every[[29, 0, 7]], rtol=0, atol=1e-5)
    assert (every.exp().sum(-1) - 1).abs().max() < 1e-12
    shorter = logprobs(stack, ids[:20])  # causal: what comes later changes nothing
    torch.testing.assert_close(shorter, every[:20], rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_edges(tmp_path: Path, family: str) -> None:
    """One token alone; a token whose embedding is all zeros (a padding row in an article): finite, and equal."""
    from safetensors.torch import load_file, save_file

    folder = make_tiny(tmp_path / "m", family)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][50] = 0
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    stack, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    model = hf(folder)
    for ids in ([2], [50], [2, 50, 50, 60], [*ids_of(40), 50, 7]):
        ours = logprobs(stack, ids)
        assert torch.isfinite(ours).all() and (ours - truth(model, ids)).abs().max() <= 1e-4
