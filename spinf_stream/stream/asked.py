"""What a scorer can say of its questions beyond the protocol: packs and floors. A fake has neither and says nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spinf_stream.packs.file import Pack


class FloorCounts(NamedTuple):
    """Prompts that have a floor."""

    cached: int
    computed: int


def packs(scorer: object) -> list[tuple[Pack, str]]:
    """The packs that it asks, each with its context."""
    return [(ask.pack.pack, ask.pack.context) for ask in getattr(scorer, "asks", ()) if ask.pack is not None]


def floors(scorer: object) -> FloorCounts:
    asks = getattr(scorer, "asks", ())
    computed = sum(ask.floors.computed for ask in asks)
    total = sum(int(np.isfinite(ask.floors.residual).sum()) for ask in asks)
    return FloorCounts(max(0, total - computed), computed)
