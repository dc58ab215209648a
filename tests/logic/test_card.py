"""bench/card.py and what its steps measure, as far as a machine without a card can run it."""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT
from tiny import make_tiny

sys.path.append(str(ROOT / "bench"))
import card
import device
import peer_floors
import proofs
import random_checkpoint
import slot_bits
from job import made_up
from shapes import gemma4_12b

from spinf_stream.engine.gpu.gates import Gate


def test_a_part_goes_on_past_what_fails_and_brings_back_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    row = {"runs": [{"engine": "ours", "wall_ms": 4.5}], "bit_exact": True, "gates": [{"gate": "a", "passed": False}]}
    (tmp_path / "good.py").write_text(
        "import json, os, pathlib\n"
        f"for name, digest in (('one', 'd'), ('two', 'e')):\n"
        f"    pathlib.Path(os.environ['SPINF_BENCH_RESULTS'], name + '.json').write_text(json.dumps({row} | {{'digest': digest}}))\n"
    )
    (tmp_path / "bad.py").write_text("raise SystemExit('no such kernel')")
    (tmp_path / "slow.py").write_text("import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\ntime.sleep(60)")
    steps = [card.Step(1, name, 11, f"{tmp_path}/{name}.py") for name in ("bad", "slow", "good")]
    monkeypatch.setattr(card.tempfile, "gettempdir", lambda: str(tmp_path))
    args = argparse.Namespace(seconds=25.0, carry=tmp_path / "none", out=tmp_path / "out")
    assert card.run(steps, args) == 1
    said = capsys.readouterr().out
    assert "== bad: exit 1" in said and "no such kernel" in said and "== slow: timed out" in said and "== good: ok" in said
    assert "failed: bad, slow" in said and '"failed gates": [\n   "a"' in said
    assert '"one": "d"' in said, "processes that read other bits are shown"
    with tarfile.open(tmp_path / "out" / "part-1.tar.gz") as tar:
        assert {"bench/results/one.json", "logs/bad.log", "logs/slow.log"} <= set(tar.getnames())
    args.seconds = 5.0
    assert card.run(steps[2:], args) == 1 and "good: not run" in capsys.readouterr().out


@pytest.mark.parametrize("step", card.STEPS, ids=lambda s: s.name)
def test_every_step_s_file_and_flags_exist(step: card.Step) -> None:
    words = step.command.split()
    assert step.seconds <= 570
    if words[0] == "-m":
        file = {"pytest": Path(words[-1]), "spinf_stream.cli": Path("spinf_stream/selftest_cli.py")}[words[1]]
        text = " ".join(p.read_text("utf-8") for p in (ROOT / file, ROOT / "spinf_stream" / "settings_cli.py"))
        flags = [] if words[1] == "pytest" else [w for w in words if w.startswith("--")]
        assert all(f[2:].replace("-", "_") in text for f in flags)
    else:
        text = (ROOT / words[0]).read_text("utf-8")
        assert [w for w in words if w.startswith("--") and f'"{w}"' not in text] == []


def test_parts_end_in_time_as_a_rule() -> None:
    """Limits are twice what steps should take; a part's own limit cuts the last."""
    for part in (1, 2, 3):
        assert sum(s.seconds for s in card.STEPS if s.part == part) <= 1.4 * 570


def test_wheels_in_the_docstring_are_those_that_are_fetched() -> None:
    assert card.__doc__ is not None
    assert all(w in card.__doc__ for w in (*card.WHEELS.split(), *card.PLATFORMS))


def test_covered_time_and_the_largest_gap() -> None:
    assert device.union([]) == (0.0, 0.0)
    assert device.union([(5, 6), (0, 2), (1, 3), (1.5, 1.7), (3, 4), (9, 10)]) == (6, 3)


def test_idle_share_of_kernel_intervals() -> None:
    from torch.autograd import DeviceType

    def event(low: float, high: float, kind: DeviceType = DeviceType.CUDA) -> SimpleNamespace:
        return SimpleNamespace(time_range=SimpleNamespace(start=low, end=high), device_type=kind)

    seen = [event(100, 300), event(300, 400), event(450, 1100), event(0, 5000, DeviceType.CPU)]
    told = device.idle(SimpleNamespace(events=lambda: seen))
    assert told["idle_share"] == 0.05 and told["largest_gap_ms"] == 0.05 and told["intervals"] == 3
    assert "failed" in device.idle(SimpleNamespace(events=lambda: seen[-1:]))


def test_a_thousand_questions_are_those_of_the_issue() -> None:
    job = made_up(1, 1000, 340)
    templates = [q["template"] for q in job.scoring["queries"]]
    assert len(set(templates)) == 1000
    for file in (Path.home() / ".cache" / "spinf-stream" / "models").glob("demo-*/tokenizer.json"):
        from spinf_stream.engine.tokenizer import Encoder

        encoder = Encoder.from_file(file, (2,), 262_144)
        sizes = [len(encoder.encode(t.removesuffix("{?}"))) for t in templates]
        assert set(sizes) == {13} and sum(sizes) + len(encoder.encode(job.articles[0].text)) <= 14_000
        break
    with pytest.raises(ValueError):
        made_up(1, 1001, 340)


def test_gates_are_told_with_their_seconds(capsys: pytest.CaptureFixture) -> None:
    told = proofs.told([Gate("good", 0.0), Gate("bad", 1.0), Gate("worse", float("inf"))])
    assert [(g["gate"], g["passed"]) for g in told] == [("good", True), ("bad", False), ("worse", False)]
    assert all(g["seconds"] >= 0 for g in told) and json.loads(json.dumps(told, allow_nan=False)) == told
    assert "FAIL" in capsys.readouterr().out


def test_the_peer_is_asked_for_floors() -> None:
    asked = []
    protocol = SimpleNamespace(ScoreRequest=SimpleNamespace(model_validate=lambda body: asked.append(body) or body))
    found: dict = {"protocol": protocol, "arts": [1, 2], "torch": SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))}
    found["S"] = SimpleNamespace(score_request=lambda r: {"timing": {"gpu_busy_s": 0.5}, "usage": {"packed_tokens": 9}})
    exec("def request(arts):\n    return protocol.ScoreRequest.model_validate({'inputs': arts, 'scoring': {'queries': [7], 'empty_floor': False}})", found)
    told = peer_floors.with_floors(found)
    assert told["24"]["gpu_ms"] == told["1"]["gpu_ms"] == 500 and told["1"]["packed_tokens"] == 9
    assert all(body["scoring"] == {"queries": [7], "empty_floor": True} for body in asked) and asked[0]["inputs"] == [1, 2]


def test_a_random_checkpoint_is_the_12b_s_shape_and_loads(tmp_path: Path) -> None:
    from spinf_stream.engine.models import describe
    from spinf_stream.engine.weights import load

    mine, wanted = describe(random_checkpoint.gemma4_12b()), gemma4_12b()
    assert mine.layers == wanted.layers
    assert [getattr(mine, n) for n in ("hidden", "intermediate", "vocab", "softcap", "eps")] == [
        getattr(wanted, n) for n in ("hidden", "intermediate", "vocab", "softcap", "eps")
    ]
    for a, b in zip(mine.ropes, wanted.ropes, strict=True):
        assert a == pytest.approx(b, rel=1e-6)
    plain = make_tiny(tmp_path / "plain", "gemma4")
    config = json.loads((plain / "config.json").read_text())
    random_checkpoint.write(tmp_path / "fp8", config, plain / "tokenizer.json", "cpu")
    stack, _ = load(str(tmp_path / "fp8"), "fp8", "cpu", tmp_path / "cache")
    assert stack.scheme == "fp8-static" and str(stack.layers[0].qkv.dtype) == "torch.float8_e4m3fn"


def test_slots_that_differ_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import slot_cost

    from spinf_stream.engine.gpu.executor import GpuExecutor
    from spinf_stream.engine.weights import load

    stack, encoder = load(str(make_tiny(tmp_path / "tiny", "gemma4")), "float32", "cpu", tmp_path / "cache")
    executor = GpuExecutor(stack, encoder.starts_alnum())
    bench = slot_cost.Bench(executor, encoder, argparse.Namespace(device="cpu", repeat=1, shape="model"))
    bench.texts = lambda n: [f"It paid £1.2bn for 1,200 shops {i}." for i in range(n)]  # type: ignore[method-assign]
    real = slot_bits.endings
    monkeypatch.setattr(slot_bits, "endings", lambda found, slot: [e[:1] for e in real(found, slot)])  # a CPU's floats are no card's
    good = slot_bits.compared(bench, "copied number", 4, 2)
    assert good == {"together": 4, "alone": 4, "different": 0, "endings": good["endings"]} and good["endings"] > 0
    monkeypatch.setattr(slot_bits, "endings", lambda found, slot: [*real(found, slot), len(found.ptr)])
    assert slot_bits.compared(bench, "copied number", 4, 2)["different"] == 4
