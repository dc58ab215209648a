"""The head of a decode step on the kernels: what a step reads of each row, without its logits where a few tokens do.

Every row's norms stream over the vocabulary as in a pass. Over a few tokens (numbers) only their logits are computed; over
the whole vocabulary (text, generations) blocks of logits are held. Every number of a row is made by a kernel whose order is
the row's own, or is picked out by comparing: the same alone and among others. All of it comes back in one copy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from spinf_stream.engine.gpu.buffers import Arena, Uploads
from spinf_stream.engine.gpu.ops import Ops
from spinf_stream.engine.grow import Grown, Step
from spinf_stream.kernels.sets.naive import EXTENDS, FIRST, RUN, SECOND
from spinf_stream.slots.automaton import NEVER, Automaton
from spinf_stream.slots.head import best

ROWS = 128  # whose logits over the whole vocabulary are held at once: a tile of the head's kernels
KEPT = 64  # automata whose tables stay on the device


class Table(NamedTuple):
    of: Automaton  # keeps its id from being given to another
    token: torch.Tensor  # [K] int32
    bits: torch.Tensor  # [S, K] uint8


class Rows(NamedTuple):
    """Reads that are in states of one automaton."""

    hidden: torch.Tensor  # [n, H]
    state: torch.Tensor  # [n] int32
    norms: torch.Tensor  # [n, 3] float64


class Said(NamedTuple):
    """Of those, on the device; as in Grown."""

    token: torch.Tensor  # [n, top] int32
    logprob: torch.Tensor  # [n, top] float64
    sums: torch.Tensor  # [n, 2] float64


class GpuHead:
    def __init__(self, ops: Ops, embed: torch.Tensor, softcap: float, ends: torch.Tensor) -> None:
        """ends: uint8 [vocab], for norms; what they sum over it is not used here."""
        self.ops, self.embed, self.cap, self.ends = ops, embed, softcap, ends
        self.arena = Arena(embed.device)
        self.uploads = Uploads(embed.device)
        self.tables: dict[int, Table] = {}

    def read(self, hidden: torch.Tensor, step: Step) -> Grown:
        """hidden [r, H] after the final norm. Waits for the device."""
        r, top = len(hidden), step.top
        used = [(a, np.flatnonzero(step.automaton == a)) for a in np.unique(step.automaton).tolist()]
        distinct, column = np.unique(step.pick, return_inverse=True)
        row = np.repeat(np.arange(r), np.diff(step.pick_ptr))
        ix = self.uploads.send({
            "state": step.state, "distinct": distinct, "row": row, "at": row * len(distinct) + column.reshape(-1), **{f"rows:{a}": rows for a, rows in used},
        })  # fmt: skip
        norms = self._norms(hidden)
        every, parts = Rows(hidden, ix["state"], norms), []
        for a, _ in used:
            rows = every if len(used) == 1 else Rows(*(x.index_select(0, ix[f"rows:{a}"]) for x in every))
            table = self._table(step.automata[a])
            said = self._of_all(table, rows, top) if len(table.token) == len(self.embed) else self._of_few(table, rows, top)
            parts += [said.token.view(-1).double(), said.logprob.view(-1), said.sums.view(-1)]
        if len(step.pick):
            z = self.arena.get("picks", r, len(distinct), torch.float32)
            self.ops.candidates(hidden, self.embed, ix["distinct"], self.cap, z)
            parts.append(z.view(-1)[ix["at"]].double() - whole(norms)[ix["row"]])
        flat = torch.cat(parts).cpu().numpy()
        out = Grown(np.empty((r, top), np.int32), np.empty((r, top)), np.empty(r), np.empty(r), flat[len(flat) - len(step.pick) :], 0.0)
        at = 0
        for _, rows_of in used:
            n = len(rows_of)
            token, logprob, sums = np.split(flat[at : at + n * (2 * top + 2)], [n * top, 2 * n * top])
            out.token[rows_of], out.logprob[rows_of] = token.reshape(n, top), logprob.reshape(n, top)
            out.first[rows_of], out.second[rows_of] = sums.reshape(n, 2).T
            at += n * (2 * top + 2)
        return out

    def forget(self) -> None:
        """Give the memory back; all of it is made anew when it is needed."""
        self.arena.clear()
        self.tables.clear()

    def _norms(self, hidden: torch.Tensor) -> torch.Tensor:
        """[r, 3] float64."""
        r = len(hidden)
        norms = self.arena.get("norms", r, 3, torch.float64)
        parts = self.arena.get("parts", 3 * r, self.ops.head_blocks(len(self.embed)), torch.float32)
        self.ops.norms(hidden, self.embed, self.ends, self.cap, parts, norms)
        return norms

    def _of_few(self, table: Table, rows: Rows, top: int) -> Said:
        n, k = len(rows.state), len(table.token)
        z = self.arena.get("logits", n, k, torch.float32)
        self.ops.candidates(rows.hidden, self.embed, table.token, self.cap, z)
        said = self._said(n, top)
        self.ops.few(z, table.token, table.bits, rows.state, rows.norms, said.sums, said.token, said.logprob)
        return said

    def _of_all(self, table: Table, rows: Rows, top: int) -> Said:
        n, k = len(rows.state), len(table.token)
        said = self._said(n, top)
        for lo in range(0, n, ROWS):
            hi = min(n, lo + ROWS)
            z = self.arena.get("logits", hi - lo, k, torch.float32)
            self.ops.candidates(rows.hidden[lo:hi], self.embed, table.token, self.cap, z)
            runs = self.arena.get("runs", hi - lo, -(-k // RUN), torch.float32)
            self.ops.sets(z, table.bits, rows.state[lo:hi], rows.norms[lo:hi], said.sums[lo:hi], runs)
            if top:
                value, token = best_of_runs(z, runs, top)
                m = value.shape[1]
                said.token[lo:hi, :m] = token.masked_fill(value == -torch.inf, -1)
                said.logprob[lo:hi, :m] = value.double() - whole(rows.norms[lo:hi])[:, None]
        return said

    def _said(self, n: int, top: int) -> Said:
        device = self.embed.device
        return Said(
            torch.full((n, top), -1, dtype=torch.int32, device=device), torch.full((n, top), -torch.inf, dtype=torch.float64, device=device),
            torch.empty(n, 2, dtype=torch.float64, device=device),
        )  # fmt: skip

    def _table(self, automaton: Automaton) -> Table:
        key = id(automaton)
        if key not in self.tables:
            if len(self.tables) >= KEPT:
                self.tables.clear()
            bits = np.zeros(automaton.step.shape, np.uint8)  # a row behind the other, as the kernels read them
            for bit, there in ((FIRST, automaton.first), (SECOND, automaton.second), (EXTENDS, automaton.step != NEVER)):
                bits[there] |= bit
            token, device = np.ascontiguousarray(automaton.token), self.embed.device
            self.tables[key] = Table(automaton, torch.from_numpy(token).to(device), torch.from_numpy(bits).to(device))
        return self.tables[key]


def whole(norms: torch.Tensor) -> torch.Tensor:
    """The log-sum-exp of each row's logits."""
    return norms[:, 0] + norms[:, 1].log()


def best_of_runs(z: torch.Tensor, runs: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As best(z, k), by way of the largest of each run: the best tokens lie in the best runs."""
    vocab = z.shape[1]
    run = best(runs, k)[1].sort(-1).values  # tokens ascend, so that the first of equals is the lowest
    token = (run[:, :, None] * RUN + torch.arange(RUN, device=z.device)).flatten(1)
    inside = z.gather(1, token.clamp(max=vocab - 1)).masked_fill(token >= vocab, -torch.inf)
    value, index = best(inside, k)
    return value, token.gather(1, index).clamp(max=vocab - 1)
