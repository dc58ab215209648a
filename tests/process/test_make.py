"""`make test`, with programs in place of Python that say what they were asked and end as told."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

PROGRAM = """#!/bin/sh
echo "{name} $*" >> "{log}"
case "$*" in tests/requirements.py) exit 0;; esac
exit {code}
"""


def made(tmp_path: Path, **codes: int) -> tuple[int, list[str], str]:
    """Exit code, what ran in its order, and what was printed; `codes` ends a program otherwise than well."""
    checkout, log = tmp_path / "checkout", tmp_path / "log"
    (checkout / "kernels").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "kernels/requirements.txt"):
        shutil.copy(ROOT / name, checkout / name)
    for venv in ("suite", "interpreted"):
        (checkout / venv / "bin").mkdir(parents=True)
        for program in ("python", "ruff", "mypy"):
            file = checkout / venv / "bin" / program
            file.write_text(PROGRAM.format(name=f"{venv}/{program}", log=log, code=codes.get(venv if program == "python" else program, 0)))
            file.chmod(0o755)
    for venv in ("suite", "interpreted"):
        (checkout / venv / ".installed").touch()  # last, so that nothing is older than what it came from
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "test", "VENV=suite", "KERNELS=interpreted"], cwd=checkout, env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, log.read_text().splitlines(), done.stdout


def test_lint_then_the_suite_then_the_kernels(tmp_path: Path) -> None:
    code, ran, said = made(tmp_path)
    assert code == 0 and "the suite ended with 0, the kernels with 0" in said
    assert ran == [
        "suite/python tests/requirements.py",
        "suite/ruff check .",
        "suite/mypy ",
        "suite/python -m pytest -m not cuda --durations=15",
        "interpreted/python -m pytest -m not cuda tests/kernels",
    ]


@pytest.mark.parametrize(("codes", "said"), [({"suite": 1}, "suite ended with 1, the kernels with 0"), ({"interpreted": 5}, "suite ended with 0, the kernels with 5")])
def test_either_fails_the_run_and_both_are_run(tmp_path: Path, codes: dict[str, int], said: str) -> None:
    code, ran, printed = made(tmp_path, **codes)
    assert code != 0 and said in printed
    assert [line.split()[0] for line in ran if "pytest" in line] == ["suite/python", "interpreted/python"]


def test_lint_comes_before_what_takes_minutes(tmp_path: Path) -> None:
    code, ran, _ = made(tmp_path, mypy=1)
    assert code != 0 and not any("pytest" in line for line in ran)
