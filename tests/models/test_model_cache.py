"""Conversion happens once, whole, for all processes; damage is found and mended; loading is quick."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from demo_model import demo_folder
from safetensors import safe_open
from tiny import make_tiny

from spinf_stream.engine import cache as cache_module
from spinf_stream.engine import sources
from spinf_stream.engine.cache import cached, fetch, verify
from spinf_stream.engine.models import ModelError
from spinf_stream.engine.reference import logprobs
from spinf_stream.engine.weights import load


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny(tmp_path / "my model")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def count_conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    convert = cache_module.convert

    def counting(source, name, *rest):  # type: ignore[no-untyped-def]
        made.append(name)
        return convert(source, name, *rest)

    monkeypatch.setattr(cache_module, "convert", counting)
    return made


def test_once_then_mapped(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_conversions(monkeypatch)
    stack, encoder = load(str(model), "float32", "cpu", cache)
    again, _ = load(str(model), "float32", "cpu", cache)
    assert made == ["my model"] and stack.name == "my model" and stack.scheme == "fp32"
    (entry,) = cached(cache)
    assert entry.folder.name.startswith("my-model-") and entry.digest == stack.digest == again.digest
    assert sorted(p.name for p in entry.folder.iterdir()) == ["config.json", "meta.json", "model.safetensors", "tokenizer.json"]
    assert verify(entry) == []
    assert encoder.digest == entry.meta["files"]["tokenizer.json"]["sha256"]
    with safe_open(str(entry.folder / "model.safetensors"), "pt") as f:
        assert {"embed", "final_norm", "layers.0.qkv", "layers.2.mlp_out"} <= set(f.keys())


def test_the_digest_covers_weights_and_config(tmp_path: Path, cache: Path) -> None:
    digests = {
        fetch(str(make_tiny(tmp_path / "a")), cache).digest,
        fetch(str(make_tiny(tmp_path / "b", seed=1)), cache).digest,
        fetch(str(make_tiny(tmp_path / "c", sliding_window=8)), cache).digest,
        fetch(str(make_tiny(tmp_path / "d", final_logit_softcapping=30.0)), cache).digest,
    }
    assert len(digests) == 4
    assert fetch(str(make_tiny(tmp_path / "e")), cache).digest in digests  # nothing of the place or the time


def test_a_changed_folder_is_another_model(model: Path, cache: Path) -> None:
    before, _ = load(str(model), "float32", "cpu", cache)
    make_tiny(model, seed=7)
    os.utime(model / "model.safetensors", ns=(1, 1))  # same size, another time
    after, _ = load(str(model), "float32", "cpu", cache)
    assert before.digest != after.digest and len(cached(cache)) == 2
    ids = [2, 10, 20, 30]  # and what was mapped before still holds
    assert not torch.equal(logprobs(before, ids), logprobs(after, ids))


def test_a_swap_of_equal_size_and_time_is_another_model(model: Path, cache: Path, tmp_path: Path) -> None:
    weights = model / "model.safetensors"
    was = weights.stat()
    before = fetch(str(model), cache)
    assert fetch(str(model), cache).folder == before.folder
    swapped = make_tiny(tmp_path / "other", seed=7) / "model.safetensors"
    weights.write_bytes(swapped.read_bytes())  # the same file to the file system, as cp and rsync --inplace -t leave it
    os.utime(weights, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert (weights.stat().st_size, weights.stat().st_mtime_ns) == (was.st_size, was.st_mtime_ns)
    after = fetch(str(model), cache)
    assert after.digest != before.digest and after.folder != before.folder


def test_each_sign_of_a_swap_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(1000))
    label, stat = sources.find(str(path)).label, path.stat()

    class Faked(NamedTuple):
        st_size: int = stat.st_size
        st_mtime_ns: int = stat.st_mtime_ns
        st_ctime_ns: int = stat.st_ctime_ns
        st_ino: int = stat.st_ino

    def seen(fake: Faked) -> str:
        with monkeypatch.context() as m:
            m.setattr(sources, "stat", lambda p: fake)
            return sources.find(str(path)).label

    assert seen(Faked()) == label
    others = {seen(Faked(**{name: 7})) for name in Faked._fields}
    path.write_bytes(b"\x01" * 1000)
    others.add(seen(Faked()))  # nothing but the bytes
    assert len(others) == 5 and label not in others


def test_a_model_of_any_size_is_named_by_a_few_pages(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    with path.open("wb") as f:
        f.truncate(1 << 36)  # sparse: only reading all of it would take long
    began = time.monotonic()
    sources.find(str(path))
    assert time.monotonic() - began < 1


def damage_truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 5000)


def damage_bytes(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 - 3000 : len(data) // 2 + 3000] = bytes(6000)  # a hole larger than the distance of the samples
    path.write_bytes(data)


def damage_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"sliding_window": 16', '"sliding_window": 61'))


def damage_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[::-1])


def damage_missing(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def damage_meta(folder: Path) -> None:
    (folder / "meta.json").write_text('{"format": 1, "files"')


def damage_format(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "format": 0}))


DAMAGES = [f for n, f in sorted(globals().items()) if n.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_damage_is_found_and_mended(model: Path, cache: Path, damage, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    good, _ = load(str(model), "float32", "cpu", cache)
    expected = logprobs(good, [2, 9, 99])
    made = count_conversions(monkeypatch)
    damage(fetch(str(model), cache).folder)
    assert cached(cache) == []  # not offered as whole
    mended, _ = load(str(model), "float32", "cpu", cache)
    assert made == ["my model"] and mended.digest == good.digest
    assert torch.equal(logprobs(mended, [2, 9, 99]), expected)
    assert [p.name for p in (cache / "models").iterdir() if p.name.startswith(".")] == []


def test_verify_reads_every_byte(model: Path, cache: Path) -> None:
    entry = fetch(str(model), cache)
    path = entry.folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[40 * (len(data) - 4096) // 63 + 5000] ^= 1  # between two of the 64 pages that are sampled
    path.write_bytes(data)
    assert fetch(str(model), cache) == entry  # one bit escapes the quick look
    seen: list[tuple[str, int, int]] = []
    (problem,) = verify(entry, lambda *step: seen.append(step))
    assert problem.startswith("model.safetensors: sha256") and seen[-1][1] == seen[-1][2] == entry.size


def test_a_killed_conversion_leaves_nothing_behind(model: Path, cache: Path) -> None:
    label = fetch(str(model), cache).folder.name
    left = cache / "models" / f".{label}.12345"
    (left / "scratch-x").mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert len(cached(cache)) == 1  # half a model is never offered
    damage_missing(cache / "models" / label)
    fetch(str(model), cache)
    assert not left.exists()


def test_a_failed_conversion_leaves_nothing_behind(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "convert", full)
    with pytest.raises(ModelError, match="No space left on device"):
        fetch(str(model), cache)
    assert [p.suffix for p in (cache / "models").iterdir()] == [".lock"]


RACER = """
import sys, time
from pathlib import Path
from spinf_stream.engine import cache
convert = cache.convert
def counting(*a):
    print("converting", flush=True)
    time.sleep(0.5)  # long enough for the others to arrive
    return convert(*a)
cache.convert = counting
print(cache.fetch(sys.argv[1], Path(sys.argv[2])).digest)
"""


def test_processes_at_once_convert_once(model: Path, cache: Path) -> None:
    racers = [subprocess.Popen([sys.executable, "-c", RACER, str(model), str(cache)], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    lines = [line for r in racers for line in r.communicate(timeout=60)[0].split()]
    assert [r.returncode for r in racers] == [0, 0, 0]
    assert lines.count("converting") == 1 and len(set(lines)) == 2


def test_a_finished_cache_needs_no_write(model: Path, cache: Path) -> None:
    """A cache baked into an image is mounted read-only: no lock file, no folder."""
    entry = fetch(str(model), cache)
    (cache / "models" / f"{entry.folder.name}.lock").unlink()
    before = sorted(cache.rglob("*"))
    load(str(model), "float32", "cpu", cache)
    assert sorted(cache.rglob("*")) == before


def test_imports_and_loads_without_transformers(model: Path, cache: Path) -> None:
    """A worker polls within four seconds of its start; transformers alone takes longer to import."""
    code = (
        "import sys; from pathlib import Path; from spinf_stream.engine.weights import load; "
        "load(sys.argv[1], 'float32', 'cpu', Path(sys.argv[2])); "
        "sys.exit(','.join(m for m in ('transformers', 'huggingface_hub', 'gguf') if m in sys.modules) or 0)"
    )
    fetch(str(model), cache)
    subprocess.run([sys.executable, "-c", code, str(model), str(cache)], check=True, timeout=60)


def kept_from_a_core() -> float:
    """Seconds for which this thread could have run and others did: wall time less these is that of a machine that is not
    busy with something else, reading from disk included, which CPU time leaves out."""
    stat = Path("/proc/thread-self/schedstat")  # not in every sandbox
    return int(stat.read_text().split()[1]) / 1e9 if stat.exists() else 0.0


@pytest.mark.model
def test_demo_loads_in_under_five_seconds() -> None:
    demo_folder()
    began, kept_waiting = time.monotonic(), kept_from_a_core()
    stack, encoder = load("demo", "float32", "cpu")
    assert time.monotonic() - began - (kept_from_a_core() - kept_waiting) < 5
    assert stack.spec.layers[0].window == 512 and len(stack.layers) == 18 and encoder.bos == (2,)
