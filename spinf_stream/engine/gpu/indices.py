"""Everything of a pass that its kernels index with, as one dict of arrays: what is sent to the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spinf_stream.engine.forest import Layout
from spinf_stream.engine.gpu.tables import Slots, tiles, visible
from spinf_stream.engine.stack import LayerSpec
from spinf_stream.questions.plan import I64

SCRATCH = 1 << 27  # candidate logits held at once (float32)


class Heads(NamedTuple):
    """How the head reads: which rows need a norm, and how candidates fall into steps of the scratch."""

    need: I64  # reads with read_norm or read_end
    distinct: int  # distinct candidate tokens of the pass
    steps: tuple[tuple[int, int, int, int], ...]  # reads lo:hi, their candidates lo:hi


def kind(layer: LayerSpec) -> tuple[int | None, int, int]:
    """Layers of one kind share their tiles: window, head_dim, query heads a key head."""
    return layer.window, layer.head_dim, layer.heads // layer.kv_heads


def indices(
    layout: Layout, slots: Slots, layers: Sequence[LayerSpec], tile: Callable[[int, int], tuple[int, int]]
) -> tuple[dict[str, np.ndarray], Heads]:
    """Arrays by name; `rows:W` and `tiles:KIND` for each window and kind, `last:...` for the last layer's read rows."""
    places = slots.places(layout)
    last = kind(layers[-1])
    out: dict[str, np.ndarray] = {"token": layout.token, "position": layout.position, "slot_row": places.slot_row}
    for k in {kind(layer) for layer in layers}:
        window, head_dim, group = k
        rows_name = f"rows:{window}"
        if rows_name not in out:
            out[rows_name] = visible(places, layout.position, window)
        tokens, keys = tile(head_dim, group)
        out[f"tiles:{k}"] = tiles(out[rows_name], layout.row, tokens, keys)
    read = layout.read_row
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum([c.reads for c in layout.chunk], dtype=np.int64)])
    out["read"] = read
    out["last:position"] = layout.position[read]
    out["last:rows"] = out[f"rows:{last[0]}"][read]
    out["last:tiles"] = tiles(out["last:rows"], bounds, *tile(last[1], last[2]))
    heads = _heads(layout, out)
    return out, heads


def _heads(layout: Layout, out: dict[str, np.ndarray]) -> Heads:
    """Candidate logits are computed for reads x distinct tokens, then picked: adds `cand_token`, `pick` and `need`."""
    distinct, at = np.unique(layout.cand_token, return_inverse=True)
    u, reads = max(1, len(distinct)), len(layout.read_row)
    size = max(1, SCRATCH // u)
    of_read = np.repeat(np.arange(reads, dtype=np.int64), np.diff(layout.cand_ptr))
    out["cand_token"] = distinct.astype(np.int32)
    out["pick"] = (of_read % size) * u + at.reshape(-1)
    need = np.flatnonzero(layout.read_norm | layout.read_end).astype(np.int64)
    out["need"] = need
    steps = []
    for lo in range(0, reads, size):
        hi = min(reads, lo + size)
        steps.append((lo, hi, int(layout.cand_ptr[lo]), int(layout.cand_ptr[hi])))
    return Heads(need, len(distinct), tuple(steps))
