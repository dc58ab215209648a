"""A Scorer whose questions are exchanged while it runs; what was prepared is answered by those that prepared it.

    reload: sources and the question file read anew -> changed sets compiled, missing floors in a pass -> one assignment

Articles from before the exchange keep their questions to the end, in the same passes as those after it: the plans of both
are registered with one engine. A set that is unchanged stays the same object, with its bits and floors. Whatever cannot be
loaded keeps its old self, with a line that says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

from spinf_stream.config import Settings
from spinf_stream.engine.asks import Ask
from spinf_stream.engine.open import Ground, ask_of, open_asks, open_questions, pack_questions, scorer_of, warn_of
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.scorer import Prepared, Reloaded, RunPass
from spinf_stream.engine.seam import PassInput, PassOutput
from spinf_stream.errors import UsageError
from spinf_stream.packs import active
from spinf_stream.packs.active import Active
from spinf_stream.packs.sources import open_catalog
from spinf_stream.records import Answer, Article

log = logging.getLogger(__name__)


class LiveScorer:
    """Implements scorer.Scorer and Reloadable by whichever ArticleScorer is `now`. Thread-safe; one reload at a time."""

    def __init__(self, ground: Ground, asks: Sequence[Ask]) -> None:
        self._ground = ground
        self.now = scorer_of(ground, asks)
        self.engine: PackedEngine = ground.engine
        self.model, self.fingerprint, self.fingerprint_full = self.now.model, self.now.fingerprint, self.now.fingerprint_full

    @property
    def asks(self) -> tuple[Ask, ...]:
        return self.now.asks

    @property
    def questions_digest(self) -> str:
        return self.now.questions_digest

    @property
    def questions(self) -> int:
        return self.now.questions

    @property
    def questions_by_pack(self) -> dict[str, int]:
        return self.now.questions_by_pack

    def prepare(self, article: Article) -> Prepared:
        return self.now.prepare(article)

    def pack(self, items: Sequence[Prepared]) -> PassInput:
        return self.now.pack(items)  # trees name plans of the engine, whoever registered them

    def answers(self, items: Sequence[Prepared], output: PassOutput) -> list[Answer]:
        out: list[Answer] = []
        at = 0
        for by, group in groupby(items, key=lambda i: i.by or self.now):
            same = list(group)
            trees = sum(len(i.trees) for i in same)
            out += by.answers(same, output._replace(trees=output.trees[at : at + trees]))
            at += trees
        return out

    def reload(self, run: RunPass) -> Reloaded:
        """Read everything anew and exchange what changed. `run` runs a pass beside those in flight.

        Raises what `run` raises; nothing is exchanged then.
        """
        ground, s, old = self._ground, self._ground.settings, self.now.asks
        asks: list[Ask] = []
        kept: list[str] = []

        def add(before: Ask | None, make: Callable[[], Ask]) -> None:
            try:
                asks.append(make())
            except UsageError as e:
                kept.append(f"{e}; " + ("what was asked before stays" if before else "it is not asked"))
                if before:
                    asks.append(before)

        if s.questions:
            file = next(a for a in old if a.pack is None)
            add(file, lambda: self._file(file, run))
        before = [a.pack for a in old if a.pack]
        catalog = open_catalog(s.pack_sources, s.cache())
        found = active.reload(before, s.packs, catalog, {self.model})
        warn_of(catalog, s)
        kept += found.kept
        for pack in found.active:
            same = next((a for a in old if a.pack and a.pack.entry == pack.entry), None)
            add(same, partial(self._pack, same, pack, run))
        if [id(a) for a in asks] == [id(a) for a in old]:
            return Reloaded(False, kept)
        if not asks:
            return Reloaded(False, [*kept, "nothing would be asked; everything stays as it was"])
        try:
            self.now = scorer_of(ground, asks)
        except UsageError as e:
            return Reloaded(False, [*kept, f"{e}; everything stays as it was"])
        return Reloaded(True, kept)

    def _file(self, before: Ask, run: RunPass) -> Ask:
        questions = open_questions(self._ground)
        return before if questions.digest == before.questions.digest else ask_of(self._ground, questions, None, run)

    def _pack(self, before: Ask | None, pack: Active, run: RunPass) -> Ask:
        if before and before.pack and (before.pack.pack.digest, before.pack.parameters) == (pack.pack.digest, pack.parameters):
            return before
        if pack.evaluator.warning:
            log.warning("pack %s: %s", pack.pack.label, pack.evaluator.warning)
        return ask_of(self._ground, pack_questions(self._ground, pack), pack, run)


def open_live(settings: Settings, *, progress: bool = False) -> LiveScorer:
    return LiveScorer(*open_asks(settings, progress=progress))
