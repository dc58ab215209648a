"""What a folder of packs holds: by its manifest `prompt-packs.json`, or by looking at its JSON files.

Nothing outside the folder is ever opened: names are joined, resolved through links, and must still lie inside.
A fault in one pack's entry costs that pack alone; the folder's other packs stay usable.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from spinf_stream.packs.document import parse, read_bytes
from spinf_stream.packs.file import Pack, load
from spinf_stream.packs.problems import Checker, PackError, Problem, step
from spinf_stream.packs.validate import MEDIA, PACK_ID, VERSION

MANIFEST = "prompt-packs.json"
STATUS = ("available", "deprecated", "coming_soon")
MOST_FILES = 10_000
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]*")


class Version(NamedTuple):
    """One version of one pack, as listed. `media` and `parameters` are the manifest's, None where it has none."""

    id: str
    version: str
    model: str
    status: str
    path: Path
    source: str
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    media: tuple[str, ...] | None = None
    parameters: tuple[str, ...] | None = None


class Listing(NamedTuple):
    source: str
    versions: list[Version]  # in listed order, coming_soon left out
    problems: list[Problem]


def confined(root: Path, name: str) -> Path:
    """The path of `name` inside `root`. Raises ValueError when it leads outside, by `..`, a root or a link (W31)."""
    parts = PurePosixPath(name).parts
    if not parts or "\\" in name or "\0" in name or PurePosixPath(name).is_absolute() or ".." in parts:
        raise ValueError("leads outside the folder")
    path = root.joinpath(*parts).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError("leads outside the folder through a link")
    return path


def open_version(version: Version) -> Pack:
    """Load a listed pack and check that the file is what its listing says. Raises PackError."""
    pack = load(version.path)
    check = Checker()
    for key, listed, got in (
        ("pack", version.id, pack.id), ("version", version.version, pack.version), ("model", version.model, pack.model),
    ):  # fmt: skip
        if listed != got:
            check.error(step("$", key), f"is {got!r}, but the listing of {version.source} says {listed!r}")
    if version.media is not None and set(version.media) != set(pack.doc.get("media", ["text"])):
        check.error("$.media", f"differs from the listing of {version.source}")
    if version.parameters is not None and set(version.parameters) != set(pack.parameters):
        check.error("$.parameters", f"have other names than in the listing of {version.source}")
    if check.errors:
        raise PackError(str(version.path), check.problems)
    return pack


def list_folder(root: Path, source: str) -> Listing:
    """Raises PackError when the folder or its manifest cannot be read at all."""
    if not root.is_dir():
        raise PackError(source, [Problem("$", f"{root} is not a folder")])
    if (root / MANIFEST).exists():
        return _by_manifest(root, source)
    return _by_looking(root, source)


def list_file(path: Path, source: str) -> Listing:
    """A source that is one pack file."""
    doc = parse(read_bytes(path), str(path))
    version = _from_doc(doc, path, source)
    if version is None:
        raise PackError(str(path), [Problem("$", "is not a pack: it needs pack, version and scoring")])
    return Listing(source, [version], [])


def _by_manifest(root: Path, source: str) -> Listing:
    where = str(root / MANIFEST)
    doc = parse(read_bytes(confined(root, MANIFEST)), where)
    check = Checker()
    if doc.get("format") != 1 or isinstance(doc.get("format"), bool):
        check.error("$.format", "must be 1")
        raise PackError(where, check.problems)
    namespace = check.text(doc, "namespace", "$", required=True, pattern=_NAMESPACE)
    out: list[Version] = []
    ids: set[str] = set()
    for i, raw in enumerate(check.items(doc.get("packs"), "$.packs", empty=True) or ()):
        at = step("$.packs", i)
        entry = check.table(raw, at)
        name = None if entry is None else check.text(entry, "id", at, required=True, pattern=PACK_ID)
        if entry is None or name is None or namespace is None:
            continue
        if not name.startswith(namespace + "/"):
            check.error(step(at, "id"), f"must start with {namespace}/")
        elif name in ids:
            check.error(step(at, "id"), "stands in the manifest already")
        else:
            ids.add(name)
            out += _pack_entry(check, root, source, name, entry, at)
    return Listing(source, out, check.problems)


def _pack_entry(check: Checker, root: Path, source: str, name: str, entry: dict[str, Any], at: str) -> list[Version]:
    before = check.errors
    title = check.text(entry, "name", at, required=True)
    description = check.text(entry, "description", at)
    tags = _texts(check, entry, "tags", at)
    media = _texts(check, entry, "media", at) if "media" in entry else ("text",)
    if any(m not in MEDIA for m in media):
        check.error(step(at, "media"), f"must be of {', '.join(MEDIA)}")
    parameters = _texts(check, entry, "parameters", at)
    for key in ("readme", "samples"):
        _file(check, root, entry, key, at)
    rows = check.items(entry.get("versions"), step(at, "versions")) or []
    if check.errors > before:
        return []
    out: list[Version] = []
    for i, raw in enumerate(rows):
        here = step(step(at, "versions"), i)
        row = check.table(raw, here)
        if row is None:
            continue
        version = check.text(row, "version", here, required=True, pattern=VERSION)
        model = check.text(row, "model", here)
        status = check.text(row, "status", here, one_of=STATUS) or "available"
        soon = status == "coming_soon"
        if not soon:
            check.text(row, "file", here, required=True)
        path = _file(check, root, row, "file", here, soon)
        _file(check, root, row, "fixture", here)
        if version is not None and any(v.version == version for v in out):
            check.error(step(here, "version"), "stands in the list already")
        elif version is not None and path is not None and not soon:
            out.append(Version(name, version, model or "", status, path, source, title or "", description or "", tags, media, parameters))
    return out


def _file(check: Checker, root: Path, of: dict[str, Any], key: str, at: str, may_miss: bool = False) -> Path | None:
    name = check.text(of, key, at)
    if name is None:
        return None
    try:
        path = confined(root, name)
        if path.exists() or may_miss:
            return path
        check.error(step(at, key), "names a file that is not there")
    except (ValueError, OSError) as e:
        check.error(step(at, key), str(e))
    return None


def _texts(check: Checker, of: dict[str, Any], key: str, at: str) -> tuple[str, ...]:
    items = check.items(of[key], step(at, key), empty=True) or [] if key in of else []
    for i, item in enumerate(items):
        if not isinstance(item, str):
            check.error(step(step(at, key), i), "must be a string")
    return tuple(i for i in items if isinstance(i, str))


def _by_looking(root: Path, source: str) -> Listing:
    """Every pack among the folder's JSON files, newest version first."""
    out: list[Version] = []
    problems: list[Problem] = []
    paths = sorted(p for p, _ in zip(root.rglob("*.json"), range(MOST_FILES)))
    for path in paths:
        name = path.relative_to(root).as_posix()
        try:
            inside = confined(root, name)
            if not inside.is_file():
                continue
            with open(inside, "rb") as f:
                if b'"pack"' not in f.read(4096):
                    continue
            version = _from_doc(parse(read_bytes(inside), name), inside, source)
        except PackError as e:
            problems += [Problem(name, f"{p.path}: {p.message}") for p in e.problems]
            continue
        except (ValueError, OSError) as e:
            problems.append(Problem(name, getattr(e, "strerror", None) or str(e)))
            continue
        if version is not None:
            out.append(version)
    out.sort(key=lambda v: newness(v.version), reverse=True)
    return Listing(source, out, problems)


def _from_doc(doc: dict[str, Any], path: Path, source: str) -> Version | None:
    if "scoring" not in doc or not all(isinstance(doc.get(k), str) for k in ("pack", "version")):
        return None
    model = doc.get("model")
    return Version(doc["pack"], doc["version"], model if isinstance(model, str) else "", "available", path, source)


def newness(version: str) -> tuple[tuple[int, int, str], ...]:
    """Order of versions: parts between . + - compared as numbers where both are numbers, and a number beats a word."""
    return tuple((1, int(p), "") if p.isascii() and p.isdigit() and len(p) < 19 else (0, 0, p) for p in re.split(r"[.+-]", version))


