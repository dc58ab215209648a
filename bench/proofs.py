"""The bit gates with the seconds of each, and what two processes must agree on."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any


def told(gates: Iterable[Any]) -> list[dict[str, Any]]:
    """Runs them; each is printed as it ends."""
    out = []
    at = time.perf_counter()
    for gate in gates:
        now = time.perf_counter()
        worst = gate.worst if math.isfinite(gate.worst) else str(gate.worst)
        out.append({"gate": gate.name, "worst": worst, "passed": gate.passed, "seconds": round(now - at, 3)})
        print(f"{'ok  ' if gate.passed else 'FAIL'} {now - at:7.2f} s  {gate.name}: {worst}", flush=True)
        at = now
    return out


def prove(executor: Any) -> dict[str, Any]:
    """Sets bit_exact as a worker's start does, without its record. digest: of a small pass, equal in every process."""
    from spinf_stream.engine.gpu.gates import Trial
    from spinf_stream.engine.gpu.proven import every_gate

    began = time.perf_counter()
    trial = Trial(executor)
    gates = told(every_gate(executor, trial))
    executor.bit_exact = all(g["passed"] for g in gates)
    return {"bit_exact": executor.bit_exact, "gates_seconds": round(time.perf_counter() - began, 1), "digest": trial.digest(), "gates": gates}


def digest(executor: Any) -> str:
    """Without the gates."""
    from spinf_stream.engine.gpu.gates import Trial

    return Trial(executor).digest()
