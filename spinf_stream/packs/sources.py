"""Where packs come from, and the catalog over all of them.

    official                      the packs of this installation
    ./folder or ./pack.json       yours
    github:owner/repo@ref#path    pinned to a commit and cached (github.py)

A source that fails costs its own packs, never a start: the fault is kept, and told when one of its packs is asked for.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import spinf_stream
from spinf_stream.packs.file import Pack
from spinf_stream.packs.github import Github, parse_spec
from spinf_stream.packs.manifest import Listing, Version, confined, list_file, list_folder, open_version
from spinf_stream.packs.problems import PackError, Problem

OFFICIAL = "official"
OFFICIAL_NAMESPACE = "spinf-stream/"  # nobody else's source may offer packs under our name
RESERVED = f"names under {OFFICIAL_NAMESPACE} belong to the official packs"
_TOLD = 5  # problems in one message


class Source(NamedTuple):
    listing: Listing
    commit: str | None = None
    note: str | None = None  # such as: a branch, held at its commit


class Fault(NamedTuple):
    source: str
    id: str | None  # of the pack, where the fault is one pack's
    problem: Problem


class Catalog:
    """All versions of all sources, official first, in listed order."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.sources = list(sources)
        self._faults: list[Fault] = [Fault(s.listing.source, None, p) for s in self.sources for p in s.listing.problems]
        self._versions: dict[str, list[Version]] = {}
        self._conflicts: dict[str, str] = {}
        for source in self.sources:
            for v in source.listing.versions:
                self._add(v)

    def _add(self, v: Version) -> None:
        if v.id.startswith(OFFICIAL_NAMESPACE) and v.source != OFFICIAL:
            self._faults.append(Fault(v.source, v.id, Problem(v.id, f"{RESERVED}: left out; give it another id (`spinf-stream calibrate --id`)")))
            return
        known = self._versions.setdefault(v.id, [])
        if known and known[0].source != v.source:
            self._conflicts[v.id] = f"comes from two sources, {known[0].source} and {v.source}: keep one"
        elif any(k.version == v.version for k in known):
            self._conflicts[v.id] = f"has version {v.version} twice in {v.source}: keep one"
        else:
            known.append(v)
            return
        self._faults.append(Fault(v.source, v.id, Problem(v.id, self._conflicts[v.id])))

    @property
    def problems(self) -> list[Problem]:
        return [f.problem._replace(path=f"{f.source} {f.problem.path}") for f in self._faults]

    def concerning(self, names: Iterable[str]) -> list[str]:
        """Lines on what may make a pack another one than its user thinks: what was left out under its name, and what could
        not be read in the source that it comes from, a newer version of it perhaps."""
        wanted = {self.full(n) for n in names}
        froms = {v.source for name in wanted for v in self._versions.get(name, ())}
        found = [str(p) for f, p in zip(self._faults, self.problems) if (f.id in wanted if f.id else f.source in froms)]
        return found[:_TOLD] + ([f"and {len(found) - _TOLD} more: `spinf-stream packs list` shows them"] if len(found) > _TOLD else [])

    @property
    def versions(self) -> list[Version]:
        return [v for versions in self._versions.values() for v in versions]

    def full(self, name: str) -> str:
        """`news` may stand for spinf-stream/news, unless somebody's own pack is called so."""
        official = OFFICIAL_NAMESPACE + name
        return official if name not in self._versions and official in self._versions else name

    def find(self, name: str, version: str | None = None) -> Version:
        """Without a version: the first that is available, else the first. Raises PackError."""
        name = self.full(name)
        if name in self._conflicts:
            raise PackError(name, [Problem("$.pack", self._conflicts[name])])
        found = self._versions.get(name)
        if not found:
            where = ", ".join(s.listing.source for s in self.sources) or "no source"
            failed = "".join(f"; {p}" for p in self.problems[:5])
            near = difflib.get_close_matches(name, self._versions, 1)
            hint = f": did you mean {near[0]}?" if near else "; `spinf-stream packs list` shows what is"
            raise PackError(name, [Problem("$.pack", f"is in none of the sources ({where}){hint}{failed}")])
        if version is None:
            return next((v for v in found if v.status == "available"), found[0])
        for v in found:
            if v.version == version:
                return v
        raise PackError(name, [Problem("$.version", f"{version} is not there; there is {', '.join(v.version for v in found)}")])

    def load(self, name: str, version: str | None = None) -> Pack:
        return open_version(self.find(name, version))


class InHand(Catalog):
    """Of one pack that is loaded already, under whatever id: what is calibrated is the pack itself, not its namesake."""

    def __init__(self, pack: Pack) -> None:
        super().__init__([])
        self._pack = pack

    def load(self, name: str, version: str | None = None) -> Pack:
        assert (name, version) == (self._pack.id, self._pack.version)
        return self._pack


def reserved(pack: Pack, path: Path) -> Problem | None:
    """What a file has against it that is a pack of ours by its id alone."""
    if not pack.id.startswith(OFFICIAL_NAMESPACE) or path.resolve().is_relative_to(official_folder().resolve()):
        return None
    return Problem("$.pack", f"{RESERVED}: no worker takes this file, give it another id", "note")


def official_folder() -> Path:
    return Path(spinf_stream.__file__).parent / "official_packs"


def open_catalog(specs: Iterable[str], cache: Path, refresh: bool = False, github: Github | None = None) -> Catalog:
    """The official packs and the given sources. A source that fails is empty, its fault among the catalog's problems."""
    sources = []
    hub = github or Github(cache / "packs", token=os.environ.get("GITHUB_TOKEN"))
    for spec in dict.fromkeys((OFFICIAL, *specs)):
        try:
            sources.append(_open(spec, hub, refresh))
        except PackError as e:
            sources.append(Source(Listing(spec, [], e.problems)))
        except OSError as e:
            sources.append(Source(Listing(spec, [], [Problem("$", e.strerror or type(e).__name__)])))
    return Catalog(sources)


def _open(spec: str, hub: Github, refresh: bool) -> Source:
    if spec == OFFICIAL:
        return Source(list_folder(official_folder(), OFFICIAL))
    if spec.startswith("github:"):
        wanted = parse_spec(spec)
        got = hub.open(wanted, refresh)
        try:
            root = confined(got.root, wanted.path) if wanted.path else got.root
        except ValueError as e:
            raise PackError(spec, [Problem("$", str(e))]) from None
        note = f"a branch, held at {got.commit[:12]} until refreshed: name a tag or a commit instead" if got.moving else None
        return Source(list_folder(root, spec), got.commit, note)
    path = Path(spec).expanduser()
    return Source(list_file(path, spec) if path.is_file() else list_folder(path, spec))
