"""A pass's index tables for the kernels, all of it numpy over whole passes; a chunk's own slots are made once.

    rows[i] = (a, b, c, d): query row i sees key slots a .. b-1 of its trunk and c .. d-1 of its own path
    tiles[t] = (first row, rows, first trunk block, trunk blocks, first own block, blocks, whole from, whole to)

Tiles never hold rows of two articles. Blocks are counted from slot 0; an article starts at a multiple of 64, so its trunk
is cut from its own first key. Blocks that some row of the tile sees in part, or not at all, are masked in the kernel;
`whole from .. whole to` of the tile's list need no mask.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spinf_stream.engine.forest import Chunk, Layout
from spinf_stream.engine.gpu.slots import BLOCK, Own, own_slots, up
from spinf_stream.questions.plan import I32, I64


class Places(NamedTuple):
    """Where every key and every query of a pass lies, before any window."""

    slot_row: I32  # [S] row whose key is in the slot, -1 = padding, or a trunk key kept from the pass before
    trunk: I32  # [T] first trunk slot of the row's article
    length: I32  # [T] its trunk's length
    depth: I32  # [T] depth below the trunk; -1 on the trunk
    own: I32  # [T] first slot of the row's own path; trunk's first slot on the trunk, where it is not used
    base: I64  # [A] first slot of each article


class Slots:
    """Chunks are shared by articles: their own slots are computed once and remembered."""

    def __init__(self) -> None:
        self.of: dict[Chunk, Own] = {}

    def own(self, chunk: Chunk) -> Own:
        if chunk not in self.of:
            if len(self.of) > 256:
                self.of.clear()
            self.of[chunk] = own_slots(chunk)
        return self.of[chunk]

    def bases(self, layout: Layout) -> I64:
        """[A+1] first slot of each article, where its trunk begins, and the end."""
        sizes = [up(int(n), BLOCK) + len(self.own(c).node) for n, c in zip(layout.trunk, layout.chunk)]
        return np.cumsum([0, *sizes], dtype=np.int64)

    def places(self, layout: Layout) -> Places:
        owns = [self.own(c) for c in layout.chunk]
        nodes = np.array([c.nodes for c in layout.chunk], np.int64)
        held = np.diff(layout.row) - nodes  # trunk rows present in this pass
        room = -(-layout.trunk.astype(np.int64) // BLOCK) * BLOCK
        base = self.bases(layout)
        slot_row = np.full(int(base[-1]), -1, np.int32)
        depth = np.full(len(layout.token), -1, np.int32)
        own = np.empty(len(layout.token), np.int32)
        for i, (chunk, o) in enumerate(zip(layout.chunk, owns)):
            lo, mid, hi, at = int(layout.row[i]), int(layout.row[i] + held[i]), int(layout.row[i + 1]), int(base[i])
            slot_row[at : at + mid - lo] = np.arange(lo, mid, dtype=np.int32)
            first = at + int(room[i])
            slot_row[first : first + len(o.node)] = np.where(o.node >= 0, o.node + np.int32(mid), np.int32(-1))
            depth[mid:hi] = chunk.depth
            own[lo:mid] = at
            own[mid:hi] = o.begin + np.int32(first)
        rows = np.diff(layout.row)
        return Places(slot_row, np.repeat(base[:-1], rows).astype(np.int32), np.repeat(layout.trunk, rows), depth, own, base[:-1])


def visible(p: Places, position: I32, window: int | None) -> I32:
    """rows [T, 4]. The window counts positions: a row at position x sees positions x - window + 1 .. x."""
    out = np.empty((len(position), 4), np.int32)
    branch = p.depth >= 0
    reach = np.zeros_like(position) if window is None else np.maximum(position - np.int32(window - 1), 0)
    out[:, 0] = p.trunk + np.minimum(reach, p.length)
    out[:, 1] = p.trunk + np.where(branch, p.length, position + 1)
    out[:, 2] = p.own + np.where(branch, np.maximum(reach - p.length, 0), 0)
    out[:, 3] = p.own + np.where(branch, p.depth + 1, 0)
    return out


def tiles(rows: I32, bounds: I64, tokens: int, keys: int) -> I32:
    """[n, 8] for query rows [T, 4] whose articles are bounds[i]:bounds[i+1], `tokens` rows a tile, blocks of `keys` slots."""
    per = -(-(bounds[1:] - bounds[:-1]) // tokens)
    article = np.repeat(np.arange(len(per)), per)
    first = bounds[:-1][article] + (np.arange(len(article)) - (per.cumsum() - per)[article]) * tokens
    out = np.zeros((len(first), 8), np.int32)
    if not len(first):
        return out
    sides = rows.T.copy()  # all four through each call: a tile's numbers are few, and calls are what they cost
    alone = sides[3] <= sides[2]  # rows without keys of their own
    sides[3, alone] = 0
    high = np.maximum.reduceat(sides, first, 1)
    sides[2, alone] = np.iinfo(np.int32).max
    low = np.minimum.reduceat(sides, first, 1) // keys
    has_own = high[3] > 0
    high = -(-high // keys)
    begin = low[0]
    trunk = np.maximum(high[1] - begin, 0)
    own = np.where(has_own, low[2], 0)
    whole = np.minimum(np.maximum(high[0] - begin, 0), trunk)
    out[:, 0] = first
    out[:, 1] = np.minimum(tokens, bounds[1:][article] - first)
    out[:, 2] = begin
    out[:, 3] = trunk
    out[:, 4] = own
    out[:, 5] = trunk + np.where(has_own, high[3] - own, 0)
    out[:, 6] = whole
    out[:, 7] = np.minimum(np.maximum(low[1] - begin, whole), trunk)
    return out
