"""The packs that a worker asks: settings + catalog -> packs bound to their context, and their exchange while it runs.

Packs whose text around the content is the same, byte for byte, share a trunk; every other pack has a trunk of its own, so
adding a pack changes no question of another one (W25).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from spinf_stream.config import PackEntry
from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import Pack, Scalar
from spinf_stream.packs.problems import PackError, Problem
from spinf_stream.packs.sources import Catalog
from spinf_stream.questions.compile import Source


class Active(NamedTuple):
    """One pack in one context. `models` in `activate` decide whether its evaluator judges."""

    pack: Pack
    context: str
    parameters: dict[str, Scalar]  # from the settings; an article's own win
    evaluator: Evaluator
    entry: PackEntry  # of the settings

    def presentation(self, article: dict[str, Scalar] | None) -> tuple[str, str]:
        """Text before and after this article's content. Raises ParameterError."""
        return self.pack.presentation(self.context, self.pack.declared(self.parameters, article))

    def source(self) -> Source:
        """What the question compiler asks for."""
        return Source(self.pack.doc["scoring"], "$.scoring", self.pack.id, self.context, case_insensitive=False)


class Reload(NamedTuple):
    active: list[Active]
    changed: bool
    kept: list[str]  # one line for each pack that could not be loaded, and what was done about it


def activate(entry: PackEntry, catalog: Catalog, models: Collection[str] | None) -> Active:
    """Raises PackError: unknown pack, version, context or parameter, a fault in the file, or a value for none."""
    pack = catalog.load(entry.id, entry.version)
    context = pack.default_context if entry.context is None else entry.context
    unknown = entry.parameters.keys() - pack.parameters.keys()
    if unknown:
        raise PackError(pack.label, [Problem("$.parameters", f"has no parameter {min(unknown)!r}")])
    if context not in pack.contexts:
        raise PackError(pack.label, [Problem("$.contexts", f"has no context {context!r}; it has {', '.join(pack.contexts)}")])
    return Active(pack, context, dict(entry.parameters), Evaluator(pack, context, models), entry)


def activate_all(entries: Iterable[PackEntry], catalog: Catalog, models: Collection[str] | None) -> list[Active]:
    """In the order of the settings. Raises PackError with the faults of all of them."""
    out: list[Active] = []
    problems: list[Problem] = []
    for entry in entries:
        try:
            new = activate(entry, catalog, models)
        except PackError as e:
            problems += [p._replace(path=f"{e.where} {p.path}") for p in e.problems]
            continue
        if any((a.pack.id, a.context) == (new.pack.id, new.context) for a in out):
            problems.append(Problem(new.pack.label, f"is listed twice with the context {new.context!r}"))
        out.append(new)
    if problems:
        raise PackError("packs", problems)
    return out


def reload(old: list[Active], entries: Iterable[PackEntry], catalog: Catalog, models: Collection[str] | None) -> Reload:
    """As activate_all for a running worker: a pack that fails keeps its old self, a new pack that fails stays out."""
    out: list[Active] = []
    kept: list[str] = []
    for entry in entries:
        try:
            new = activate(entry, catalog, models)
        except (PackError, OSError) as e:
            before = [a for a in old if a.entry == entry]
            out += before
            kept.append(f"{e}; " + (f"{before[0].pack.label} stays" if before else "it is not asked"))
            continue
        if any((a.pack.id, a.context) == (new.pack.id, new.context) for a in out):
            kept.append(f"{new.pack.label} is listed twice with the context {new.context!r}: asked once")
            continue
        out.append(new)
    changed = [(a.pack.digest, a.context, a.parameters) for a in old] != [(a.pack.digest, a.context, a.parameters) for a in out]
    return Reload(out, changed, kept)

