"""Key slots: where an article's keys lie for the attention, so that no row's bits depend on its neighbours.

An article's slots start at a multiple of 64: its trunk from the first, padded to 64; then every leaf's whole path, each
from a multiple of 16, padded to 64 at the end. A path of up to 32 tokens lies in one run of 32, a longer one starts at
a multiple of 64. So for key blocks of 32 and of 64 alike, how many blocks a path meets, and where in 16-wide steps its
keys lie, is the path's own (DECISIONS 20). A stem shared by leaves is computed once and stored once a leaf; a row above
a leaf reads its path in the first leaf below it, where the same prefix lies in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spinf_stream.engine.forest import Chunk
from spinf_stream.questions.plan import I32, I64

ALIGN, HALF, BLOCK = 16, 32, 64


class Own(NamedTuple):
    """A chunk's own-path slots, relative to the first of them."""

    node: I32  # [multiple of 64] node in the slot, -1 = padding
    begin: I32  # [n] slot where the node's path begins; its own key lies at begin + depth


def own_slots(chunk: Chunk) -> Own:
    """Once a chunk; Python a leaf. Raises nothing: any tree can be laid out."""
    n = chunk.nodes
    leaves = np.flatnonzero(chunk.end == np.arange(1, n + 1, dtype=np.int32))
    start, size = runs((chunk.depth[leaves] + 1).tolist())
    node = np.full(size, -1, np.int32)
    for leaf, first in zip(leaves.tolist(), start.tolist()):
        here = leaf
        for k in range(int(chunk.depth[leaf]), -1, -1):
            node[first + k] = here
            here = int(chunk.parent[here])
    first_leaf = np.searchsorted(leaves, np.arange(n))  # pre-order: the first leaf at or after a node lies below it
    return Own(node, start[first_leaf].astype(np.int32) if n else np.zeros(0, np.int32))


def runs(lengths: Sequence[int]) -> tuple[I64, int]:
    """(first slot of each path, slots in all)."""
    start = []
    at = 0  # a multiple of ALIGN
    for length in lengths:
        if length > HALF:
            at = -(-at // BLOCK) * BLOCK
        elif length > ALIGN:  # a shorter one fits wherever it begins
            at = -(-at // HALF) * HALF
        start.append(at)
        at += -(-length // ALIGN) * ALIGN
    return np.array(start, np.int64), up(at, BLOCK)


def up(n: int, to: int) -> int:
    return -(-n // to) * to
