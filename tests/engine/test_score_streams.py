"""`score`: the standard streams, an output file, and the progress on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from tiny import make_tiny

LINES = b"".join(json.dumps({"id": f"a{i}", "text": f"article {i} about the world " * 9}).encode() + b"\r\n\n" for i in range(9))
IDS = [f"a{i}" for i in range(9)]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("score")
    (folder / "q.json").write_text(json.dumps({"queries": [{"id": "s", "template": "\n\nSection:{?}", "options": [" sport", " politics"]}]}))
    flags = {"model": make_tiny(folder / "tiny"), "questions": folder / "q.json", "cache-dir": folder / "cache", "token-budget": 300}
    return [sys.executable, "-m", "spinf_stream.cli", "score", *(a for k, v in flags.items() for a in (f"--{k}", str(v)))]


def ids(lines: bytes) -> list[str]:
    return [json.loads(line)["id"] for line in lines.splitlines()]


def test_from_standard_input_to_standard_output(command: list[str]) -> None:
    done = subprocess.run([*command, "-"], input=LINES, capture_output=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0 and ids(done.stdout) == IDS, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["origin"]["topic"] == "stdin"
    assert b"9 articles, 9 questions" in done.stderr and b"articles/s" not in done.stderr and b"\r" not in done.stderr
    named = subprocess.run([*command, "-", "--out", "-", "--quiet"], input=LINES, capture_output=True, cwd=ROOT, timeout=120)
    assert named.returncode == 0 and ids(named.stdout) == IDS and named.stderr == b""


def test_a_terminal_shows_a_bar_that_ends_full(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINES)
    ours, theirs = pty.openpty()
    asked = [*command, str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out.jsonl")]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # its end, on Linux
            pass
        assert process.stdout and process.stdout.read() == b""
    os.close(ours)
    assert process.returncode == 0 and ids((tmp_path / "out.jsonl").read_bytes()) == IDS
    shown = [(len(bar), int(share)) for bar, share in re.findall(r"\[(#*)\.*\] +(\d+) %", said.decode())]
    assert len(shown) >= 3 and shown == sorted(shown) and shown[0][1] < 100 and shown[-1] == (24, 100), said
