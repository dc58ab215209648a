"""A decode step as the kernels see it: a pass whose trunks lie in the cache and whose rows bring their paths along.

The attention kernel and its tables are those of passes (tables.py). The paths of a step's rows are laid into one range of
slots by the rules of slots.py, those of one trunk from a multiple of 64; a row above another row of the step reads its
path in the other's. So a row's bits are its path's own: the same alone, among others, and in a scoring pass.

`padded` steps have fixed shapes, for CUDA graphs: rows that belong to nobody are written to a row that nobody reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spinf_stream.engine.gpu.cache import FIRST, TRASH, ZERO
from spinf_stream.engine.gpu.indices import kind
from spinf_stream.engine.gpu.slots import runs, up
from spinf_stream.engine.gpu.tables import Places, tiles, visible
from spinf_stream.engine.grow import Step
from spinf_stream.engine.stack import LayerSpec
from spinf_stream.questions.plan import I32, I64

ROWS, SLOTS = 64, 2048  # padded steps have multiples of these
MOST, GROUPS = 1024, 128  # rows and trunks of a padded step, at most

Tile = Callable[[int, int], tuple[int, int]]


class Paths(NamedTuple):
    """Where the paths of a step's rows lie, relative to the step's range."""

    source: I64  # [multiple of 64] row of Cache.own in each slot
    first: I64  # [n] slot where the row's path begins


def paths(step: Step) -> Paths:
    n = step.rows
    length, own = _ends(step)
    at = np.arange(n)
    row_of = np.full(int(step.path.max()) + 2, -1, np.int64)  # the last answers for -1
    row_of[own] = at
    parent = row_of[np.where(length > 1, step.path[at, length - 2], -1)]  # in this step, else -1
    below = at.copy()  # the first row below each, itself where there is none
    child = np.flatnonzero(parent >= 0)[::-1]
    below[parent[child]] = child  # of several the last that is written stays: the first
    leaves = np.flatnonzero(below == at)
    count = length[leaves]
    lengths = count.tolist()
    starts: list[I64] = []
    size = 0
    for lo, hi in itertools.pairwise(np.searchsorted(leaves, _bounds(step.trunk)).tolist()):
        begin, slots = runs(lengths[lo:hi])
        starts.append(begin + size)
        size += slots
    start = np.concatenate(starts)
    first = np.zeros(n, np.int64)
    first[leaves] = start
    while not np.array_equal(below, further := below[below]):
        below = further
    source = np.full(size, ZERO, np.int64)
    on_path = step.path[leaves]
    there = on_path >= 0
    source[(start[:, None] + np.arange(on_path.shape[1]))[there]] = on_path[there] + FIRST
    return Paths(source, first[below])


def _ends(step: Step) -> tuple[I64, I64]:
    """Tokens of each row's path, and the row's own row, which is the last of it."""
    length = (step.position - step.length[step.trunk] + 1).astype(np.int64)
    return length, step.path[np.arange(step.rows), length - 1]


class Shape(NamedTuple):
    """Of a padded step."""

    rows: int
    slots: int
    trunks: int


def shape(step: Step, of: Paths) -> Shape | None:
    """The smallest that holds the step, None where none does."""
    rows = max(step.rows, len(step.read))
    if rows > MOST or len(step.trunks) > GROUPS:
        return None
    return Shape(up(rows, ROWS), up(len(of.source), SLOTS), max(4, 1 << (len(step.trunks) - 1).bit_length()))


def arrays(
    step: Step, of: Paths, starts: Sequence[int], range_first: int, layers: Sequence[LayerSpec], tile: Tile, padded: Shape | None
) -> dict[str, np.ndarray]:
    """What is sent to the device, named as in indices.py, and `own`: the row of Cache.own that each row is written to.

    starts: the first slot of each trunk. range_first: of the step's range.
    """
    n = step.rows
    length, own = _ends(step)
    start = np.array(starts, np.int32)
    places = Places(
        np.arange(n, dtype=np.int32), start[step.trunk], step.length[step.trunk].astype(np.int32), (length - 1).astype(np.int32),
        (of.first + range_first).astype(np.int32), start.astype(np.int64),
    )  # fmt: skip
    rows, reads = (n, len(step.read)) if padded is None else (padded.rows, padded.rows)
    out: dict[str, np.ndarray] = {
        "token": _to(step.token, rows), "position": _to(step.position, rows), "slot_row": np.arange(rows, dtype=np.int32),
        "own": _to(own + FIRST, rows, TRASH), "read": _to(step.read, reads),
        "source": of.source if padded is None else _to(of.source, padded.slots, ZERO),
    }  # fmt: skip
    groups = len(step.trunks) if padded is None else padded.trunks
    seen: dict[int | None, I32] = {}
    bounds = _bounds(step.trunk)
    for k in {kind(layer) for layer in layers}:
        window, head_dim, group = k
        if window not in seen:
            seen[window] = visible(places, step.position, window)
            out[f"rows:{window}"] = _to(seen[window], rows)
        tokens, keys = tile(head_dim, group)
        cut = tiles(seen[window], bounds, tokens, keys)
        out[f"tiles:{k}"] = cut if padded is None else _to(cut, -(-rows // tokens) + groups)
    window, head_dim, group = last = kind(layers[-1])
    if np.array_equal(step.read, places.slot_row):  # every row, as in most steps after a slot's first
        out["last:position"], out["last:rows"], out["last:tiles"] = out["position"], out[f"rows:{window}"], out[f"tiles:{last}"]
        return out
    tokens, keys = tile(head_dim, group)
    rows_read = seen[window][step.read]
    cut = tiles(rows_read, _bounds(step.trunk[step.read]), tokens, keys)
    out["last:position"] = _to(step.position[step.read], reads)
    out["last:rows"] = _to(rows_read, reads)
    out["last:tiles"] = cut if padded is None else _to(cut, -(-reads // tokens) + groups)
    return out


def _bounds(trunk: I32) -> I64:
    """Where rows of one trunk begin, and the end."""
    return np.array([0, *(np.flatnonzero(trunk[1:] != trunk[:-1]) + 1).tolist(), len(trunk)], np.int64)


def _to(values: np.ndarray, rows: int, fill: int = 0) -> np.ndarray:
    """Filled up to so many rows. A tile of zeros is no work."""
    if len(values) == rows:
        return values
    out = np.empty((rows, *values.shape[1:]), values.dtype)
    out[: len(values)] = values
    out[len(values) :] = fill
    return out
