"""The head of a decode step in plain torch: the best extensions, the sums of an automaton's sets, picked tokens.

Rows go through in blocks, and each block's logits through the vocabulary in pieces that stay in the cache. They are held
once, in one buffer; nothing else is as large.
"""

from __future__ import annotations

from collections.abc import Callable
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


Logits = Callable[[torch.Tensor, int, int, torch.Tensor], None]  # hidden [n, H], tokens from, to, out [n, to - from] float32


class SlotHead:
    """logits: computes them in place of plain torch. Then every sum is taken over `rows` rows, however many there are: in
    what order a GPU adds up a row depends on how many rows there are, never on what the others hold."""

    def __init__(
        self, embed: torch.Tensor, softcap: float | None, logits: Logits | None = None, rows: int = ROWS, piece: int = PIECE
    ) -> None:
        self.embed, self.softcap = embed, softcap
        self.logits, self.rows, self.piece = logits, rows, piece  # piece: a multiple of RUN
        self.vocab = len(embed)
        self.pieces = -(-self.vocab // piece)
        self.buffer: torch.Tensor | None = None  # [pieces, rows, piece] float32, -inf behind the vocabulary's end
        self.automata: dict[int, Automaton] = {}  # keeps their ids from being given to others
        self.dense: dict[int, Dense] = {}
        self.sets: dict[tuple[int, int], Sets] = {}

    def read(self, hidden: torch.Tensor, step: Step) -> Grown:
        """hidden [r, H] after the final norm."""
        r = len(step.read)
        out = Grown(
            np.full((r, step.top), -1, np.int32), np.full((r, step.top), -np.inf), np.zeros(r), np.zeros(r), np.zeros(len(step.pick)), 0.0
        )
        for lo in range(0, r, self.rows):
            hi = min(r, lo + self.rows)
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

    def forget(self) -> None:
        """Give the memory back; all of it is made anew when it is needed."""
        self.buffer = None
        for known in (self.automata, self.dense, self.sets):
            known.clear()

    def _logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """([pieces, n, PIECE], the log-sum-exp of each row [n] in float64)."""
        if self.buffer is None:
            self.buffer = torch.full((self.pieces, self.rows, self.piece), -torch.inf, dtype=torch.float32, device=self.embed.device)
        if self.logits is not None:
            hidden = torch.nn.functional.pad(hidden, (0, 0, 0, self.rows - len(hidden)))
        parts = []
        for i in range(self.pieces):
            first, last = i * self.piece, min(self.vocab, (i + 1) * self.piece)
            held = self.buffer[i]
            piece = self._piece(hidden, first, last, held)
            if piece is not held:
                held[: len(hidden), : last - first] = piece
            parts.append(torch.logsumexp(piece, -1).double())
        return self.buffer[:, : len(hidden)], torch.logsumexp(torch.stack(parts), 0)

    def _piece(self, hidden: torch.Tensor, first: int, last: int, buffer: torch.Tensor) -> torch.Tensor:
        if self.logits is not None:
            whole = last - first == self.piece
            out = buffer if whole else torch.empty(len(hidden), last - first, dtype=torch.float32, device=hidden.device)
            self.logits(hidden, first, last, out)
            return out
        piece = (hidden @ self.embed[first:last].T.to(hidden.dtype)).float()
        return piece if self.softcap is None else self.softcap * torch.tanh(piece / self.softcap)

    def _all(self, rows: np.ndarray, states: np.ndarray | None = None) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """(rows to sum over, their states, which of the sums are these rows')."""
        states = np.zeros(len(rows), np.int64) if states is None else states.astype(np.int64)
        take = np.arange(len(rows))
        if self.logits is not None:
            every = np.zeros(self.rows, np.int64)
            every[rows] = states
            rows, states, take = np.arange(self.rows), every, rows
        device = self.embed.device
        return torch.from_numpy(rows).to(device), torch.from_numpy(states).to(device), take

    def _picks(self, logits: torch.Tensor, total: torch.Tensor, step: Step, lo: int, hi: int, out: Grown) -> None:
        first, last = int(step.pick_ptr[lo]), int(step.pick_ptr[hi])
        if first == last:
            return
        row = torch.from_numpy(np.repeat(np.arange(hi - lo), np.diff(step.pick_ptr[lo : hi + 1]))).to(logits.device)
        token = torch.from_numpy(step.pick[first:last].astype(np.int64)).to(logits.device)
        out.pick[first:last] = (logits[token // self.piece, row, token % self.piece].double() - total[row]).cpu().numpy()

    def _few(self, logits: torch.Tensor, total: torch.Tensor, automaton: Automaton, rows: np.ndarray, states: np.ndarray,
             lo: int, out: Grown) -> None:  # fmt: skip
        table = self._dense(automaton)
        at, state, take = self._all(rows, states)
        own = logits[table.token // self.piece, at[:, None], table.token % self.piece].double() - total[at, None]
        for column, mask in ((out.first, table.first), (out.second, table.second)):
            column[lo + rows] = (own.exp() * mask[state]).sum(-1).cpu().numpy()[take]
        mine = torch.from_numpy(take).to(logits.device)
        value, index = best(own[mine].masked_fill(~table.extends[state[mine]], -torch.inf), out.token.shape[1])
        self._write(out, lo + rows, value, table.token[index])

    def _whole(self, logits: torch.Tensor, total: torch.Tensor, automaton: Automaton, state: int, rows: np.ndarray,
               lo: int, out: Grown) -> None:  # fmt: skip
        sets = self._sets(automaton, state)
        every, _, take = self._all(rows)
        for column, token in ((out.first, sets.first), (out.second, sets.second)):
            own = logits[token // self.piece, every[:, None], token % self.piece].double() - total[every, None]
            column[lo + rows] = own.exp().sum(-1).cpu().numpy()[take]
        at = torch.from_numpy(rows).to(logits.device)
        top = out.token.shape[1]
        if not top:
            return
        logits[sets.barred // self.piece, at[:, None], sets.barred % self.piece] = -torch.inf
        runs = logits[:, at].unflatten(-1, (-1, RUN))  # [pieces, n, PIECE / RUN, RUN]
        largest = runs.amax(-1).transpose(0, 1).flatten(1)  # [n, runs]: the best tokens lie in the best runs
        run = best(largest, top)[1].sort(-1).values  # tokens ascend, so that the first of equals is the lowest
        per = self.piece // RUN
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
