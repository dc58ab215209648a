"""`spinf-stream demo` as a newcomer runs it: a table, duplicates without a pass, and nothing left however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import services
import tiny

from spinf_stream import demo
from spinf_stream.cli import main
from spinf_stream.demo_broker import binary

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path):
    """Starts a demo whose temporary files, and so its children's command lines, lie under tmp_path."""
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "tmp").mkdir()

    def run(*more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "spinf_stream.cli", "demo", *more]
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPINF_STREAM_")}
        env |= {"TMPDIR": str(tmp_path / "tmp"), "COLUMNS": "120"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, preexec_fn=services.hear_ctrl_c
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """A tiny random model: the way of a record is the same, the answers mean nothing."""
    tiny.make_tiny(tmp_path / "model")
    questions = [
        {"id": "section", "template": "\n\nSection:{?}", "options": [" sport", " politics", " business", " tech"]},
        {"id": "about", "template": "\n\nAbout {what}?{?}", "options": [" yes", " no"], "combinations": "all", "values": {"what": ["a", "b", "c"]}},
    ]
    (tmp_path / "q.json").write_text(json.dumps({"queries": questions}))
    return ["--model", str(tmp_path / "model"), "--cache-dir", str(tmp_path / "cache"), "--questions", str(tmp_path / "q.json")]


def children(process: subprocess.Popen[str]) -> list[int]:
    """The broker and the worker of a demo, found by their parent."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == process.pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_table_then_duplicates_then_nothing(start: Run, small: list[str], tmp_path: Path) -> None:
    process = start(*small)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    blocks = [b for b in out.split("\n\n") if b.startswith(("\ndemo-", "demo-"))]
    assert [b.split()[0] for b in blocks] == sorted(json.loads(line)["id"] for line in sample_lines())
    for block in blocks:
        rows = block.strip().splitlines()[1:]
        assert len(rows) == 4
        for row in rows:
            numbers = re.search(r" (\d\.\d{3}) +(\S+) +([\d.]+)x", row)
            assert numbers is not None, row
            p, floor, lift = (float(n) for n in numbers.groups())
            assert 0 <= p <= 1
            assert lift == pytest.approx(p / floor, rel=0.02, abs=0.02)
    assert re.search(r"first +8 articles, 32 questions, \d+ tokens, [1-9]\d* passes in ", err)
    assert re.search(r"again +8 of 8 are duplicates, 0 passes in ", err)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_everything(start: Run, small: list[str], tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(*small)
    services.wait_until(lambda: len(workers(process)) == 2, 30, "broker and worker")
    pids = children(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=40)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert out == ""
    assert not [pid for pid in pids if alive(pid)]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_kill_leaves_no_process(start: Run, small: list[str]) -> None:
    process = start(*small)
    services.wait_until(lambda: len(workers(process)) == 2, 30, "broker and worker")
    pids = children(process)
    process.kill()
    process.wait()
    services.wait_until(lambda: not [pid for pid in pids if alive(pid)], 10, "the end of the demo's children")


def workers(process: subprocess.Popen[str]) -> list[int]:
    """Children without the watchdogs."""
    return [pid for pid in children(process) if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sh\0")]


def test_a_worker_that_fails_is_shown_in_one_line(start: Run, tmp_path: Path) -> None:
    (tmp_path / "q.toml").write_text('[[queries]]\nid = "q"\ntemplate = "no slot"\noptions = [" a"]\n')
    tiny.make_tiny(tmp_path / "model")
    process = start("--questions", str(tmp_path / "q.toml"), "--model", str(tmp_path / "model"), "--cache-dir", str(tmp_path / "cache"))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("spinf-stream demo: the worker ended with 2: ")
    assert "has no slot" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"text":"a"}\n{"text":5}\n', "line 2: schema"), ("\n", "no articles"), (None, "No such file")],
)
def test_articles_of_your_own_are_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str) -> None:
    file = tmp_path / "mine.jsonl"
    if text is not None:
        file.write_text(text)
    assert main(["demo", "--articles", str(file)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_the_broker_is_the_one_in_the_wheel() -> None:
    assert subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout.startswith("tansu")


def sample_lines() -> list[str]:
    return (demo.SAMPLES / "articles.jsonl").read_text("utf-8").splitlines()


def test_the_samples_are_news_of_120_to_250_words() -> None:
    articles = [json.loads(line) for line in sample_lines()]
    assert len({a["id"] for a in articles}) == len(articles) == 8
    assert len({a["meta"]["expected_section"] for a in articles}) >= 5
    for article in articles:
        assert 120 <= len(article["text"].split()) <= 250, article["id"]


@pytest.mark.model
def test_the_real_model_knows_what_the_articles_are_about(start: Run) -> None:
    """About 3,000 tokens. The option that the article raises most is the section that a person would choose."""
    began = time.monotonic()
    process = start()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    right = 0
    for line in sample_lines():
        article = json.loads(line)
        block = out.split(f"\n{article['id']} ", 1)[1].split("\n\n", 1)[0]
        row = next(row for row in block.splitlines() if row.strip().startswith("section"))
        answer = row.split("raised most: ")[1].split()[0] if "raised most" in row else row.split()[1]
        right += answer in article["meta"]["expected_section"].split(", ")
    assert right == 8, err
    assert time.monotonic() - began < 180, "the demo promises 3 minutes on 2 cores"
