"""The head of a decode step in plain torch (a card's: engine/gpu/head.py): the best extensions, the sums of an automaton's sets, picked tokens.

Rows go through in blocks, and each block's logits through the vocabulary in pieces that stay in the cache. They are held
once, in one buffer; nothing else is as large.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from spinf_stream.engine.grow import Grown, Step
from spinf_stream.slots.automaton import NEVER, Automaton

ROWS = 64  # rows of logits held at once
PIECE = 8192  # of the vocabulary
RUN = 256  # tokens whose largest logit is looked at first
KEPT = 64  # automata whose tables stay on the device


class Sets(NamedTuple):
    """Token ids of one state of an automaton over the whole vocabulary."""

    first: torch.Tensor
    second: torch.Tensor
    barred: torch.Tensor  # do not extend


class Dense(NamedTuple):
    """Tables of an automaton over a few tokens."""

    token: torch.Tensor  # [K] int64
    extends: torch.Tensor  # [S, K] bool
    first: torch.Tensor
    second: torch.Tensor


class SlotHead:
    def __init__(self, embed: torch.Tensor, softcap: float | None) -> None:
        self.embed, self.softcap = embed, softcap
        self.vocab = len(embed)
        self.pieces = -(-self.vocab // PIECE)
        self.buffer: torch.Tensor | None = None  # [pieces, ROWS, PIECE] float32, -inf behind the vocabulary's end
        self.automata: dict[int, Automaton] = {}  # keeps their ids from being given to others
        self.dense: dict[int, Dense] = {}
        self.sets: dict[tuple[int, int], Sets] = {}

    def read(self, hidden: torch.Tensor, step: Step) -> Grown:
        """hidden [r, H] after the final norm."""
        r = len(step.read)
        out = Grown(
            np.full((r, step.top), -1, np.int32), np.full((r, step.top), -np.inf), np.zeros(r), np.zeros(r), np.zeros(len(step.pick)), 0.0
        )
        for lo in range(0, r, ROWS):
            hi = min(r, lo + ROWS)
            logits, total = self._logits(hidden[lo:hi])
            self._picks(logits, total, step, lo, hi, out)
            groups = np.unique(np.stack([step.automaton[lo:hi], step.state[lo:hi]]), axis=1).T.tolist()
            for which in sorted({a for a, _ in groups}):
                automaton = self._known(step.automata[which])
                if len(automaton.token) < self.vocab:
                    rows = np.flatnonzero(step.automaton[lo:hi] == which)
                    self._few(logits, total, automaton, rows, step.state[lo:hi][rows], lo, out)
                    continue
                for state in [s for a, s in groups if a == which]:
                    rows = np.flatnonzero((step.automaton[lo:hi] == which) & (step.state[lo:hi] == state))
                    self._whole(logits, total, automaton, state, rows, lo, out)
        return out

    def _logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """([pieces, n, PIECE], the log-sum-exp of each row [n] in float64)."""
        if self.buffer is None:
            self.buffer = torch.full((self.pieces, ROWS, PIECE), -torch.inf, dtype=torch.float32, device=self.embed.device)
        parts = []
        for i in range(self.pieces):
            first, last = i * PIECE, min(self.vocab, (i + 1) * PIECE)
            piece = (hidden @ self.embed[first:last].T.to(hidden.dtype)).float()
            piece = piece if self.softcap is None else self.softcap * torch.tanh(piece / self.softcap)
            self.buffer[i, : len(hidden), : last - first] = piece
            parts.append(torch.logsumexp(piece, -1).double())
        return self.buffer[:, : len(hidden)], torch.logsumexp(torch.stack(parts), 0)

    def _picks(self, logits: torch.Tensor, total: torch.Tensor, step: Step, lo: int, hi: int, out: Grown) -> None:
        first, last = int(step.pick_ptr[lo]), int(step.pick_ptr[hi])
        if first == last:
            return
        row = torch.from_numpy(np.repeat(np.arange(hi - lo), np.diff(step.pick_ptr[lo : hi + 1]))).to(logits.device)
        token = torch.from_numpy(step.pick[first:last].astype(np.int64)).to(logits.device)
        out.pick[first:last] = (logits[token // PIECE, row, token % PIECE].double() - total[row]).cpu().numpy()

    def _few(self, logits: torch.Tensor, total: torch.Tensor, automaton: Automaton, rows: np.ndarray, states: np.ndarray,
             lo: int, out: Grown) -> None:  # fmt: skip
        table = self._dense(automaton)
        at, state = (torch.from_numpy(x.astype(np.int64)).to(logits.device) for x in (rows, states))
        own = logits[table.token // PIECE, at[:, None], table.token % PIECE].double() - total[at, None]
        for column, mask in ((out.first, table.first), (out.second, table.second)):
            column[lo + rows] = (own.exp() * mask[state]).sum(-1).cpu().numpy()
        value, index = best(own.masked_fill(~table.extends[state], -torch.inf), out.token.shape[1])
        self._write(out, lo + rows, value, table.token[index])

    def _whole(self, logits: torch.Tensor, total: torch.Tensor, automaton: Automaton, state: int, rows: np.ndarray,
               lo: int, out: Grown) -> None:  # fmt: skip
        sets = self._sets(automaton, state)
        at = torch.from_numpy(rows).to(logits.device)
        for column, token in ((out.first, sets.first), (out.second, sets.second)):
            own = logits[token // PIECE, at[:, None], token % PIECE].double() - total[at, None]
            column[lo + rows] = own.exp().sum(-1).cpu().numpy()
        top = out.token.shape[1]
        if not top:
            return
        logits[sets.barred // PIECE, at[:, None], sets.barred % PIECE] = -torch.inf
        runs = logits[:, at].unflatten(-1, (-1, RUN))  # [pieces, n, PIECE / RUN, RUN]
        largest = runs.amax(-1).transpose(0, 1).flatten(1)  # [n, runs]: the best tokens lie in the best runs
        run = best(largest, top)[1].sort(-1).values  # tokens ascend, so that the first of equals is the lowest
        per = PIECE // RUN
        inside = runs[run // per, torch.arange(len(rows), device=at.device)[:, None], run % per]  # [n, top, RUN]
        token = (run[:, :, None] * RUN + torch.arange(RUN, device=at.device)).flatten(1)
        value, index = best(inside.flatten(1), top)
        self._write(out, lo + rows, value.double() - total[at, None], token.gather(-1, index))

    def _write(self, out: Grown, rows: np.ndarray, value: torch.Tensor, token: torch.Tensor) -> None:
        there = value != -torch.inf
        k = value.shape[1]
        out.token[rows, :k] = torch.where(there, token, -1).to(torch.int32).cpu().numpy()
        out.logprob[rows, :k] = value.cpu().numpy()

    def _known(self, automaton: Automaton) -> Automaton:
        if id(automaton) not in self.automata:
            if len(self.automata) >= KEPT:
                self.automata.clear()
                self.dense.clear()
                self.sets.clear()
            self.automata[id(automaton)] = automaton
        return automaton

    def _dense(self, automaton: Automaton) -> Dense:
        key = id(automaton)
        if key not in self.dense:
            columns = (automaton.token.astype(np.int64), automaton.step != NEVER, automaton.first, automaton.second)
            self.dense[key] = Dense(*(torch.from_numpy(np.ascontiguousarray(c)).to(self.embed.device) for c in columns))
        return self.dense[key]

    def _sets(self, automaton: Automaton, state: int) -> Sets:
        key = (id(automaton), state)
        if key not in self.sets:
            masks = (automaton.first[state], automaton.second[state], automaton.step[state] == NEVER)
            self.sets[key] = Sets(*(torch.from_numpy(np.flatnonzero(m)).to(self.embed.device) for m in masks))
        return self.sets[key]


def best(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of each row and where they are, largest first; of equal ones the first comes first, at the cut too: a
    larger k adds to what a smaller one finds and changes nothing of it."""
    n = values.shape[1]
    k = min(k, n)
    if not k:
        return values[:, :0], torch.zeros(len(values), 0, dtype=torch.int64, device=values.device)
    least = torch.topk(values, k, -1).values[:, -1:]  # right as a number, but of its equals topk keeps any
    place = torch.arange(n, 0, -1, dtype=torch.int32, device=values.device)
    rank = torch.where(values > least, place + n, torch.where(values < least, 0, place))
    index = torch.topk(rank, k, -1).indices  # all that is larger by its place, then the equals by theirs
    value = values.gather(-1, index)
    order = torch.argsort(value, dim=-1, descending=True, stable=True)
    return value.gather(-1, order), index.gather(-1, order)
