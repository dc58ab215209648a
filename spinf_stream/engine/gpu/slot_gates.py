"""Gates of decode steps: whether slots may be extracted on this card with this model. Compared with == as in gates.py, but
for one: a path decoded is also held against the same path read in a scoring pass, whose head sums in another order.

Steps are made by hand from the gates' question paths: no tokenizer, no grammar, any executor that can decode.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.engine import forest
from spinf_stream.engine.executor import Executor
from spinf_stream.engine.gpu.decode import GpuGrower
from spinf_stream.engine.gpu.gates import Gate, Trial, paths_of, worst_of
from spinf_stream.engine.gpu.synthetic import Path, articles
from spinf_stream.engine.grow import Grower, Grown, Step
from spinf_stream.slots.automaton import Automaton

LENGTHS = (1, 63, 64, 65, 300, 1100)
SCORED = 1e-4  # of a log-probability: two float32 sums over a vocabulary
TOP = 6
SAMPLED = 40  # as is read of every slot beside one that is sampled


class Row(NamedTuple):
    """A path below a trunk, read at its last token."""

    trunk: int
    path: Path
    own: int  # its tokens are the own rows from here on
    automaton: int


class SlotTrial:
    def __init__(self, executor: Executor, tolerance: float = 0.0, lengths: Sequence[int] = LENGTHS, count: int = 24) -> None:
        if not isinstance(executor, Grower):
            raise ValueError("this executor cannot decode")
        self.executor, self.grower, self.tolerance = executor, executor, tolerance
        self.trial = Trial(executor, tolerance, count=count)
        self.trunks = articles(lengths, self.trial.vocab)
        self.automata = automata(self.trial.vocab)
        self.rows: list[Row] = []
        own = 0
        for trunk in range(len(self.trunks)):
            for i, path in enumerate(self.trial.paths):
                self.rows.append(Row(trunk, path, own, i % 2))
                own += len(path)
        self.kept = self._keep()

    def gates(self) -> Iterator[Gate]:
        rows, few = self.rows, self.rows[:: max(1, len(self.rows) // 10)]
        every = self.read(rows)
        yield self.gate("a slot alone = among others", [self.read([r])[0] for r in few], [every[rows.index(r)] for r in few])
        turned = sorted(rows, key=lambda r: (r.trunk, -r.own))  # rows of a trunk stay together
        yield self.gate("any order of slots", [every[rows.index(r)] for r in turned], self.read(turned))
        some = self.read(few)
        yield self.gate("token by token = at once", some, self.stepwise(few))
        for n in range(1, 5):  # on a card the last of them are replayed
            yield self.gate(f"the same step again, as a CUDA graph where there are any ({n})", some, self.read(few))
        yield self.gate("without CUDA graphs", some, self.plainly(few))
        yield self.gate("beside slots that are sampled", some, [cut(s) for s in _said(self.grower.grow(self.step(few)._replace(top=SAMPLED)))])
        scored = self.trial.run(self.trunks)
        want = [scored[r.trunk].cand[at : at + len(self.trial.candidates)] for r in rows for at in [self._cand(r.path)]]
        worst = max(float(np.abs(got.pick - w).max()) for got, w in zip(every, want))
        yield Gate("a path decoded = the same path scored", worst, max(SCORED, self.tolerance))

    def read(self, rows: Sequence[Row]) -> list[Said]:
        """Every path whole in one step. rows: those of one trunk together."""
        return _said(self.grower.grow(self.step(rows)))

    def stepwise(self, rows: Sequence[Row]) -> list[Said]:
        """A token of every path at a time; longer paths go on when shorter ones are done."""
        out: dict[Row, Said] = {}
        for depth in range(max(len(r.path) for r in rows)):
            going = [r for r in rows if len(r.path) > depth]
            for row, said in zip(going, _said(self.grower.grow(self.step(going, depth, depth + 1)))):
                out[row] = said
        return [out[r] for r in rows]

    def plainly(self, rows: Sequence[Row]) -> list[Said]:
        grower = getattr(self.executor, "grower", None)
        if not isinstance(grower, GpuGrower):
            return self.read(rows)
        padded = grower.padded
        try:
            grower.padded = False
            return self.read(rows)
        finally:
            grower.padded = padded

    def step(self, rows: Sequence[Row], lo: int = 0, hi: int = 1 << 30) -> Step:
        """Tokens lo .. hi-1 of each path, the last of them read."""
        used = sorted({r.trunk for r in rows})
        trunk, token, depth, own, read = [], [], [], [], []
        for r in rows:
            for d in range(lo, min(hi, len(r.path))):
                trunk.append(used.index(r.trunk))
                token.append(r.path[d])
                depth.append(d)
                own.append(r.own)
            read.append(len(trunk) - 1)
        base, of, down = np.array([len(self.trunks[t]) for t in used], np.int32), np.array(trunk, np.int32), np.array(depth)
        entry = np.arange(int(down.max()) + 1)
        path = np.where(entry[None, :] <= down[:, None], np.array(own)[:, None] + entry[None, :], -1).astype(np.int64)
        picks = np.sort(np.array(self.trial.candidates, np.int32))  # as a plan has them
        return Step(
            tuple(self.kept[t] for t in used), base, of, np.array(token, np.int32), (base[of] + down).astype(np.int32), path,
            np.array(read, np.int64), self.automata, np.array([r.automaton for r in rows], np.int32), np.zeros(len(rows), np.int32),
            np.arange(len(rows) + 1, dtype=np.int64) * len(picks), np.tile(picks, len(rows)), TOP,
        )  # fmt: skip

    def gate(self, name: str, want: Sequence[Said], got: Sequence[Said]) -> Gate:
        worst = 0.0
        for a, b in zip(want, got, strict=True):
            if not self.tolerance and not np.array_equal(a.token, b.token):
                worst = np.inf
            for x, y in zip(a[1:], b[1:]):
                worst = worst_of(worst, x, y)
        return Gate(name, worst, self.tolerance)

    def _keep(self) -> tuple[Any, ...]:
        """One pass that keeps all trunks."""
        start = np.cumsum([0, *map(len, self.trunks)]).astype(np.int64)
        chunk = forest.chunks(self.trial.whole, 1 << 20)[0]
        layout = forest.layout(np.concatenate(self.trunks), start, (chunk,) * len(self.trunks), kept=tuple(range(len(self.trunks))))
        return self.executor.fetch(self.executor.launch(layout)).trunks

    def _cand(self, path: Path) -> int:
        """Where the scored candidates of a path begin."""
        return self.order[path] * len(self.trial.candidates)

    @functools.cached_property
    def order(self) -> dict[Path, int]:
        return {path: i for i, path in enumerate(paths_of(self.trial.whole))}


class Said(NamedTuple):
    """Of one read."""

    token: np.ndarray
    logprob: np.ndarray
    sums: np.ndarray
    pick: np.ndarray


def _said(grown: Grown) -> list[Said]:
    picks = grown.pick.reshape(len(grown.token), -1)
    return [
        Said(grown.token[i], grown.logprob[i], np.array([grown.first[i], grown.second[i]]), picks[i]) for i in range(len(grown.token))
    ]


def cut(said: Said) -> Said:
    return said._replace(token=said.token[:TOP], logprob=said.logprob[:TOP])


def automata(vocab: int) -> tuple[Automaton, Automaton]:
    """One over some tokens, as numbers have, and one over all, as text has; each of one state."""
    some = np.arange(0, vocab, max(1, vocab // 300), dtype=np.int32)
    out = []
    for token in (some, np.arange(vocab, dtype=np.int32)):
        ends = token % 7 == 3
        few = len(token) < vocab
        step = np.where(ends & (not few), -1, 0).astype(np.int16)[None]
        out.append(Automaton(token, step, np.ones(1, bool), np.ones(1, bool), few, (ends | few)[None], ends[None], np.zeros(1, np.int32)))
    return out[0], out[1]
