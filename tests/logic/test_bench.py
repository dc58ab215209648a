"""Benches run by hand, on machines that CI has not: what they import exists, and the engines of a card run here on a tiny
model and the naive kernels."""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from tiny import make_tiny

FOLDERS = ("bench", "compose")
sys.path += [str(ROOT / folder) for folder in FOLDERS]


def imported(file: Path) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of what is imported from this project, wherever it stands in the file."""
    ours = {"spinf_stream", *(f.stem for f in file.parent.glob("*.py"))}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module and node.module.split(".")[0] in ours:
            yield from ((node.lineno, node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names if alias.name.split(".")[0] in ours)


def exists(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
        if name and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as e:
        if not (e.name or "").startswith("spinf_stream") and e.name != module:
            raise  # something else that it needs is not installed
        return False
    return True


@pytest.mark.parametrize("file", [f for folder in FOLDERS for f in sorted((ROOT / folder).glob("*.py"))], ids=lambda f: f.name)
def test_every_name_that_is_imported_exists(file: Path) -> None:
    assert [(line, module, name) for line, module, name in imported(file) if not exists(module, name)] == []


def test_a_missing_name_is_found(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from spinf_stream.engine.open import floors_of\n    from spinf_stream.engine import open\n")
    assert [n for _, m, n in imported(file) if not exists(m, n)] == ["floors_of"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the engines of a card share, on a CPU."""
    from spinf_stream.engine.gpu.executor import GpuExecutor
    from spinf_stream.engine.weights import load

    folder = tmp_path_factory.mktemp("bench")
    stack, encoder = load(str(make_tiny(folder / "tiny", "gemma4")), "float32", "cpu", folder / "cache")
    return {"folder": folder, "report": {}, "executor-12b": (GpuExecutor(stack, encoder.starts_alnum()), encoder)}


def test_engines_of_a_card_run(shared: dict) -> None:
    import gpu_engines
    import numpy as np
    from job import made_up

    job = made_up(2, 3, 12)
    args = argparse.Namespace(gates=False, compact=False, seconds=0.3)
    answers = {}
    for name in ("ours-12b", "ours-12b-cold", "ours-12b-stream"):
        answers[name], rows, *_ = gpu_engines.REGISTRY[name](job, args, shared)()
        assert answers[name].shape == (2, 6) and rows > 0, name
    assert np.isfinite(answers["ours-12b"]).all()
    for other in answers.values():
        np.testing.assert_allclose(other, answers["ours-12b"], atol=1e-5)
    assert shared["report"]["stream"]["jobs"] > 0
