"""Keys and values that outlive their pass: what slots are decoded below (engine/grow.py).

Two buffers a layer. `slots` is what attention reads: the trunks that passes have kept, each in a range of its own, and one
range into which every decode step lays the paths of its rows. `own` has the rows below trunks, one a row of Step.path; a
path is gathered from there, so that a beam that moves or splits copies nothing of its past.

Addresses hold until `moved` changes. Used under the executor's lock.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch

from spinf_stream.engine.gpu.slots import BLOCK, up
from spinf_stream.engine.stack import LayerSpec
from spinf_stream.questions.plan import I64

ZERO, TRASH, FIRST = 0, 1, 2  # of `own`: what padding shows, where rows that belong to nobody are written, the first row's
LEAST = 1024  # slots at the beginning


class Kept:
    """A trunk's range, free again when nobody has this any more."""

    def __init__(self, cache: Cache, length: int) -> None:
        self.length = length
        self.start = cache.take(length)
        weakref.finalize(self, cache.given_back.append, (self.start, up(length, BLOCK)))


class Cache:
    def __init__(
        self, layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device, outgrown: Callable[[], None] = lambda: None
    ) -> None:
        """outgrown: called before buffers are freed; drops what else holds their memory."""
        self.outgrown = outgrown
        self.widths = [2 * s.kv_heads * s.head_dim for s in layers]
        self.dtype, self.device = dtype, device
        self.slots = [self._made(0, w) for w in self.widths]
        self.own = [self._made(0, w) for w in self.widths]
        self.free: list[tuple[int, int]] = []  # (first slot, slots), ascending, never touching
        self.given_back: deque[tuple[int, int]] = deque()  # by whichever thread drops a trunk; taken up by the next `take`
        self.room = 0  # slots that all layers have
        self.rows = 0  # rows that all layers have
        self.moved = 0

    def take(self, length: int) -> int:
        """The first slot of a new range, from a multiple of 64. Raises torch.OutOfMemoryError."""
        while self.given_back:
            self._give(*self.given_back.popleft())
        need = up(length, BLOCK)
        if not any(n >= need for _, n in self.free):
            self._grow(need)
        at = next(i for i, (_, n) in enumerate(self.free) if n >= need)
        first, n = self.free[at]
        self.free[at : at + 1] = [(first + need, n - need)] if n > need else []
        return first

    def release(self, first: int, length: int) -> None:
        self.given_back.append((first, up(length, BLOCK)))

    @staticmethod
    def moves(trunks: Sequence[Kept], bases: I64) -> dict[str, I64]:
        """Slots of a pass, where the trunks begin at `bases`, and where each is kept; their padding comes along, zeros."""
        spans = [np.arange(up(t.length, BLOCK), dtype=np.int64) for t in trunks]
        return {
            "keep:from": np.concatenate([s + base for s, base in zip(spans, bases)]),
            "keep:to": np.concatenate([s + t.start for s, t in zip(spans, trunks)]),
        }

    def reserve(self, rows: int) -> None:
        """Room for own rows 0 .. rows-1."""
        need = rows + FIRST
        if need > self.rows:
            size = max(need, 2 * self.rows, 256)
            self._enlarge(self.own, size)
            self.rows = size

    def shrink(self, beside: tuple[int, int]) -> bool:
        """Give all memory back if nobody has a range but for the one `beside`, which is void then."""
        while self.given_back:
            self._give(*self.given_back.popleft())
        if not self.room or sum(n for _, n in self.free) + beside[1] < self.room:
            return False
        self.moved += 1
        self.outgrown()
        self.slots = [self._made(0, w) for w in self.widths]
        self.own = [self._made(0, w) for w in self.widths]
        self.free, self.room, self.rows = [], 0, 0
        return True

    def _give(self, first: int, n: int) -> None:
        merged: list[tuple[int, int]] = []
        for at, size in sorted([*self.free, (first, n)]):
            if merged and sum(merged[-1]) == at:
                merged[-1] = merged[-1][0], merged[-1][1] + size
            else:
                merged.append((at, size))
        self.free = merged

    def _grow(self, need: int) -> None:
        size = up(max(self.room + need, self.room * 3 // 2, LEAST), BLOCK)
        self._enlarge(self.slots, size)
        self._give(self.room, size - self.room)
        self.room = size

    def _enlarge(self, buffers: list[torch.Tensor], size: int) -> None:
        """A layer at a time, so that no more than one is there twice."""
        self.moved += 1
        self.outgrown()
        for i, (old, width) in enumerate(zip(buffers, self.widths)):
            if len(old) < size:
                buffers[i] = self._made(size, width)
                buffers[i][: len(old)].copy_(old)
                del old
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # nothing larger fits where these were

    def _made(self, rows: int, width: int) -> torch.Tensor:
        """Zeros: a weight of nothing times what was never written must be nothing."""
        return torch.zeros(rows, width, dtype=self.dtype, device=self.device)
