"""Memory and power of the GPU that the passes run on, by torch's own figures; on a CPU there are no such series.

The power needs NVML's Python binding (the extra `gpu`, in the GPU image): without it, or without the right to ask, that one
series is absent.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from spinf_stream.metrics import Metrics
from spinf_stream.stream.pipeline import Pipeline

log = logging.getLogger(__name__)

TURN_SECONDS = 5.0


class Reading(NamedTuple):
    used: int  # bytes, of every process on the device
    total: int
    peak: int  # bytes that this process's tensors took at most
    watts: float | None


def cuda_device(engine: object) -> str | None:
    """Where the engine's passes run, when that is a GPU; a fake engine says nothing."""
    device = getattr(getattr(engine, "executor", None), "device", None)
    return str(device) if getattr(device, "type", "") == "cuda" else None


def read(device: str, power: bool = True) -> Reading:
    """Raises RuntimeError when the device is gone."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    watts = None
    if power:
        try:
            watts = torch.cuda.power_draw(device) / 1000
        except Exception as e:  # a missing module, a refusing driver: NVML's errors have no common base here
            log.info("no figure of the power of %s: %s", device, type(e).__name__)
    return Reading(total - free, total, torch.cuda.max_memory_allocated(device), watts)


def show(metrics: Metrics, device: str, r: Reading) -> None:
    metrics.device_used.labels(device).set(r.used)
    metrics.device_total.labels(device).set(r.total)
    metrics.device_peak.labels(device).set(r.peak)
    if r.watts is not None:
        metrics.device_watts.labels(device).set(r.watts)


async def follow(w: Pipeline, seconds: float = TURN_SECONDS) -> None:
    """For as long as the worker runs; returns at once on a CPU. What cannot be told once is not asked again."""
    device = cuda_device(w.scorer.engine)
    power = True
    while device is not None:
        try:
            reading = await asyncio.to_thread(read, device, power)
        except RuntimeError as e:  # the engine will say the same, louder
            log.warning("no more figures of %s: %s", device, type(e).__name__)
            return
        show(w.metrics, device, reading)
        power = reading.watts is not None
        await asyncio.sleep(seconds)
