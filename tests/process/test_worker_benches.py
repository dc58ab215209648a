"""The two benches that drain a worker run here too, on a tiny model and the embedded broker: on a card there is no time to find
out that they do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from tiny import make_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    make_tiny(folder / "tiny", "gemma4")
    questions = [{"id": "q", "template": "\n\nIs it sport?{?}", "options": [" yes", " no"]}]
    articles = [{"id": str(n), "text": f"The world of sport {n}"} for n in range(3)]
    (folder / "job.json").write_text(json.dumps({"articles": articles, "questions": questions}))
    return folder


def run(folder: Path, script: str, *args: str) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SPINF_BENCH_RESULTS": str(folder / "results"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "bench" / script), "--model", str(folder / "tiny"), "--job", str(folder / "job.json"), *args]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout[done.stdout.index("{\n") :])


def test_the_worker_in_the_bench_s_own_process(folder: Path) -> None:
    found = run(folder, "worker_gpu.py", "--articles", "40")
    assert found["articles"] == 40 and found["exit"] == 0 and found["scores_different_from_score_file"] == 0
    assert 0 < found["busy_seconds"] <= 1.001 * found["seconds"] and found["tokens"] > 0
    assert 0 <= found["gpu_idle_by_metrics"]["spinf_stream_engine_busy_ratio"] <= 1.001


def test_the_worker_by_its_own_command(folder: Path) -> None:
    found = run(folder, "worker_process.py", "--articles", "40", "--compare", "7", "--timeout", "90")
    assert found["exit"] == 0 and found["compared"] == 7 and found["scores_different_from_score_file"] == 0 and found["bit_exact"] == [False]
