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


class Found(NamedTuple):
    """On the device; as in Grown."""

    token: torch.Tensor  # [r, top] float64
    logprob: torch.Tensor  # [r, top] float64
    sums: torch.Tensor  # [r, 2] float64


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
        ix = self.uploads.send({
            "state": step.state, "distinct": distinct, "at": np.repeat(np.arange(r), np.diff(step.pick_ptr)) * max(1, len(distinct)) + column.reshape(-1),
            **{f"rows:{a}": rows for a, rows in used},
        })  # fmt: skip
        norms = self._norms(hidden)
        total = norms[:, 0] + norms[:, 1].log()
        out = Found(*(self.arena.get(name, r, width, torch.float64) for name, width in (("token", top), ("logprob", top), ("sums", 2))))
        out.token.fill_(-1)
        out.logprob.fill_(-torch.inf)
        for a, rows in used:
            self._extensions(self._table(step.automata[a]), ix[f"rows:{a}"] if len(rows) < r else None, hidden, ix["state"], norms, total, top, out)
        parts = [out.token.view(-1), out.logprob.view(-1), out.sums.view(-1), norms[:0, 0]]
        if len(step.pick):
            z = self.arena.get("picks", r, len(distinct), torch.float32)
            self.ops.candidates(hidden, self.embed, ix["distinct"], self.cap, z)
            parts[3] = z.view(-1)[ix["at"]].double() - total[ix["at"] // len(distinct)]
        flat = torch.cat(parts).cpu().numpy()
        token, logprob, sums, pick = np.split(flat, np.cumsum([r * top, r * top, 2 * r]))
        first, second = sums.reshape(r, 2).T.copy()
        return Grown(token.reshape(r, top).astype(np.int32), logprob.reshape(r, top), first, second, pick, 0.0)

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

    def _extensions(
        self, table: Table, rows: torch.Tensor | None, hidden: torch.Tensor, state: torch.Tensor, norms: torch.Tensor, total: torch.Tensor, top: int, out: Found
    ) -> None:
        """Of the reads `rows` (None: all), which are in states of one automaton."""
        if rows is not None:
            hidden, state, norms, total = (x.index_select(0, rows) for x in (hidden, state, norms, total))
        n, k = len(hidden), len(table.token)
        sums = torch.empty(n, 2, dtype=torch.float64, device=hidden.device)
        token = torch.full((n, top), -1, dtype=torch.int64, device=hidden.device)
        value = torch.full((n, top), -torch.inf, dtype=torch.float32, device=hidden.device)
        whole = k == len(self.embed)
        for lo in range(0, n, ROWS if whole else n):
            hi = min(n, lo + (ROWS if whole else n))
            z = self.arena.get("logits", hi - lo, k, torch.float32)
            self.ops.candidates(hidden[lo:hi], self.embed, table.token, self.cap, z)
            runs = self.arena.get("runs", hi - lo, -(-k // RUN), torch.float32) if whole and top else None
            self.ops.sets(z, table.bits, state[lo:hi], norms[lo:hi], sums[lo:hi], runs)
            if top:
                found, index = best(z, top) if runs is None else best_of_runs(z, runs, top)
                token[lo:hi, : index.shape[1]] = table.token[index].long()
                value[lo:hi, : index.shape[1]] = found
        token = token.masked_fill(value == -torch.inf, -1)
        for into, values in ((out.token, token.double()), (out.logprob, value.double() - total[:, None]), (out.sums, sums)):
            if rows is None:
                into.copy_(values)
            else:
                into.index_copy_(0, rows, values)

    def _table(self, automaton: Automaton) -> Table:
        key = id(automaton)
        if key not in self.tables:
            if len(self.tables) >= KEPT:
                self.tables.clear()
            bits = FIRST * automaton.first + SECOND * automaton.second + EXTENDS * (automaton.step != NEVER)
            device = self.embed.device
            self.tables[key] = Table(automaton, torch.from_numpy(automaton.token).to(device), torch.from_numpy(bits.astype(np.uint8)).to(device))
        return self.tables[key]


def best_of_runs(z: torch.Tensor, runs: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As best(z, k), by way of the largest of each run: the best tokens lie in the best runs."""
    vocab = z.shape[1]
    run = best(runs, k)[1].sort(-1).values  # tokens ascend, so that the first of equals is the lowest
    token = (run[:, :, None] * RUN + torch.arange(RUN, device=z.device)).flatten(1)
    inside = z.gather(1, token.clamp(max=vocab - 1)).masked_fill(token >= vocab, -torch.inf)
    value, index = best(inside, k)
    return value, token.gather(1, index).clamp(max=vocab - 1)
