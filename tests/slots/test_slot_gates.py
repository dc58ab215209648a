"""Gates of decode steps, on the executors that a CPU has: what they find, what they do not, and what is remembered of them."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import make_tiny

from spinf_stream.engine.gpu import proven, steps
from spinf_stream.engine.gpu.executor import GpuExecutor
from spinf_stream.engine.gpu.slot_gates import SlotTrial
from spinf_stream.engine.open import ask_of, at_start
from spinf_stream.engine.seam import EngineFatal, OutOfMemory
from spinf_stream.engine.torch_executor import TorchExecutor
from spinf_stream.engine.weights import load
from spinf_stream.errors import UsageError


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = make_tiny(tmp_path_factory.mktemp("m") / "two", "gemma4", num_hidden_layers=2)
    stack, encoder = load(str(folder), "float32", "cpu", tmp_path_factory.mktemp("cache"))
    return stack, encoder.starts_alnum()


@pytest.mark.parametrize("kind", ["plain torch", "naive kernels", "naive kernels, padded"])
def test_gates_hold_within_rounding(small, kind):
    executor = TorchExecutor(*small) if kind == "plain torch" else GpuExecutor(*small)
    if kind.endswith("padded"):
        executor.grower.padded = True
    gates = list(SlotTrial(executor, 2e-5, lengths=(1, 17, 64), count=9).gates())
    assert len(gates) == 10 and [g for g in gates if not g.passed] == []


def test_what_the_gates_found_is_remembered(small, tmp_path, monkeypatch):
    executor, said = GpuExecutor(*small), []
    monkeypatch.setattr(proven, "SlotTrial", lambda e: SlotTrial(e, lengths=(1, 17), count=3))  # on a CPU not bit for bit
    proven.prove_slots(executor, tmp_path, said.append)
    found = executor.slot_faults
    assert len(said) == 1 and "a path decoded = the same path scored" not in found
    executor.slot_faults = ["something"]
    proven.prove_slots(executor, tmp_path, said.append)
    assert executor.slot_faults == found and len(said) == 1
    other = GpuExecutor(*small, row_scales=False)
    proven.prove_slots(other, tmp_path, said.append)
    assert len(said) == 2, "another executor is another record"


def broken(error):
    def grow(step):
        raise error

    return grow


def test_gates_that_raise_refuse_slots_until_the_next_start(small, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(proven, "SlotTrial", lambda e: SlotTrial(e, 2e-5, lengths=(1, 17), count=3))
    executor = GpuExecutor(*small)
    monkeypatch.setattr(executor.grower, "grow", broken(RuntimeError("no kernel image\nand more")))
    proven.prove_slots(executor, tmp_path, print)
    assert executor.slot_faults == ["decode steps run (RuntimeError: no kernel image)"] and executor.slot_record is None
    assert [g.passed for g in proven.slot_gates(executor)] == [False], "and the self-test shows it"
    assert list(tmp_path.iterdir()) == [], "only what gates measured is recorded"
    executor = GpuExecutor(*small)
    proven.prove_slots(executor, tmp_path, print)
    assert executor.slot_faults == [] and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory("another process holds the card"), EngineFatal("gone")])
def test_what_the_device_says_to_the_gates_is_no_outcome(small, tmp_path, monkeypatch, error):
    executor = GpuExecutor(*small)
    monkeypatch.setattr(executor.grower, "grow", broken(error))
    wanted = EngineFatal if isinstance(error, EngineFatal) else OutOfMemory
    with pytest.raises(wanted):
        proven.prove_slots(executor, tmp_path, print)
    with pytest.raises(wanted):
        list(proven.slot_gates(executor))
    with pytest.raises(UsageError, match="the bit gates could not be run") as e, at_start():
        proven.prove_slots(executor, tmp_path, print)
    assert e.value.code == 70 and list(tmp_path.iterdir()) == []


def test_the_refusal_names_the_record(small, tmp_path, monkeypatch):
    executor = GpuExecutor(*small)
    monkeypatch.setattr(proven, "SlotTrial", lambda e: SlotTrial(e, -1.0, lengths=(1,), count=3))  # no gate passes
    proven.prove_slots(executor, tmp_path, print)
    record = executor.slot_record
    assert record is not None and record.parent == tmp_path and json.loads(record.read_bytes())["failed"] == executor.slot_faults != []
    asked = SimpleNamespace(slots=["one"])
    ground = SimpleNamespace(engine=SimpleNamespace(executor=executor))
    with pytest.raises(UsageError, match=re.escape(str(record))):
        ask_of(ground, asked, None, None)


@pytest.mark.parametrize("fault", ["of its neighbours", "of its order", "of the path"])
def test_gates_find_a_row_that_depends_on_more_than_its_path(small, fault, monkeypatch):
    executor = GpuExecutor(*small)
    trial = SlotTrial(executor, 2e-5, lengths=(1, 17), count=6)
    if fault == "of the path":  # rows of a path whose keys lie one slot off: the first is lost, the last is padding
        right = steps.paths

        def shifted(step):
            of = right(step)
            return of._replace(source=np.concatenate([of.source[1:], of.source[:1]]))

        monkeypatch.setattr(steps, "paths", shifted)
    else:
        grow = executor.grow

        def leaky(step):
            got = grow(step)
            wrong = step.rows if fault == "of its neighbours" else np.arange(len(got.first))
            return got._replace(first=got.first + 1e-4 * wrong)

        executor.grow = leaky
    found = {g.name for g in trial.gates() if not g.passed}
    assert {
        "of its neighbours": {"a slot alone = among others", "token by token = at once"},
        "of its order": {"a slot alone = among others", "any order of slots"},
        "of the path": {"a path decoded = the same path scored"},
    }[fault] <= found
