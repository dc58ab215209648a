"""From the slot queries of question sets to what the engine decodes and what the records say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.engine.seam import Found
from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.questions.questionset import SlotQuery
from spinf_stream.slots import answers, candidates
from spinf_stream.slots.automaton import Automaton, of_numbers, of_text, vocabulary
from spinf_stream.slots.candidates import Entry
from spinf_stream.slots.plan import How, Sampling, Slot, SlotPlan

SAMPLED_TOP_K = 40  # where the query does not say


class Vocabularies:
    """Automata of one model, each made once: they compare by identity. Made when the first slot asks."""

    def __init__(self, encoder: Encoder, eos: Sequence[int]) -> None:
        self.encoder = encoder
        self.words = vocabulary(encoder, eos)
        self.forms = candidates.spaced(self.words)
        self._automata: dict[tuple[str, str], Automaton] = {}

    def automaton(self, query: SlotQuery) -> Automaton:
        key = (query.kind, query.stop)
        if key not in self._automata:
            made = of_text(query.stop, self.words) if query.kind == "*" else of_numbers(query.kind, self.words)  # type: ignore[arg-type]
            self._automata[key] = made
        return self._automata[key]


class Place(NamedTuple):
    """One prompt of one slot query, and where its endings lie."""

    query: int
    prompt: int
    slot: int


class SlotSet:
    """The slots of several question sets below one trunk."""

    def __init__(self, queries: Sequence[SlotQuery], words: Vocabularies) -> None:
        self.queries, self.words = tuple(queries), words
        automata: dict[int, Automaton] = {}
        slots: list[Slot] = []
        self.places: list[Place] = []
        self.bare: list[bool] = []
        for i, q in enumerate(self.queries):
            automaton = words.automaton(q)
            automata.setdefault(id(automaton), automaton)
            which = list(automata).index(id(automaton))
            for prompt, tokens in enumerate(q.tokens):
                self.places.append(Place(i, prompt, len(slots)))
                self.bare.append(candidates.bare(words.encoder.decode(tokens)))
                slots.append(Slot(np.array(tokens, np.int32), _how(q), which, q.max_tokens, _sampling(q)))
        self.plan = SlotPlan(tuple(slots), tuple(automata.values()))

    @property
    def tokens(self) -> int:
        """Of the templates: what every article decodes at least."""
        return sum(len(s.template) for s in self.plan.slots)

    def copies(self, content: str) -> list[tuple[int, Entry]]:
        """(slot, entry) of the copy-only ones. Equal entries are made once."""
        of = answers.Content(content)
        made: dict[tuple[str, bool], Entry] = {}
        out: list[tuple[int, Entry]] = []
        for place in self.places:
            q = self.queries[place.query]
            if q.mode != "copy_only":
                continue
            key = (q.kind, self.bare[place.slot])
            if key not in made:
                made[key] = self._entry(of, *key)
            out.append((place.slot, made[key]))
        return out

    def _entry(self, of: answers.Content, kind: str, bare: bool) -> Entry:
        encoder, words = self.words.encoder, self.words.words
        if kind == "*":
            return candidates.of_text(of.text, encoder, words, self.words.forms, bare)
        return candidates.of_numbers(of.spans(kind), kind, encoder, words, bare)  # type: ignore[arg-type]

    def record(self, found: Found, content: str) -> list[dict[str, Any]]:
        """The slots of a scores record, in the order of the queries."""
        of, decode = answers.Content(content), self.words.encoder.decode
        combinations: list[list[dict[str, Any]]] = [[] for _ in self.queries]
        for place in self.places:
            ended = answers.endings(found, place.slot)
            combinations[place.query].append(answers.combination(self.queries[place.query], place.prompt, ended, decode, of))
        return [answers.record(q, c) for q, c in zip(self.queries, combinations)]


def _how(q: SlotQuery) -> How:
    if q.generate is not None:
        return "generate"
    if q.mode == "copy_only":
        return "copy_text" if q.kind == "*" else "copy_numbers"
    return "search"


def _sampling(q: SlotQuery) -> Sampling | None:
    g = q.generate
    if g is None:
        return None
    top_k = g.top_k if g.top_k is not None else SAMPLED_TOP_K if g.temperature > 0 else 1
    return Sampling(g.temperature, g.top_p, top_k, g.seed, g.n)
