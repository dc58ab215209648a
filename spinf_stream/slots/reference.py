"""The truth of slots: one slot at a time, over strings, in the plainest torch. Slow, and obvious on purpose.

Nothing is shared with the batched path but the language of numbers and the stream of random numbers: no automata, no
token tables, no packing. A cache of keys and values keeps a path from being read again at every token.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from spinf_stream.engine.reference import linear, rms, rotate
from spinf_stream.engine.stack import Stack
from spinf_stream.slots import grammar
from spinf_stream.slots.automaton import Vocabulary, folded
from spinf_stream.slots.draws import uniform
from spinf_stream.slots.grammar import NumberKind
from spinf_stream.slots.plan import BEAM, MIN_P, REL_P, Sampling
from spinf_stream.slots.regular import DEAD

Path = tuple[int, ...]
Cache = list[tuple[torch.Tensor, torch.Tensor]]  # a layer's keys and values, [kv_heads, T, d]


class End(NamedTuple):
    tokens: Path
    logprob: float
    taken: int = 0
    complete: bool = True


class Reader:
    """What the model says after `ids` and any path below: log-probabilities [vocab], float64."""

    def __init__(self, stack: Stack, ids: Sequence[int]) -> None:
        self.stack = stack
        self.seen: dict[Path, tuple[Cache, np.ndarray]] = {(): self._read(None, ids)}

    def after(self, path: Path) -> np.ndarray:
        if path not in self.seen:
            self.after(path[:-1])
            self.seen[path] = self._read(self.seen[path[:-1]][0], path[-1:])
        return self.seen[path][1]

    @torch.no_grad()
    def _read(self, past: Cache | None, ids: Sequence[int]) -> tuple[Cache, np.ndarray]:
        stack, spec = self.stack, self.stack.spec
        begin = past[0][0].shape[1] if past else 0
        position = torch.arange(begin, begin + len(ids))
        x = stack.embed[list(ids)].float() * spec.embed_scale
        cache: Cache = []
        for i, (layer, w) in enumerate(zip(spec.layers, stack.layers)):
            inverse = torch.tensor(spec.ropes[layer.rope], dtype=torch.float32)
            heads = (rms(x, w.attn_in, spec.eps) @ linear(w, "qkv").T).view(len(ids), -1, layer.head_dim).transpose(0, 1)
            q, k = heads[: layer.heads], heads[layer.heads : layer.heads + layer.kv_heads]
            v = k if layer.k_eq_v else heads[layer.heads + layer.kv_heads :]
            if layer.v_norm or layer.k_eq_v:
                v = rms(v, None, spec.eps)
            q = rotate(rms(q, w.q_norm, spec.eps), position, inverse)
            k = rotate(rms(k, w.k_norm, spec.eps), position, inverse)
            if past:
                k, v = torch.cat([past[i][0], k], 1), torch.cat([past[i][1], v], 1)
            cache.append((k, v))
            group = layer.heads // layer.kv_heads
            gap = position[:, None] - torch.arange(k.shape[1])[None, :]
            visible = gap >= 0
            if layer.window is not None:
                visible &= gap < layer.window
            scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * layer.scale
            mixed = scores.masked_fill(~visible, -math.inf).softmax(-1) @ v.repeat_interleave(group, 0)
            x = x + rms(mixed.transpose(0, 1).reshape(len(ids), -1) @ linear(w, "o").T, w.attn_out, spec.eps)
            gate, up = (rms(x, w.mlp_in, spec.eps) @ linear(w, "gate_up").T).chunk(2, -1)
            mlp = (torch.nn.functional.gelu(gate, approximate="tanh") * up) @ linear(w, "down").T
            x = (x + rms(mlp, w.mlp_out, spec.eps)) * w.layer_scalar
        logits = rms(x[-1], stack.final_norm, spec.eps) @ stack.embed.float().T
        if spec.softcap is not None:
            logits = spec.softcap * torch.tanh(logits / spec.softcap)
        return cache, torch.log_softmax(logits.double(), -1).numpy()


class Rules(NamedTuple):
    """What tokens do after a path: the tokens that extend it, the ways in which it ends there."""

    extends: Callable[[Path], np.ndarray]  # ids, ascending
    ends: Callable[[Path, np.ndarray], list[tuple[float, int, bool]]]  # (probability, characters taken off, it counts as an answer)
    closed: Callable[[Path], bool]  # nothing extends it: it has ended


def number_rules(words: Vocabulary, kind: NumberKind) -> Rules:
    dfa = grammar.automaton(kind)

    def text(path: Path) -> str:
        return "".join(words.texts[t] for t in path)

    @functools.cache
    def after(begun: int) -> np.ndarray:
        return np.array([i for i, t in enumerate(words.texts) if t and i not in words.banned and dfa.run(t, begun) != DEAD], np.int64)

    def extends(path: Path) -> np.ndarray:
        return after(dfa.run(text(path)))

    def ends(path: Path, row: np.ndarray) -> list[tuple[float, int, bool]]:
        going_on = np.exp(row[extends(path)]).sum()
        return [(max(1.0 - float(going_on), 1e-12), 0, grammar.accepts(text(path), kind))]

    return Rules(extends, ends, lambda path: not len(extends(path)))


def text_rules(words: Vocabulary, stop: str) -> Rules:
    stop = folded(stop, stop)
    hard = {i for i, t in enumerate(words.texts) if "\n" in t or "\r" in t} | words.ends
    usable = [i for i, t in enumerate(words.texts) if t and i not in words.banned and i not in hard]
    rows = len(words.texts)

    def text(path: Path) -> str:
        return folded("".join(words.texts[t] for t in path), stop)

    def begun(said: str) -> int:
        return max((n for n in range(1, len(stop)) if said.endswith(stop[:n])), default=0)

    @functools.cache
    def completing(n: int) -> frozenset[int]:
        """Tokens with which the stop text is whole after its first n characters, and which add nothing to the answer."""
        if not stop:
            return frozenset()
        found = set()
        for i in usable:
            token = folded(words.texts[i], stop)
            at = (stop[:n] + token).find(stop)
            if at == 0 if n else at >= 0 and not token[:at].strip():
                found.add(i)
        return frozenset(found)

    @functools.cache
    def others(n: int) -> np.ndarray:
        return np.array([i for i in usable if i not in completing(n)], np.int64)

    def extends(path: Path) -> np.ndarray:
        return others(begun(text(path)))

    def ends(path: Path, row: np.ndarray) -> list[tuple[float, int, bool]]:
        taken = begun(text(path))
        whole, plain = sorted(completing(taken)), sorted(i for i in hard if i < rows)
        ways = [(float(np.exp(row[plain]).sum()), 0), (float(np.exp(row[whole]).sum()), taken)]
        if not taken:
            ways = [(ways[0][0] + ways[1][0], 0)]
        return [(p, cut, True) for p, cut in ways if p > 0]

    return Rules(extends, ends, lambda path: bool(stop) and stop in text(path))


def search(reader: Reader, rules: Rules, max_tokens: int, allowed: Callable[[Path], Iterable[int]] | None = None) -> list[End]:
    """Beam search. `allowed` confines a path's extensions (copy-only text)."""
    found: list[End] = []
    best = 0.0
    beams: list[tuple[Path, float]] = [((), 0.0)]
    for step in range(max_tokens + 1):
        for path, logprob in beams:
            if path:
                for p, taken, counts in rules.ends(path, reader.after(path)):
                    found.append(End(path, logprob + math.log(p), taken))
                    if counts:
                        best = max(best, math.exp(logprob) * p)
        if step == max_tokens:
            break
        longer: list[tuple[Path, float]] = []
        for path, logprob in beams:
            row = reader.after(path)
            tokens = rules.extends(path)
            if allowed is not None:
                tokens = tokens[np.isin(tokens, list(allowed(path)))]
            longer += [((*path, t), logprob + float(row[t])) for t in ranked(tokens, row)[:BEAM]]
        floor = math.log(max(MIN_P, REL_P * best))
        if allowed is not None and longer:
            floor = math.log(REL_P * max(best, *(math.exp(b[1]) for b in longer)))
        longer = sorted((b for b in longer if b[1] >= floor), key=lambda b: -b[1])
        closed = [b for b in longer if rules.closed(b[0])]
        going = [b for b in longer if not rules.closed(b[0])]
        for path, logprob in closed:
            found.append(End(path, logprob))
            best = max(best, math.exp(logprob))
        beams = going[:BEAM]
        if not beams:
            break
    return found


def ranked(tokens: np.ndarray, row: np.ndarray) -> list[int]:
    """The most probable first, ties by id."""
    order: list[int] = tokens[np.argsort(-row[tokens], kind="stable")].tolist()
    return order


def generate(reader: Reader, rules: Rules, max_tokens: int, how: Sampling, key: tuple[int, int]) -> list[End]:
    return [_sequence(reader, rules, max_tokens, how, key, i) for i in range(how.n)]


def _sequence(reader: Reader, rules: Rules, max_tokens: int, how: Sampling, key: tuple[int, int], number: int) -> End:
    path: Path = ()
    total = 0.0
    for step in range(max_tokens):
        row = reader.after(path)
        ways = rules.ends(path, row)
        mass = sum(p for p, _, _ in ways)
        end = math.log(mass) if mass > 0 else -math.inf
        choices = [(float(row[t]), t) for t in ranked(rules.extends(path), row)[: max(how.top_k, how.n)]]
        if how.temperature == 0:
            best = [(end, -1), *choices] if end >= choices[0][0] else choices
            logprob, token = best[number if step == 0 else 0]
        else:
            logprob, token = _draw([(end, -1), *choices[: how.top_k]], how, uniform(key, number, step))
        total += logprob
        if token < 0:
            taken = max(ways, key=lambda w: w[0])[1] if len(ways) > 1 else ways[0][1]
            return End(path, total, taken)
        path = (*path, token)
        if rules.closed(path):
            return End(path, total)
    return End(path, total, 0, False)


def _draw(choices: list[tuple[float, int]], how: Sampling, u: float) -> tuple[float, int]:
    choices = sorted(choices, key=lambda c: (-c[0], c[1]))
    weights = [math.exp((c[0] - choices[0][0]) / how.temperature) for c in choices]
    weights = [w / sum(weights) for w in weights]
    kept = next((n for n in range(1, len(weights) + 1) if sum(weights[:n]) >= how.top_p - 1e-12), len(weights))
    at = u * sum(weights[:kept])
    for choice, weight in zip(choices[:kept], weights):
        at -= weight
        if at < 0:
            return choice
    return choices[kept - 1]


def copy_numbers(reader: Reader, words: Vocabulary, kind: NumberKind, spelled: Sequence[tuple[str, Path]]) -> list[End]:
    """(text, tokens) of each candidate."""
    rules = number_rules(words, kind)
    prefixes = {tokens[:n] for _, tokens in spelled for n in range(1, len(tokens) + 1)}
    found: list[End] = []
    for text, path in sorted(spelled):
        row = reader.after(path)
        logprob = sum(float(reader.after(path[:n])[path[n]]) for n in range(len(path)))
        going_on = 0.0
        for t in rules.extends(path):
            mark = not words.texts[t].strip(grammar.SPACES + ",." + grammar.QUOTES) and grammar.accepts(text, kind)
            if not mark:
                going_on += math.exp(row[t])
            elif (*path, t) in prefixes:  # a mark that a candidate goes on with: the part of it that digits follow
                below = reader.after((*path, t))
                going_on += math.exp(row[t]) * sum(math.exp(below[u]) for u in rules.extends((*path, t)))
        found.append(End(path, logprob + math.log(max(1.0 - going_on, 1e-12))))
    return found
