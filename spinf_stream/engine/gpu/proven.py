"""`bit_exact`: earned by the gates on this card with this model and these libraries, once, and remembered.

The record is keyed by everything that touches numerics, so a new driver, library, kernel table or checkpoint is
proven anew. A card that fails stays usable: its outputs say `bit_exact: false`, and the failed gates are logged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from spinf_stream.engine.gpu.executor import GpuExecutor
from spinf_stream.engine.gpu.faults import first_line
from spinf_stream.engine.gpu.gates import Gate, Trial, head_gate, product_gate, products
from spinf_stream.engine.gpu.linear import FP8
from spinf_stream.engine.gpu.slot_gates import SlotTrial
from spinf_stream.engine.seam import EngineFatal, OutOfMemory

log = logging.getLogger(__name__)


def every_gate(executor: GpuExecutor, trial: Trial | None = None) -> Iterator[Gate]:
    """Products, head, whole passes: under a minute on a 12B model, most of it compilation the first time.

    A product in fp8 that fails is given to our own kernel, for good, and tried again."""
    from spinf_stream.kernels.head import triton as head

    for weight in products(executor.stack):
        gate = product_gate(weight, executor.fast_accum)
        if not gate.passed and weight.dtype == FP8:
            log.warning("%s differs by %g: our own kernel takes it over", gate.name, gate.worst)
            executor.own_products([(weight.shape[0], weight.shape[1])])
            gate = product_gate(weight, executor.fast_accum, own=True)
        yield gate
    vocab = executor.stack.spec.vocab
    yield head_gate(executor.stack, executor.ops.candidates, executor.ops.norms, head.blocks_of(vocab), head.BN)
    yield from (trial or Trial(executor)).gates()


def prove(executor: GpuExecutor, folder: Path, say: Callable[[str], object] = log.info) -> bool:
    """Set executor.bit_exact from the record in `folder`, or from the gates, whose outcome is then recorded."""
    path = folder / f"{_key(executor)}.json"
    failed = _failed(path, lambda: every_gate(executor), "bit gates", say, executor)
    if failed:
        log.warning("bit gates failed, outputs say bit_exact: false (%s): %s", path, "; ".join(failed))
    executor.bit_exact = not failed
    return executor.bit_exact


def prove_slots(executor: GpuExecutor, folder: Path, say: Callable[[str], object] = log.info) -> None:
    """Set executor.slot_faults: the gates of decode steps that failed. With any, no slot is extracted here.

    What the gates raise refuses slots until the next start, and nothing else: only what they measured is recorded. Raises
    OutOfMemory and EngineFatal."""
    path = folder / f"{_key(executor)}-slots.json"
    executor.slot_record = None
    try:
        executor.slot_faults = _failed(path, lambda: SlotTrial(executor).gates(), "gates of decode steps", say, executor)
    except (EngineFatal, OutOfMemory):
        raise
    except Exception as e:
        executor.slot_faults = [_ended(e).name]
        log.warning("gates of decode steps could not be run, slots are refused until the next start: %s", executor.slot_faults[0])
        return
    if executor.slot_faults:
        executor.slot_record = path
        log.warning("gates of decode steps failed, slots are refused (%s): %s", path, "; ".join(executor.slot_faults))


def slot_gates(executor: GpuExecutor) -> Iterator[Gate]:
    """What they raise is a gate that failed. Raises OutOfMemory and EngineFatal."""
    try:
        yield from SlotTrial(executor).gates()
    except (EngineFatal, OutOfMemory):
        raise
    except Exception as e:
        yield _ended(e)


def _ended(e: Exception) -> Gate:
    return Gate(f"decode steps run ({type(e).__name__}: {first_line(e)})", math.inf)


def _key(executor: GpuExecutor) -> str:
    return hashlib.sha256(json.dumps([executor.stack.digest, executor.numerics, _driver()], sort_keys=True).encode()).hexdigest()[:32]


def _failed(path: Path, gates: Callable[[], Iterator[Gate]], what: str, say: Callable[[str], object], executor: GpuExecutor) -> list[str]:
    """Names of those that failed, from the record or from running them; the products that our own kernel takes over likewise."""
    try:
        found = json.loads(path.read_bytes())
        failed, own = [str(name) for name in found["failed"]], [(int(n), int(k)) for n, k in found.get("own", ())]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    else:
        executor.own_products(own)
        return failed
    say(f"{what}: not yet passed on this card with this model, running them")
    failed = [g.name for g in gates() if not g.passed]
    try:
        _write(path, {"failed": failed, "own": executor.numerics.get("own products", [])})
    except OSError as e:
        log.warning("the outcome of %s cannot be kept in %s (%s): the next start runs them again", what, path.parent, e.strerror)
    return failed


def _write(path: Path, outcome: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
    with os.fdopen(fd, "w") as out:
        json.dump(outcome, out)
    os.replace(name, path)


def _driver() -> str:
    """Versions that numerics do not name: the driver compiles nothing here, but its library picks cuBLAS's launch plans."""
    with contextlib.suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return str(torch.version.cuda)
