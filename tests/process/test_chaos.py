"""`make chaos`, asserted: every kind of fault once, in both guarantees (chaos.py says what is promised)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).with_name("chaos.py")


@pytest.mark.kafka
@pytest.mark.parametrize("more", [["--delivery", "exactly_once"], ["--delivery", "at_least_once", "--equal"]], ids=["exactly_once", "at_least_once"])
def test_nothing_lost_and_nothing_twice(more: list[str]) -> None:
    done = subprocess.run([sys.executable, str(CHAOS), *more], capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[0])
    assert report["broken"] == [] and report["lost"] == 0
    assert report["records"] >= 1200 and report["poison"] == report["records"] // 100
    assert set(report["faults"]) == {"sigterm", "kill", "zombie", "broker", "redis", "network"}
