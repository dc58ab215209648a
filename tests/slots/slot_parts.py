"""A tiny model with slots, run through the engine and through the reference."""

from __future__ import annotations

import math

import numpy as np
from tiny import make_tiny

from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.pending import sample_key
from spinf_stream.engine.seam import PassInput
from spinf_stream.engine.torch_executor import TorchExecutor
from spinf_stream.engine.weights import load
from spinf_stream.questions.compile import Source, build
from spinf_stream.questions.spec import Limits
from spinf_stream.slots import reference
from spinf_stream.slots.build import SlotSet, Vocabularies
from spinf_stream.slots.candidates import joined
from spinf_stream.slots.plan import REL_P

TEXTS = (
    "Shares of Wor Ltd rose 5.2% to $1,200.\nThe world of tech spent 3.5 million on sport, said Mr Bill (of business).",
    "politics 10",
    "It sold 12,345 units for US$5m in 2004; the business of sport made a loss of $(1,200), or 10 times 3.\nA word about tech\n" * 3,
)

QUERIES = [
    {"id": "yes", "template": "\n\nIs it sport?{?}", "options": [" yes", " no"]},
    {"id": "text", "template": "\n\nWho:{*}", "max_tokens": 6},
    {"id": "whole", "template": "\n\nSay:{*} the", "max_tokens": 6},
    {"id": "quoted", "template": '\n\nHe said "{*}"', "max_tokens": 4},
    {"id": "number", "template": "\n\nHow many:{n}", "max_tokens": 7},
    {"id": "money", "template": "\n\nPaid: {$}", "max_tokens": 5},
    {"id": "copied", "template": "\n\nNumber:{n}", "mode": "copy_only"},
    {"id": "copied money", "template": "\n\nPaid: {$}", "mode": "copy_only"},
    {"id": "piece", "template": "\n\nName:{*}", "mode": "copy_only", "max_tokens": 9},
]
GENERATED = [
    {"id": "greedy", "template": "\n\nTell:{*}", "generate": {"n": 3}, "max_tokens": 12},
    {"id": "drawn", "template": "\n\nTell:{*} of", "generate": {"temperature": 1.5, "top_k": 20, "n": 3, "seed": 5}, "max_tokens": 12},
    {"id": "nucleus", "template": "\n\nTell: {*}\"", "generate": {"temperature": 0.7, "top_p": 0.6, "n": 2}, "max_tokens": 9},
]
CLOSE = 1e-5  # of one read, in log-probability; a path sums several
LONG = 5e-5  # of a path of any length: what rounding takes from its reads is not all of one sign


class Parts:
    def __init__(self, folder, family, queries):
        self.made(*load(str(make_tiny(folder / family, family)), "float32", "cpu", folder / "cache"), queries)

    def made(self, stack, encoder, queries):
        self.stack, self.encoder = stack, encoder
        self.questions = build([Source({"queries": queries})], self.encoder, Limits(max_slots=40))
        self.words = Vocabularies(self.encoder, self.stack.spec.eos)
        self.slots = SlotSet(self.questions.slots, self.words)
        self.executor = TorchExecutor(self.stack, self.encoder.starts_alnum())
        return self

    def run(self, texts, engine=None):
        """Found of each text."""
        engine = engine or PackedEngine(self.executor, 4000)
        index = engine.register(self.questions.plan, self.slots.plan)
        return engine.collect(engine.submit(self.batch(texts, index)))

    def batch(self, texts, index):
        ids = [self.ids(t) for t in texts]
        start = np.cumsum([0, *map(len, ids)])
        return PassInput(np.concatenate(ids), start, np.full(len(ids), index, np.int32), joined([self.slots.copies(t) for t in texts]))

    def ids(self, text):
        return np.array([*self.encoder.bos, *self.encoder.encode(text)], np.int32)

    def truth(self, text, place):
        """What the reference finds for one slot."""
        query, slot = self.slots.queries[place.query], self.slots.plan.slots[place.slot]
        reader = self.reader = reference.Reader(self.stack, [*self.ids(text).tolist(), *slot.template.tolist()])
        words = self.words.words
        if query.kind == "*":
            rules = reference.text_rules(words, query.stop)
        else:
            rules = reference.number_rules(words, query.kind)
        if slot.how == "search":
            return reference.search(reader, rules, slot.max_tokens)
        if slot.how == "generate":
            return reference.generate(reader, rules, slot.max_tokens, slot.sampling, sample_key(slot, self.ids(text)))
        entry = dict(self.slots.copies(text))[place.slot]
        if slot.how == "copy_text":
            return reference.search(reader, rules, slot.max_tokens, lambda path: pieces(entry, path))
        return reference.copy_numbers(reader, words, query.kind, spellings(self.encoder, entry))


def pieces(entry, path):
    """Tokens that follow this path somewhere in the article."""
    stream, link = entry.token.tolist(), entry.link.tolist()
    for i, first in enumerate(link):
        if first >= 0:
            piece = [first, *stream[i + 1 :]]
            end = piece.index(-1)
            if len(path) < end and piece[: len(path)] == list(path):
                yield piece[len(path)]


def spellings(encoder, entry):
    out, paths = [], {-1: ()}
    for i, (token, link) in enumerate(zip(entry.token.tolist(), entry.link.tolist())):
        paths[i] = (*paths[link], token)
        if entry.ends[i]:
            out.append((encoder.decode(paths[i]), paths[i]))
    return out


def endings(found, slot):
    out = []
    for e in range(int(found.ptr[slot]), int(found.ptr[slot + 1])):
        tokens = tuple(found.token[found.token_ptr[e] : found.token_ptr[e + 1]].tolist())
        out.append((tokens, int(found.taken[e]), bool(found.complete[e]), float(found.logprob[e])))
    return out


def check(parts, text, tree):
    """One tree's slots against the reference; how many endings there were."""
    many = 0
    for place in parts.slots.places:
        got, want = endings(tree.slots, place.slot), parts.truth(text, place)
        if parts.slots.plan.slots[place.slot].how == "copy_numbers" and want:
            best = max(e.logprob for e in want)  # what is left out is less than 2 % of the best
            asked = {g[0] for g in got}
            assert asked >= {e.tokens for e in want if e.logprob > best + math.log(REL_P)}
            want = [e for e in want if e.tokens in asked]
        same(got, want, parts.reader if parts.slots.plan.automata[parts.slots.plan.slots[place.slot].automaton].rest else None)
        many += len(got)
    return many


def same(got, want, rest=None):
    """rest: the reader where an end is what remains of 1. That carries the rounding of all that goes on: in its logarithm as
    many times that as it is smaller."""
    want = [(e.tokens, e.taken, e.complete, e.logprob) for e in want]
    assert sorted(g[:3] for g in got) == sorted(w[:3] for w in want)
    of = {w[:3]: w[3] for w in want}
    for g in got:
        path = g[0]
        allowed = tolerance(len(path))
        if rest is not None:
            end = math.exp(of[g[:3]] - sum(float(rest.after(path[:i])[path[i]]) for i in range(len(path))))
            allowed += CLOSE * (1 - end) / end
        assert abs(g[3] - of[g[:3]]) <= allowed, (g, of[g[:3]], allowed)


def tolerance(tokens):
    """Of an ending: the sum of a read for each token and one for its end, each within CLOSE. Measured here, both executors and
    families: 5e-6 a read, 2.5e-5 a path. So 1e-5 for a whole path would not hold."""
    return min(CLOSE * (tokens + 1), LONG)
