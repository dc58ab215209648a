"""Packs from GitHub: a reference is resolved once to a commit, the commit fetched once, and both kept.

    github:owner/repo@ref#path --refs.json--> commit --archive--> cache/github/owner/repo/<commit>/

A worker that has both needs no network to start. Tags and branches alike stay at the commit first seen until they are
refreshed by hand, so a restart never changes a question. Sizes are capped while reading, only text files that packs need
are written, under names that stay inside, and what lies in the cache is checked against the digests taken at the fetch.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import json
import os
import re
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from spinf_stream import __version__
from spinf_stream.packs.document import LARGEST_FILE
from spinf_stream.packs.problems import PackError, Problem

API = "https://api.github.com"
LARGEST_ARCHIVE = 64 * 2**20
LARGEST_UNPACKED = 256 * 2**20  # of the whole stream, so a small bomb stops early
LARGEST_KEPT = 128 * 2**20
MOST_MEMBERS = 20_000
SECONDS = 120
KEPT = (".json", ".jsonl", ".md", ".txt")
_SPEC = re.compile(
    r"github:(?P<owner>[A-Za-z0-9][A-Za-z0-9-]{0,38})/(?P<repo>[A-Za-z0-9._-]{1,100})"
    r"(?:@(?P<ref>[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}))?(?:#(?P<path>[^#\\\0]{1,400}))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Away(PackError):
    """The source cannot be reached, and the cache does not have it."""


class Spec(NamedTuple):
    owner: str
    repo: str
    ref: str | None  # None = the default branch
    path: str  # folder inside the repository, "" = its root


class Pinned(NamedTuple):
    root: Path  # the repository's files; the spec's path lies below
    commit: str
    moving: bool  # the reference is a branch


def parse_spec(text: str) -> Spec:
    """Raises PackError for anything that is not github:owner/repo[@ref][#path]."""
    m = _SPEC.fullmatch(text)
    if m is None or m["repo"] in (".", "..") or ".." in (m["ref"] or "") or ".." in PurePosixPath(m["path"] or "").parts:
        raise PackError(text, [Problem("$", "is not github:owner/repo@ref#path")])
    return Spec(m["owner"], m["repo"], m["ref"], (m["path"] or "").strip("/"))


class Github:
    """`cache` is a folder of ours; `api` another server of the same interface. A token is sent to `api` alone."""

    def __init__(self, cache: Path, api: str = API, token: str | None = None) -> None:
        self.cache = cache
        self.api = api.rstrip("/")
        self.token = token
        handlers: list[urllib.request.BaseHandler] = [
            urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(),
            _SameScheme(), urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(),
        ]  # fmt: skip
        self._opener = urllib.request.OpenerDirector()
        for h in handlers:
            self._opener.add_handler(h)

    def open(self, spec: Spec, refresh: bool = False) -> Pinned:
        """Raises Away without network and cache, PackError for what is there but cannot be used."""
        home = self.cache / "github" / spec.owner.lower() / spec.repo.lower()
        commit, moving = self._commit(spec, home, refresh)
        root = home / commit
        if not intact(root):
            if root.exists():
                shutil.rmtree(root)
            self._fetch(spec, commit, root)
        return Pinned(root, commit, moving)

    def _commit(self, spec: Spec, home: Path, refresh: bool) -> tuple[str, bool]:
        if spec.ref is not None and _COMMIT.fullmatch(spec.ref):
            return spec.ref, False
        refs = _read_json(home / "refs.json")
        name = spec.ref or "HEAD"
        known = refs.get(name)
        if isinstance(known, dict) and _COMMIT.fullmatch(str(known.get("commit"))) and not refresh:
            return known["commit"], bool(known.get("moving"))
        # GitHub reads tags/NAME and heads/NAME here; a tag wins over a branch of the same name
        for place, moving in ((f"tags/{name}", False), (f"heads/{name}", True)) if spec.ref else (("HEAD", True),):
            url = f"{self.api}/repos/{spec.owner}/{spec.repo}/commits/{urllib.parse.quote(place)}"
            answer = self._get(url, "application/vnd.github.sha", 4096, spec, missing_ok=True)
            if answer is None:
                continue
            commit = answer.read().decode("ascii", "replace").strip()
            if not _COMMIT.fullmatch(commit):
                raise PackError(_name(spec), [Problem("$", "the server's answer is not a commit")])
            refs[name] = {"commit": commit, "moving": moving, "seen": int(time.time())}
            home.mkdir(parents=True, exist_ok=True)
            _write(home / "refs.json", json.dumps(refs, indent=1).encode())
            return commit, moving
        raise PackError(_name(spec), [Problem("$", f"has no tag or branch {name!r}")])

    def _fetch(self, spec: Spec, commit: str, root: Path) -> None:
        url = f"{self.api}/repos/{spec.owner}/{spec.repo}/tarball/{commit}"
        archive = self._get(url, "application/vnd.github+json", LARGEST_ARCHIVE, spec)
        assert archive is not None
        root.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=root.parent))
        try:
            unpack(archive, part, commit, _name(spec))
            with contextlib.suppress(OSError):  # another process was faster: its copy is as good, and checked
                part.rename(root)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        if not intact(root):
            raise PackError(_name(spec), [Problem("$", f"{root} could not be written")])

    def _get(self, url: str, accept: str, most: int, spec: Spec, missing_ok: bool = False) -> IO[bytes] | None:
        request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": f"spinf-stream/{__version__}"})
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        body = tempfile.SpooledTemporaryFile(2**20)  # noqa: SIM115, the caller reads it
        deadline = time.monotonic() + SECONDS
        try:
            with self._opener.open(request, timeout=30) as answer:
                size = 0
                while block := answer.read(2**16):
                    size += len(block)
                    if size > most:
                        raise PackError(_name(spec), [Problem("$", f"the server sends more than {most >> 20} MiB")])
                    if time.monotonic() > deadline:
                        raise Away(_name(spec), [Problem("$", f"the server did not finish within {SECONDS} s")])
                    body.write(block)
        except urllib.error.HTTPError as e:
            if missing_ok and e.code in (404, 422):
                return None
            hint = ": set GITHUB_TOKEN for a private repository or a higher rate limit" if e.code in (401, 403, 404, 429) else ""
            raise Away(_name(spec), [Problem("$", f"the server answers {e.code}{hint}")]) from None
        except (OSError, http.client.HTTPException) as e:
            why = getattr(e, "reason", None) or e
            raise Away(_name(spec), [Problem("$", f"is not in the cache, and the server cannot be reached ({why})")]) from None
        body.seek(0)
        return body


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Redirects may not leave https."""

    def redirect_request(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urllib.parse.urlsplit(newurl).scheme != req.type:
            raise urllib.error.URLError("a redirect leaves " + str(req.type))
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Capped(gzip.GzipFile):
    """A gzip stream that ends in an error past LARGEST_UNPACKED."""

    seen = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(2**16 if size is None or size < 0 else size)
        self.seen += len(data)
        if self.seen > LARGEST_UNPACKED:
            raise ValueError("unpacks to more than is allowed")
        return data


def unpack(archive: IO[bytes], into: Path, commit: str, name: str) -> None:
    """Write the archive's text files below `into`, with their digests in .files.json. Raises PackError."""
    digests: dict[str, str] = {}
    kept = 0
    try:
        with tarfile.open(fileobj=_Capped(fileobj=archive, mode="rb"), mode="r|") as tar:
            for n, member in enumerate(tar):
                if n >= MOST_MEMBERS:
                    raise ValueError("holds too many files")
                # the archive's first folder is owner-repo-commit
                parts = PurePosixPath(member.name).parts[1:]
                if not member.isreg() or not parts or not parts[-1].endswith(KEPT) or member.size > LARGEST_FILE:
                    continue
                path = "/".join(parts)
                if ".." in parts or "\\" in path or member.name.startswith("/") or path in digests or parts[0] == ".files.json":
                    raise ValueError("holds a file name that is not allowed")
                kept += member.size
                if kept > LARGEST_KEPT:
                    raise ValueError("holds more text than is allowed")
                source = tar.extractfile(member)
                assert source is not None
                data = source.read()
                target = into.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                digests[path] = hashlib.sha256(data).hexdigest()
            # git writes the commit into the archive's first header
            if tar.pax_headers.get("comment", commit) != commit:
                raise ValueError("is of another commit")
            if not digests:
                raise ValueError("holds no file that a pack could be in")
    except (ValueError, EOFError, OSError, tarfile.TarError, zlib.error) as e:
        message = str(e) if isinstance(e, ValueError) and str(e) else f"cannot be unpacked ({type(e).__name__})"
        raise PackError(name, [Problem("$", f"the archive {message}")]) from None
    (into / ".files.json").write_text(json.dumps(digests, indent=1), "utf-8")


def intact(root: Path) -> bool:
    """All files of a cached commit are there, unchanged, and no other beside them."""
    listed = _read_json(root / ".files.json")
    if not listed:
        return False
    found = {p.relative_to(root).as_posix() for p in root.rglob("*") if not p.is_dir() or p.is_symlink()} - {".files.json"}
    if found != set(listed):
        return False
    return all(not (root / n).is_symlink() and hashlib.sha256((root / n).read_bytes()).hexdigest() == d for n, d in listed.items())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)


def _name(spec: Spec) -> str:
    return f"github:{spec.owner}/{spec.repo}" + (f"@{spec.ref}" if spec.ref else "")
