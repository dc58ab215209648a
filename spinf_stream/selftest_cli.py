"""`spinf-stream selftest`: what an article's scores must not depend on, tried on this machine with this model.

On a GPU every difference must be zero; elsewhere 1e-5 of a log-probability's size (of 1 where it is above -1): random
tokens score around -20, where float32 itself steps by 2e-6. Plain bfloat16 promises 2e-2. Exit code 1 when a gate fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
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
    print(f"{model.stack.name} ({model.stack.scheme}) on {where}, {short(fingerprint(executor, model.encoder.digest))}")
    began, failed = time.monotonic(), 0
    for gate in gates(executor, trial):
        failed += not report(gate)
    if not args.one_process:
        same = second_process() == hashlib.sha256(trial.digest().encode()).hexdigest()
        print(f"{'ok  ' if same else 'FAIL'}  a second process gives the same bits", flush=True)
        failed += not same
    print(f"{failed} failed, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


def trial_of(executor: Executor) -> Trial:
    from spinf_stream.engine.gpu.executor import GpuExecutor
    from spinf_stream.engine.gpu.gates import Trial

    if isinstance(executor, GpuExecutor) and executor.stream is not None:
        return Trial(executor)
    # the plain executor: the same gates on smaller passes
    return Trial(executor, PROMISE.get(executor.stack.scheme, ROUGH), lengths=(1, 15, 16, 63, 64, 65, 130), others=(1, 3), count=16, common=40)


def gates(executor: Executor, trial: Trial) -> Iterator[Gate]:
    from spinf_stream.engine.gpu.executor import GpuExecutor

    if isinstance(executor, GpuExecutor) and executor.stream is not None:
        from spinf_stream.engine.gpu.proven import every_gate

        return every_gate(executor, trial)
    return trial.gates()


def report(gate: Gate) -> bool:
    print(f"{'ok  ' if gate.passed else 'FAIL'}  {gate.name}: {'the same bits' if gate.worst == 0 else f'{gate.worst:.2e}'}", flush=True)
    return gate.passed


def second_process() -> str:
    """sha256 of what this command prints in a process of its own."""
    env = {**os.environ, _CHILD: "1"}
    done = subprocess.run([sys.executable, "-m", "spinf_stream.cli", *sys.argv[1:]], env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.split()
    return hashlib.sha256((lines[-1] if lines else "").encode()).hexdigest()
