"""Static fp8 checkpoints: scales applied once, per part, natively and dequantised; calibration sees the true inputs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import make_tiny

from spinf_stream.cli import main
from spinf_stream.engine import fp8, quantize
from spinf_stream.engine.cache import fetch
from spinf_stream.engine.models import ModelError, Unsupported
from spinf_stream.engine.reference import linear, logprobs
from spinf_stream.engine.weights import load

IDS = [2, *range(40, 90), 7, 9]
NAMES = ("qkv", "o", "gate_up", "down")


def foreign(folder: Path, change: Callable[[dict[str, torch.Tensor]], None] = lambda t: None) -> Path:
    """Quantise a tiny checkpoint as others do: every linear its own weight scale (compressed-tensors)."""
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if "_proj.weight" in n]:
        weight = tensors[name]
        scale = weight.abs().max() / 448.0
        tensors[name] = torch.clamp(weight / scale, -448, 448).to(torch.float8_e4m3fn)
        tensors[name.removesuffix("weight") + "weight_scale"] = scale.reshape(1)
        tensors[name.removesuffix("weight") + "input_scale"] = torch.tensor([0.0625 if "v_proj" in name else 0.03125])
    for name in [n for n in tensors if "embed" in n or "layer_scalar" in n]:
        tensors[name] = tensors[name].bfloat16()  # as such checkpoints hold them
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return configure(folder, quantization_config=fp8.quantization_config())


def configure(folder: Path, **keys: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))
    return folder


@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_a_foreign_checkpoint_keeps_its_scales(tmp_path: Path, family: str) -> None:
    origin, _ = load(str(make_tiny(tmp_path / "m", family)), "float32", "cpu", tmp_path / "cache")
    folder = foreign(make_tiny(tmp_path / "q", family))
    native, _ = load(str(folder), "fp8", "cpu", tmp_path / "cache")
    plain, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    half, _ = load(str(folder), "bfloat16", "cpu", tmp_path / "cache")
    assert (native.scheme, plain.scheme, half.scheme) == ("fp8-static", "fp32", "bf16")
    stored = load_file(folder / "model.safetensors")
    for i, (w, spec) in enumerate(zip(native.layers, native.spec.layers)):
        assert w.weight_scale is not None and w.input_scale is not None
        parts = ("q", "k") if spec.k_eq_v else ("q", "k", "v")
        rows = [stored[f"model.layers.{i}.self_attn.{p}_proj.weight"].float() for p in parts]
        scales = [stored[f"model.layers.{i}.self_attn.{p}_proj.weight_scale"] for p in parts]
        expected = torch.cat([r * s for r, s in zip(rows, scales)])
        assert w.qkv.dtype == torch.float8_e4m3fn and w.weight_scale["qkv"].shape == (spec.qkv_rows,)
        assert w.weight_scale["o"].shape == w.weight_scale["down"].shape == (1,)
        assert torch.equal(linear(w, "qkv"), expected) and torch.equal(plain.layers[i].qkv, expected)
        assert w.input_scale == {"qkv": 0.03125 if spec.k_eq_v else 0.0625, "o": 0.03125, "gate_up": 0.03125, "down": 0.03125}
        for name in NAMES:  # a scale forgotten or applied twice would be far off
            a, b = linear(w, name).flatten(), linear(origin.layers[i], name).flatten()
            assert torch.cosine_similarity(a, b, dim=0) > 0.999
            assert 0.98 < a.norm() / b.norm() < 1.02
            assert torch.equal(getattr(half.layers[i], name), linear(w, name).bfloat16())
    assert torch.equal(logprobs(native, IDS), logprobs(plain, IDS))
    divergence = (logprobs(origin, IDS).exp() * (logprobs(origin, IDS) - logprobs(plain, IDS))).sum(-1)
    assert 1e-6 < divergence.mean() < 0.1


def test_calibration_sees_what_transformers_linears_see(tmp_path: Path) -> None:
    """Gemma 4 has two head sizes; each projection's largest input equals a hook on transformers' own module."""
    from transformers import AutoModelForCausalLM

    folder = make_tiny(tmp_path / "m", "gemma4", seed=8)
    stack, _ = load(str(folder), "float32", "cpu", tmp_path / "cache")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    seen: dict[str, float] = {}
    for name, module in model.named_modules():
        if name.endswith("_proj"):

            def hook(module: Any, inputs: Any, name: str = name) -> None:
                seen[name] = max(seen.get(name, 0.0), float(inputs[0].abs().max()))

            module.register_forward_pre_hook(hook)
    texts = [IDS, [2, 300, 301, 5], [2]]
    with torch.no_grad():
        for ids in texts:
            model(torch.tensor([ids]))
    tokens: list[int] = []
    amax = quantize.calibrate(stack, texts, tokens.append)
    assert tokens == [53, 4, 1]
    for i, layer in enumerate(amax):
        for name, modules in {"qkv": ("q", "k"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}.items():
            for m in modules:
                part = "self_attn" if m in "qko" else "mlp"
                assert layer[name] == pytest.approx(seen[f"model.layers.{i}.{part}.{m}_proj"], rel=1e-4)


@pytest.mark.parametrize("amax", [12.56, 6592.0, 5920.0, 224.0, 223.9, 1e-3, 0.0])
def test_input_scale_is_a_power_of_two_with_headroom(amax: float) -> None:
    scale = fp8.input_scale(amax)
    assert math.log2(scale).is_integer() and scale * 448 >= 2 * amax > scale * 448 / 2 - (amax == 0)


def test_quantize_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out, cache = make_tiny(tmp_path / "m", "gemma3", seed=9), tmp_path / "q", tmp_path / "cache"
    articles = [{"text": "The harbour opens at noon."}, {"title": "Rates", "text": "The bank waits. " * 20}]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, articles)) + "\n\n")
    command = ["model", "quantize", str(folder), "--calibration", str(tmp_path / "texts.jsonl"), "--out", str(out)]
    command += ["--cache-dir", str(cache), "--device", "cpu"]
    assert main(command) == 0
    assert "calibrated on 2 articles" in capsys.readouterr().out
    origin, encoder = load(str(folder), "float32", "cpu", cache)
    native, same = load(str(out), "fp8", "cpu", cache)
    assert same.digest == encoder.digest and native.spec.layers == origin.spec.layers
    for before, after in zip(origin.layers, native.layers):
        assert after.weight_scale is not None and after.input_scale is not None
        torch.testing.assert_close(after.q_norm, before.q_norm, rtol=1e-6, atol=1e-6)
        for name in NAMES:
            assert after.weight_scale[name].shape == (1,)  # one scale for the parts: one plain GEMM
            assert after.weight_scale[name].item() == pytest.approx(getattr(before, name).abs().max().item() / 448)
            assert torch.cosine_similarity(linear(after, name).flatten(), linear(before, name).flatten(), dim=0) > 0.999
    assert torch.equal(native.embed, origin.embed.bfloat16())
    report = json.loads((out / "calibration.json").read_text())
    assert report["articles"] == 2 and report["source_sha256"] == origin.digest
    assert after.input_scale["down"] == fp8.input_scale(report["largest_inputs"][-1]["down"])
    assert main(command) == 2 and "not an empty folder" in capsys.readouterr().err
    assert main([*command[:2], str(out), *command[3:6], str(tmp_path / "again"), *command[7:]]) == 2
    assert "is fp8 already" in capsys.readouterr().err


def test_quantize_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["model", "quantize", str(make_tiny(tmp_path / "m")), "--out", str(tmp_path / "q"), "--cache-dir", str(tmp_path / "c")]
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"txt": "secret words"}\n')
    (tmp_path / "none.jsonl").write_text("\n")
    for file, message in {"bad.jsonl": "line 2", "none.jsonl": "at least one article", "absent.jsonl": "No such file"}.items():
        assert main([*base, "--device", "cpu", "--calibration", str(tmp_path / file)]) == 2
        err = capsys.readouterr().err
        assert message in err and "secret" not in err
    assert not (tmp_path / "q").exists()


def quantised(**change: Any) -> dict[str, Any]:
    table = fp8.quantization_config()
    group = table["config_groups"]["group_0"]
    for key, value in change.items():
        if key in ("weights", "input_activations"):
            group[key] = {**group[key], **value} if value is not None else None
        else:
            table[key] = value
    return table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (quantised(quant_method="gptq"), "'gptq'"),
        (quantised(format="pack-quantized"), "'pack-quantized'"),
        (quantised(input_activations={"dynamic": True}), "input_activations must be static"),
        (quantised(input_activations=None), "input_activations must be static"),
        (quantised(weights={"strategy": "channel"}), "weights must be static"),
        (quantised(weights={"num_bits": 4}), "weights must be static"),
        (quantised(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
        (quantised(config_groups={}), "no config_groups"),
    ],
)
def test_other_quantisations_are_refused(tmp_path: Path, table: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        fetch(str(configure(make_tiny(tmp_path / "m"), quantization_config=table)), tmp_path / "cache")


O = "model.layers.0.self_attn.o_proj."
SCALES: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
    "without layers.0.self_attn.o_proj.weight_scale": lambda t: t.pop(O + "weight_scale"),
    "without layers.0.self_attn.o_proj.input_scale": lambda t: t.pop(O + "input_scale"),
    "weight_scale must be one positive number": lambda t: t.update({O + "weight_scale": torch.zeros(1)}),
    "input_scale must be one positive number": lambda t: t.update({O + "input_scale": torch.tensor([math.nan])}),
    "k_scale": lambda t: t.update({"model.layers.0.self_attn.k_scale": torch.ones(1)}),
}


@pytest.mark.parametrize("message", SCALES)
def test_scales_are_checked(tmp_path: Path, message: str) -> None:
    with pytest.raises(ModelError) as e:
        fetch(str(foreign(make_tiny(tmp_path / "m"), SCALES[message])), tmp_path / "cache")
    assert message in str(e.value)


def test_a_linear_left_in_bfloat16(tmp_path: Path) -> None:
    """Loads dequantised; natively it is refused, never run with a scale of one."""

    def change(t: dict[str, torch.Tensor]) -> None:
        t[O + "weight"] = t[O + "weight"].float() * t.pop(O + "weight_scale")
        del t[O + "input_scale"]

    folder = foreign(make_tiny(tmp_path / "m"), change)
    assert load(str(folder), "float32", "cpu", tmp_path / "cache")[0].scheme == "fp32"
    with pytest.raises(ModelError, match=r"layers\.0\.o is not fp8"):
        load(str(folder), "fp8", "cpu", tmp_path / "cache")
