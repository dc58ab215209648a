"""Result files: bench/results/<name>-<machine>.json (DECISIONS 25).

    {machine, command, runs: [{engine, articles, questions, tokens, wall_ms, wall_ms_all, gpu_ms}], ...}

Every key of a run is required; wall_ms is the median of wall_ms_all, gpu_ms is null where there is no GPU.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(os.environ.get("SPINF_BENCH_RESULTS") or Path(__file__).resolve().parent / "results")


class Run(NamedTuple):
    engine: str
    articles: int
    questions: int  # prompts in all
    tokens: int  # rows computed
    wall_ms_all: list[float]
    gpu_ms: float | None

    def row(self) -> dict[str, Any]:
        row = self._asdict()
        row["wall_ms_all"] = [round(w, 2) for w in self.wall_ms_all]
        return {**row, "wall_ms": round(statistics.median(self.wall_ms_all), 2)}


def machine() -> dict[str, Any]:
    """What a reader needs to place the figures."""
    import torch

    out: dict[str, Any] = {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    if torch.cuda.is_available():
        out |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return out


def write_result(name: str, report: dict[str, Any] | None = None, runs: list[Run] = []) -> Path:  # noqa: B006
    """Write and return the file. `report` adds top-level keys of the bench's own."""
    where = machine()
    label = re.sub(r"[^a-z0-9]+", "-", str(where.get("gpu") or f"cpu{where['cores']}").lower()).strip("-")
    command = "python " + shlex.join([f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    whole = {"machine": where, "command": command, "runs": [r.row() for r in runs], **(report or {})}
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}-{label}.json"
    path.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    return path


def _cpu() -> str:
    try:
        return next(line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
