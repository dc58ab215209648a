"""`spinf-stream selftest`: what an article's scores must not depend on, tried on this machine with this model.

On a GPU every difference must be zero; elsewhere 1e-5 of a log-probability's size (of 1 where it is above -1): random
tokens score around -20, where float32 itself steps by 2e-6. Plain bfloat16 promises 2e-2. Exit code 1 when a gate fails.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spinf_stream.settings_cli import MODEL, add_settings, loaded

if TYPE_CHECKING:
    from spinf_stream.engine.executor import Executor
    from spinf_stream.engine.gpu.gates import Gate, Trial

PROMISE = {"fp32": 1e-5}  # of the plain executor, by scheme
ROUGH = 2e-2
_CHILD = "SPINF_STREAM_SELFTEST_CHILD"  # set in the second process: print the digest and nothing else


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--one-process", action="store_true", help="skip the gate that starts a second process")
    add_settings(parser, MODEL)


def run(args: argparse.Namespace) -> int:
    from spinf_stream.engine.fingerprint import fingerprint, short
    from spinf_stream.engine.open import open_executor, open_model

    child = os.environ.pop(_CHILD, None) is not None
    settings = loaded(args).settings
    model = open_model(settings, lambda line: None)
    executor = open_executor(settings, model)
    trial = trial_of(executor)
    if child:
        print(trial.digest())
        return 0
    where = executor.numerics["device"]
    full = fingerprint(executor, model.encoder.digest)
    print(f"{model.stack.name} ({model.stack.scheme}) on {where}, {short(full)}", flush=True)
    pace, failed = Pace(settings.cache() / "gates" / f"{full[:32]}.pace"), 0
    pace.show()
    for gate in gates(executor, trial):
        failed += not report(gate)
        pace.step()
    if (graphs := graphs_of(executor)) is not None:
        print(f"{clear()}{graphs} CUDA graphs of decode steps captured", flush=True)
    if not args.one_process:
        same = second_process() == hashlib.sha256(trial.digest().encode()).hexdigest()
        print(f"{clear()}{'ok  ' if same else 'FAIL'}  a second process gives the same bits", flush=True)
        failed += not same
        pace.step()
    print(f"{failed} failed, {pace.end():.1f} s")
    return 1 if failed else 0


class Pace:
    """How far it is, on a terminal's standard error; what the last run took tells how long this one will."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began, self._done = time.monotonic(), 0
        try:
            gates, seconds = json.loads(path.read_bytes())
            self._known = f" of {int(gates)}, about {float(seconds):.0f} s in all"
        except (OSError, ValueError, TypeError):
            self._known = ", for the first time here: some are longer than others"

    def step(self) -> None:
        self._done += 1
        self.show()

    def show(self) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[Kgate {self._done + 1}{self._known}, {time.monotonic() - self._began:.0f} s so far\r", end="", file=sys.stderr, flush=True)

    def end(self) -> float:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        seconds = time.monotonic() - self._began
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps([self._done, seconds]))
        return seconds


def trial_of(executor: Executor) -> Trial:
    from spinf_stream.engine.gpu.executor import GpuExecutor
    from spinf_stream.engine.gpu.gates import Trial

    if isinstance(executor, GpuExecutor) and executor.stream is not None:
        return Trial(executor)
    # the plain executor: the same gates on smaller passes
    return Trial(executor, PROMISE.get(executor.stack.scheme, ROUGH), lengths=(1, 15, 16, 63, 64, 65, 130), others=(1, 3), count=16, common=40)


def gates(executor: Executor, trial: Trial) -> Iterator[Gate]:
    from spinf_stream.engine.gpu.executor import GpuExecutor
    from spinf_stream.engine.gpu.slot_gates import SlotTrial
    from spinf_stream.engine.grow import Grower

    if isinstance(executor, GpuExecutor) and executor.stream is not None:
        from spinf_stream.engine.gpu.proven import every_gate, slot_gates

        yield from every_gate(executor, trial)
        yield from slot_gates(executor)
    else:
        yield from trial.gates()
        if isinstance(executor, Grower):
            yield from SlotTrial(executor, trial.tolerance, lengths=(1, 40), count=8).gates()


def graphs_of(executor: Executor) -> int | None:
    """None where there are none to capture: that decode steps are replayed shows nowhere else."""
    from spinf_stream.engine.gpu.executor import GpuExecutor

    return len(executor.grower.captured) if isinstance(executor, GpuExecutor) and executor.stream is not None else None


def report(gate: Gate) -> bool:
    print(f"{clear()}{'ok  ' if gate.passed else 'FAIL'}  {gate.name}: {'the same bits' if gate.worst == 0 else f'{gate.worst:.2e}'}", flush=True)
    return gate.passed


def clear() -> str:
    """What takes the progress line away, where both are shown on one terminal."""
    return "\r\033[K" if sys.stdout.isatty() and sys.stderr.isatty() else ""


def second_process() -> str:
    """sha256 of what this command prints in a process of its own."""
    env = {**os.environ, _CHILD: "1"}
    done = subprocess.run([sys.executable, "-m", "spinf_stream.cli", *sys.argv[1:]], env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.split()
    return hashlib.sha256((lines[-1] if lines else "").encode()).hexdigest()
