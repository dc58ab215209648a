"""Who imports and reads what: the Kafka client has one home, imports are declared and pinned, a clone stands alone."""

from __future__ import annotations

import ast
import importlib.metadata as md
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOT

PACKAGE = ROOT / "spinf_stream"


def imports(folder: Path) -> Iterator[tuple[Path, str]]:
    """(file, dotted name) of every absolute import, wherever it stands in the file."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield file, node.module


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_kafka_client_is_imported_in_one_folder_alone() -> None:
    """It can be exchanged there."""
    home = PACKAGE / "stream" / "kafka"
    users = {file for file, name in imports(PACKAGE) if name.split(".")[0] == "aiokafka"}
    assert users and {file for file in users if home not in file.parents} == set()


def test_what_is_imported_is_declared_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    declared = {normal(re.match(r"[\w.-]+", d)[0]) for d in wanted}  # type: ignore[index]
    pinned = {normal(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    by_module = md.packages_distributions()
    used = {name.split(".")[0] for _, name in imports(PACKAGE)} - set(sys.stdlib_module_names) - {"spinf_stream"}
    used_dists = {module: {normal(d) for d in by_module.get(module, [])} for module in used}
    assert {m for m, dists in used_dists.items() if not dists & declared} == set()
    assert {d for m in used for d in used_dists[m] & declared if d not in pinned} == set()


def test_no_test_reads_what_lies_beside_the_checkout() -> None:
    """A clone stands alone: real articles are for the benches, which take --data and --job."""
    beside = re.compile(rb"""\.\./[s]hared|["'][s]hared["'] */|/ *f?["'][s]hared\b|/work/[s]hared|ROOT\.parent""")
    files = [f for f in (ROOT / "tests").rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    assert len(files) > 100 and [f.name for f in files if beside.search(f.read_bytes())] == []
