"""Random numbers that depend on what they are for, not on when they are drawn: a counter-based generator (Philox)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator, Philox


def uniform(key: tuple[int, int], sequence: int, step: int) -> float:
    """In [0, 1). key: two 64-bit numbers that stand for the article, the slot and the seed."""
    counter = np.array([step, sequence, 0, 0], np.uint64)
    return float(Generator(Philox(key=np.array(key, np.uint64), counter=counter)).random())


def uniforms(key: tuple[int, int], sequence: int, steps: int) -> list[float]:
    """Those of steps 0 .. steps-1 at once. The generator counts on after four numbers, of which a step takes the first."""
    counter = np.array([0, sequence, 0, 0], np.uint64)
    out: list[float] = Generator(Philox(key=np.array(key, np.uint64), counter=counter)).random(4 * steps)[::4].tolist()
    return out
