"""The Scorer of real questions on a real model: articles to trees, a pass's numbers to answers."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from spinf_stream.config import Settings
from spinf_stream.engine import answers, content
from spinf_stream.engine.asks import Ask, Merged, merge
from spinf_stream.engine.fingerprint import short
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.scorer import Prepared, Tree
from spinf_stream.engine.seam import PassInput, PassOutput
from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.packs.problems import ParameterError
from spinf_stream.questions.readout import Read, read_out
from spinf_stream.records import Answer, Article, Refused, Tokens, now
from spinf_stream.slots.build import Vocabularies
from spinf_stream.slots.candidates import joined

LEAST = 16  # content tokens that a budget must leave room for
LONGEST_PARAMETER = 1000  # characters


class ArticleScorer:
    """Implements scorer.Scorer. Thread-safe: what changes after construction is a memo of merged plans under a lock."""

    def __init__(self, engine: PackedEngine, encoder: Encoder, asks: Sequence[Ask], settings: Settings, fingerprint: str) -> None:
        self.engine, self.encoder, self.asks, self.settings = engine, encoder, tuple(asks), settings
        self.model = engine.executor.stack.name
        self.fingerprint_full = fingerprint
        self.fingerprint = short(fingerprint)
        self.questions_digest = asked_digest(self.asks)
        self.questions_by_pack: dict[str, int] = {}
        for a in self.asks:  # a pack may be asked in several contexts
            self.questions_by_pack[a.name] = self.questions_by_pack.get(a.name, 0) + a.questions.plan.prompts
        self.questions = sum(self.questions_by_pack.values())
        self._declared = {p for a in self.asks if a.pack is not None for p in a.pack.pack.parameters}
        self._words = Vocabularies(encoder, engine.executor.stack.spec.eos) if any(a.questions.slots for a in self.asks) else None
        self._merged: dict[tuple[int, ...], int] = {}  # chosen asks -> registered plan
        self._of_plan: dict[int, Merged] = {}
        self._lock = threading.Lock()
        self._registered: list[int] = []
        weakref.finalize(self, engine.forget, self._registered).atexit = False  # once nothing that it prepared is in flight

    def prepare(self, article: Article) -> Prepared:
        text = content.assemble(article, self.settings.content)
        groups = self._groups(article.parameters)
        limits = [self.limit(plan) for plan in groups.values()]
        trees: list[Tree] = []
        truncated = False
        warnings: set[str] = set()
        if article.parameters and not self._declared.issuperset(article.parameters):
            warnings.add("unknown_parameters")  # no pack here takes them; another worker's may
        trunks = [
            content.Around(tuple([s.ask for s in self._of_plan[plan].shares]), *around, limit) for (around, plan), limit in zip(groups.items(), limits)
        ]
        digest = content.digest(text, trunks, self.settings.overlong, *warnings)
        cost = 0
        for (around, plan), limit in zip(groups.items(), limits):
            if limit < min(LEAST, self.settings.max_content_tokens):
                raise Refused("too_long", f"token_budget = {self.engine.first_budget} leaves {limit} tokens for the content beside the questions")
            cut = content.tokenise(self.encoder, text, around, limit)
            if len(cut.ids) <= len(self.encoder.bos):
                raise Refused("empty", "the content has no token")
            if cut.truncated and self.settings.overlong == "reject":
                raise Refused("too_long", f"the content has more than {limit} tokens (overlong = reject)")
            truncated |= cut.truncated
            for share in self._of_plan[plan].shares:
                if self.asks[share.ask].questions.joins_differ(self.encoder, cut.tail):
                    warnings.add("join_differs")
            ids, slots = np.array(cut.ids, np.int32), self._of_plan[plan].slots
            trees.append(Tree(ids, plan) if slots is None else Tree(ids, plan, cut.read, tuple(slots.copies(cut.read))))
            cost += self.engine.cost(len(cut.ids), plan)
        tokens = sum(len(t.ids) - len(self.encoder.bos) for t in trees)
        return Prepared(self.questions_digest, digest, tuple(trees), cost, tokens, truncated, cost > self.engine.budget, tuple(sorted(warnings)), self)

    def limit(self, plan: int) -> int:
        """Content tokens that a trunk may have: the setting, and under `solo` nothing else; otherwise what leaves a quarter
        of the budget, or all its branches if they are fewer, or its longest path, beside it."""
        if self.settings.overlong == "solo":
            return self.settings.max_content_tokens
        p = self._of_plan[plan].plan
        beside = min(p.nodes, max(int(p.depth.max(initial=0)) + 1, self.engine.first_budget // 4))
        return min(self.settings.max_content_tokens, self.engine.first_budget - beside - len(self.encoder.bos))

    def pack(self, items: Sequence[Prepared]) -> PassInput:
        trees = [t for item in items for t in item.trees]
        start = np.zeros(len(trees) + 1, np.int64)
        np.cumsum([len(t.ids) for t in trees], out=start[1:])
        plans = np.array([t.plan for t in trees], np.int32)
        return PassInput(np.concatenate([t.ids for t in trees]), start, plans, joined([t.copies for t in trees]))

    def answers(self, items: Sequence[Prepared], output: PassOutput) -> list[Answer]:
        at, stamp = 0, now()
        out: list[Answer] = []
        for item in items:
            reads: dict[int, Read] = {}
            slots: dict[int, list[dict[str, Any]]] = {}
            rows = 0
            for tree, numbers in zip(item.trees, output.trees[at : at + len(item.trees)]):
                merged = self._of_plan[tree.plan]
                read = read_out(merged.plan, numbers.cand, numbers.end)
                reads.update({share.ask: share.of(read) for share in merged.shares})
                if merged.slots is not None and numbers.slots is not None:
                    said = merged.slots.record(numbers.slots, tree.read)
                    slots.update({share.ask: said[share.slot] for share in merged.shares})
                    rows += numbers.slots.rows
            at += len(item.trees)
            every = range(len(self.asks))
            out.append(self._answer(item, [reads[i] for i in every], [s for i in every for s in slots.get(i, ())], rows, stamp))
        return out

    def _answer(self, item: Prepared, reads: list[Read], slots: list[dict[str, Any]], rows: int, stamp: str) -> Answer:
        pairs = list(zip(self.asks, reads))
        return Answer(
            scores=answers.compact(self.asks, reads)
            if self.settings.scores_format == "compact"
            else [q for ask, read in pairs for q in answers.full(ask, read)],
            slots=slots,
            packs=[ask.pack.evaluator.evaluate(read.p, read.logprob) for ask, read in pairs if ask.pack is not None],
            tokens=Tokens(item.content_tokens, sum(self._of_plan[t.plan].plan.nodes for t in item.trees), 0, rows),
            truncated=item.truncated,
            warnings=list(item.warnings),
            scored_at=stamp,
            questions_digest=self.questions_digest,
        )

    def _groups(self, given: dict[str, str | int | float | bool] | None) -> dict[tuple[str, str], int]:
        """Presentation -> registered plan of the asks that have it, in the order of the asks."""
        chosen: dict[tuple[str, str], list[int]] = {}
        for name, value in (given or {}).items():
            if len(str(value)) > LONGEST_PARAMETER:
                raise Refused("bad_parameters", f"$.parameters.{name[:64]} has {len(str(value))} characters, at most {LONGEST_PARAMETER}")
        try:
            for i, ask in enumerate(self.asks):
                chosen.setdefault(ask.presentation(given), []).append(i)
        except ParameterError as e:
            raise Refused("bad_parameters", str(e)) from None
        return {around: self.plan_of(tuple(asks)) for around, asks in chosen.items()}

    def plan_of(self, chosen: tuple[int, ...]) -> int:
        """The registered plan of these asks below one trunk."""
        with self._lock:
            if chosen not in self._merged:
                merged = merge(self.asks, chosen, self._words)
                index = self.engine.register(merged.plan, merged.slots.plan if merged.slots else None)
                self._registered.append(index)
                self._of_plan[index] = merged
                self._merged[chosen] = index
            return self._merged[chosen]


def asked_digest(asks: Sequence[Ask]) -> str:
    """64 hex: a question file's own; with packs over all sets and whole pack files, since an answer holds their decisions."""
    if len(asks) == 1 and asks[0].pack is None:
        return asks[0].questions.digest
    parts = [(a.questions.digest, *((a.pack.pack.digest, a.pack.context, str(a.pack.evaluator.judges)) if a.pack else ())) for a in asks]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
