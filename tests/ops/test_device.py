"""Memory and power of a GPU as the worker exports them, with torch's own answers put in: there is no GPU in CI."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import FakeEngine

from spinf_stream.metrics import PREFIX, Metrics
from spinf_stream.stream import device
from spinf_stream.top_cli import Scrape, view

GIB = 2**30


def engine(kind: str) -> Any:
    return SimpleNamespace(executor=SimpleNamespace(device=torch.device(kind)))


def values(m: Metrics) -> dict[str, float]:
    """By what follows spinf_stream_device_, of cuda:0."""
    found = [s for f in m.registry.collect() for s in f.samples if s.name.startswith(PREFIX + "device_")]
    assert all(s.labels == {"device": "cuda:0"} for s in found)
    return {s.name.removeprefix(PREFIX + "device_"): s.value for s in found}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each figure was asked for."""
    asked = {"memory": 0, "power": 0}

    def memory(name: str) -> tuple[int, int]:
        asked["memory"] += 1
        return 100 * GIB, 140 * GIB

    def power(name: str) -> int:
        asked["power"] += 1
        return 412_345

    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda name: 15 * GIB)
    monkeypatch.setattr(torch.cuda, "power_draw", power)
    return asked


def followed(kind: str) -> Metrics:
    """The metrics after some turns."""
    m = Metrics(2048)
    w: Any = SimpleNamespace(scorer=SimpleNamespace(engine=engine(kind)), metrics=m)

    async def main() -> None:
        task = asyncio.create_task(device.follow(w, 0.01))
        await asyncio.wait([task], timeout=0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    return m


def test_a_gpu_has_four_series(gpu: dict[str, int]) -> None:
    assert values(followed("cuda:0")) == {
        "memory_used_bytes": 40 * GIB, "memory_total_bytes": 140 * GIB, "memory_peak_bytes": 15 * GIB, "power_watts": 412.345,
    }  # fmt: skip
    assert gpu["memory"] > 2 and gpu["power"] > 2


def test_without_nvml_only_the_power_is_missing_and_it_is_asked_once(gpu: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def power(name: str) -> int:
        gpu["power"] += 1
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "power_draw", power)
    assert values(followed("cuda:0")).keys() == {"memory_used_bytes", "memory_total_bytes", "memory_peak_bytes"}
    assert gpu["power"] == 1 and gpu["memory"] > 2


def test_a_device_that_is_gone_ends_the_asking_and_not_the_worker(gpu: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(name: str) -> tuple[int, int]:
        gpu["memory"] += 1
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    assert values(followed("cuda:0")) == {} and gpu["memory"] == 1


def test_a_cpu_and_a_fake_engine_have_none(gpu: dict[str, int]) -> None:
    assert values(followed("cpu")) == {} and gpu["memory"] == 0
    assert device.cuda_device(FakeEngine()) is None


def test_top_shows_them(gpu: dict[str, int]) -> None:
    samples = {(s.name, frozenset(s.labels.items())): s.value for f in followed("cuda:0").registry.collect() for s in f.samples}
    before = Scrape(0.0, samples, 1, ())
    lines = view(before, before._replace(at=1.0))
    assert [line for line in lines if line.startswith("device memory")] == ["device memory  #######.................  29% of 140 GiB   412 W"]
    assert not [line for line in view(before._replace(samples={}), before._replace(at=1.0, samples={})) if "device memory" in line]


@pytest.mark.cuda
def test_on_a_real_gpu() -> None:
    x = torch.empty(2**28, device="cuda:0")  # 1 GiB
    found = values(followed("cuda:0"))
    assert x.nbytes <= found["memory_peak_bytes"] <= found["memory_used_bytes"] < found["memory_total_bytes"]
    assert found.get("power_watts", 1.0) > 0
