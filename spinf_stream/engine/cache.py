"""Converted models on disk: <cache>/models/<name>-<digest>/.

A folder appears whole or not at all (written aside, renamed), once for all processes (a file lock), and is checked
when it is used: small files by digest, the weights by size, header and a sample of blocks; `verify` reads all of it.
A folder that fails is converted again. Safetensors and JSON only.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock
from safetensors import safe_open

from spinf_stream import config
from spinf_stream.engine import safefile, sources
from spinf_stream.engine.checkpoint import read_json
from spinf_stream.engine.convert import FORMAT, Progress, convert
from spinf_stream.engine.models import ModelError

log = logging.getLogger(__name__)


class Cached(NamedTuple):
    folder: Path
    meta: dict[str, Any]  # meta.json: name, origin, family, parameters, stored, files {name: {size, sha256}}

    @property
    def digest(self) -> str:
        """sha256 (hex) of model.safetensors, recorded when it was written."""
        return str(self.meta["files"]["model.safetensors"]["sha256"])

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(f["size"] for f in self.meta["files"].values())


def models_folder(cache: Path | None = None) -> Path:
    return (cache or config.load().settings.cache()) / "models"


def fetch(name: str, cache: Path | None = None, progress: Progress | None = None) -> Cached:
    """The converted folder of a model, converting it when it is missing or broken. Safe against other processes.

    `progress` gets (stage, bytes done, bytes in all). Raises ModelError (also Unsupported, ModelAway).
    """
    source = sources.find(name)
    home = models_folder(cache)
    folder = home / source.label
    if entry := usable(folder):
        return entry
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f"{source.label}.lock"):
            # another process may have been faster
            return usable(folder) or Cached(folder, _convert(source, folder, progress or (lambda stage, done, total: None)))
    except ModelError as e:
        raise type(e)(f"model {name!r}: {e}") from None
    except OSError as e:
        raise ModelError(f"model {name!r} cannot be converted into {home}: {e}") from None


def cached(cache: Path | None = None) -> list[Cached]:
    """Every converted model, broken ones left out (and logged)."""
    home = models_folder(cache)
    folders = sorted(p for p in home.iterdir() if p.is_dir() and p.name[0] != ".") if home.is_dir() else []
    return [entry for entry in map(usable, folders) if entry]


def usable(folder: Path) -> Cached | None:
    """The folder if it is whole, as far as a quick look can tell; None, with the reason logged, if it is not."""
    if not folder.is_dir():
        return None
    try:
        meta = read_json(folder / "meta.json")
        if meta["format"] != FORMAT:
            raise ValueError(f"it has format {meta['format']!r}, this version writes {FORMAT}")
        for file, recorded in meta["files"].items():
            path = folder / file
            if path.stat().st_size != recorded["size"]:
                raise ValueError(f"{file} has {path.stat().st_size} bytes, recorded {recorded['size']}")
            if "sample" not in recorded and safefile.sha256(path) != recorded["sha256"]:
                raise ValueError(f"{file} is not what was written")
            if "sample" in recorded and safefile.sample(path) != recorded["sample"]:
                raise ValueError(f"{file} is not what was written")
        with safe_open(str(folder / "model.safetensors"), "pt") as f:
            if (f.metadata() or {}).get("config_sha256") != meta["files"]["config.json"]["sha256"]:
                raise ValueError("model.safetensors and config.json do not belong together")
    except Exception as e:  # whatever is wrong with it, the answer is to make it again
        log.warning("converted model %s cannot be used (%s); it is made again when asked for", folder, e)
        return None
    return Cached(folder, meta)


def verify(entry: Cached, progress: Progress | None = None) -> list[str]:
    """Read every byte; what is wrong, a line each, empty when all digests are the recorded ones."""
    done, wrong = 0, []

    def read(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress("checking", done, entry.size)

    for file, recorded in entry.meta["files"].items():
        try:
            found = safefile.sha256(entry.folder / file, read)
        except OSError as e:
            wrong.append(f"{file}: {e.strerror}")
            continue
        if found != recorded["sha256"]:
            wrong.append(f"{file}: sha256 {found}, recorded {recorded['sha256']}")
    return wrong


def discard(entry: Cached) -> None:
    """Make a damaged folder unusable, so that it is converted again at its next use."""
    (entry.folder / "meta.json").unlink(missing_ok=True)


def _convert(source: sources.Source, folder: Path, progress: Progress) -> dict[str, Any]:
    """Make the folder, under its lock: whatever else of its name lies about was left by a process that was killed."""
    for left in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(left, ignore_errors=True)
    work = folder.parent / f".{folder.name}.{os.getpid()}"
    work.mkdir()
    try:
        progress("reading the checkpoint", 0, 1)
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=work) as scratch:
            meta = convert(source.open(Path(scratch)), source.name, source.origin, work, progress)
        if folder.exists():  # broken; a process that has mapped it keeps what it has
            os.rename(folder, folder.parent / f".{folder.name}.old")
        os.rename(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(folder.parent / f".{folder.name}.old", ignore_errors=True)
    return meta
