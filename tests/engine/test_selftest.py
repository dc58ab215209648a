"""The self-test says how far it is, and from the second time on how long it takes."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spinf_stream import selftest_cli
from spinf_stream.engine.gpu import proven
from spinf_stream.engine.gpu.gates import Gate


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_knows_the_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(selftest_cli.sys, "stderr", shown)
    now = [100.0]
    monkeypatch.setattr(selftest_cli.time, "monotonic", lambda: now[0])
    first = selftest_cli.Pace(tmp_path / "gates" / "x.pace")
    first.show()
    now[0] += 20
    first.step()
    now[0] += 22
    first.step()
    assert first.end() == 42 and "gate 1, for the first time here" in shown.getvalue() and "gate 2, " in shown.getvalue()
    shown.truncate(0)
    again = selftest_cli.Pace(tmp_path / "gates" / "x.pace")
    now[0] += 5
    again.show()
    assert "gate 1 of 2, about 42 s in all, 5 s so far" in shown.getvalue()
    (tmp_path / "gates" / "x.pace").write_text("{}")
    selftest_cli.Pace(tmp_path / "gates" / "x.pace").show()
    assert shown.getvalue().count("for the first time here") == 1


def test_nothing_but_the_gates_goes_into_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = io.StringIO()
    monkeypatch.setattr(selftest_cli.sys, "stderr", silent)
    pace = selftest_cli.Pace(tmp_path / "x.pace")
    pace.show()
    pace.step()
    pace.end()
    assert silent.getvalue() == "" and selftest_cli.clear() == ""


def test_gates_whose_outcome_cannot_be_kept_have_run_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "gates").write_bytes(b"in the way")
    executor: Any = SimpleNamespace(numerics={}, own_products=lambda shapes: None)
    gates = lambda: iter([Gate("good", 0.0), Gate("bad", 1.0)])  # noqa: E731
    assert proven._failed(tmp_path / "gates" / "x.json", gates, "bit gates", lambda line: None, executor) == ["bad"]
    assert "cannot be kept" in caplog.text
    (tmp_path / "gates").unlink()
    assert proven._failed(tmp_path / "gates" / "x.json", gates, "bit gates", lambda line: None, executor) == ["bad"]
    assert proven._failed(tmp_path / "gates" / "x.json", lambda: iter(()), "bit gates", lambda line: None, executor) == ["bad"], "as recorded"
