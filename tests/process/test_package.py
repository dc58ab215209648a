"""A checkout, an editable install and a wheel hold the same package, and a wheel holds nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

LOOK = """
import pathlib, sys
import spinf_stream, spinf_stream.kernels, spinf_stream.cli
from spinf_stream import demo
home = pathlib.Path(spinf_stream.__file__).parent
packs = home / "official_packs"
print(home.resolve())
print(pathlib.Path(spinf_stream.kernels.__file__).exists(), packs.is_dir(), (demo.SAMPLES / "questions.toml").is_file())
print(sorted(str(f.relative_to(packs)) for f in packs.rglob("*.json")))
print(sorted(str(f.relative_to(home)) for f in (home / "kernels").rglob("*.py")))
"""


def look(*path: Path, cwd: Path) -> list[str]:
    """What a fresh interpreter finds, with only `path` before site-packages."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    env["PYTHONPATH"] = os.pathsep.join(map(str, path))
    done = subprocess.run([sys.executable, "-c", LOOK], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the files that git knows or would add, so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        file = ROOT / name
        if name and (file.is_symlink() or file.is_file()):
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(os.readlink(file)) if file.is_symlink() else target.write_bytes(file.read_bytes())
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = folder.glob("*.whl")
    return built


def test_a_wheel_holds_spinf_stream_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert len(tops) == 2
    assert {"spinf_stream"} == {top for top in tops if not top.endswith(".dist-info")}
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


def test_a_wheel_holds_every_file_that_the_checkout_has(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("spinf_stream", "kernels", "packs"):
        inside = {"spinf_stream": "spinf_stream", "kernels": "spinf_stream/kernels", "packs": "spinf_stream/official_packs"}[folder]
        for file in (ROOT / folder).rglob("*"):
            wanted = file.suffix == ".py" or (folder == "packs" and file.suffix in (".json", ".md")) or file.parent.name == "samples"
            if file.is_file() and wanted and "__pycache__" not in file.parts:
                assert f"{inside}/{file.relative_to(ROOT / folder)}" in names, file


def test_checkout_editable_and_wheel_find_the_same(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, timeout=120)
    (tmp_path / "elsewhere").mkdir()
    checkout, editable, installed = (
        look(ROOT, cwd=tmp_path / "elsewhere"), look(cwd=tmp_path / "elsewhere"), look(target, cwd=tmp_path / "elsewhere"),
    )  # fmt: skip
    assert checkout[0] == editable[0] == str(ROOT / "spinf_stream")
    assert installed[0] == str(target / "spinf_stream")
    assert checkout[1:] == editable[1:] == installed[1:]
    assert checkout[1] == "True True True"


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("spinf-stream")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("spinf-stream "), done.stderr
