"""Score drift: how far the live scores of a category have moved from the traffic it was calibrated on.

The population-stability index over groups of equal mass of the baseline: sum of (live - expected) ln(live / expected).
By custom below 0.1 is steady, 0.1 to 0.25 worth a look, above 0.25 a change of model, pack or source. Chance alone gives
about (groups - 1) / articles, so a window below `LEAST` articles has no figure.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.packs.file import Pack
from spinf_stream.questions.plan import F64

GROUPS = 10
WINDOW = 2_000  # articles; at ten groups chance alone stays near 0.005
LEAST = 200
_SMOOTH = 0.5  # added to every count, so that an empty group has a finite share


class Baseline(NamedTuple):
    """Groups between ascending edges: group g holds scores with exactly g edges at or below them."""

    edges: F64  # [G-1]
    shares: F64  # [G], sums to 1

    def group(self, score: float) -> int:
        return int(np.searchsorted(self.edges, score, "right"))


def from_quantiles(levels: Sequence[float], values: Sequence[float], groups: int = GROUPS) -> Baseline | None:
    """A baseline of equal mass from a pack's normal_quantiles. None when the values leave fewer than two groups."""
    wanted = np.arange(1, groups) / groups
    edges = np.interp(wanted, levels, values)
    # the rounding of stored values can lay edges on each other, and mass on a point cannot be split
    kept, first = np.unique(edges, return_index=True)
    if not len(kept):
        return None
    marks = wanted[first]
    shares = np.diff(np.concatenate([[0.0], marks, [1.0]]))
    return Baseline(kept, shares)


def from_scores(scores: Sequence[float], groups: int = GROUPS) -> Baseline | None:
    """A recorded baseline, for a pack without quantiles."""
    x = np.sort(np.asarray(scores, np.float64))
    if len(x) < LEAST:
        return None
    edges = np.unique(np.quantile(x, np.arange(1, groups) / groups))
    counts = np.bincount(np.searchsorted(edges, x, "right"), minlength=len(edges) + 1)
    return Baseline(edges, counts / counts.sum())


def psi(baseline: Baseline, counts: Sequence[float]) -> float:
    """Of live counts by group. Never negative."""
    live = np.asarray(counts, np.float64) + _SMOOTH
    live /= live.sum()
    expected = baseline.shares + _SMOOTH / max(1.0, float(np.sum(counts)))
    expected = expected / expected.sum()
    return float(np.sum((live - expected) * np.log(live / expected)))


class Drift:
    """The last `window` scores of each category of the active packs, by (pack, context, category). Thread-safe."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._baselines: dict[tuple[str, str, str], Baseline] = {}
        self._recent: dict[tuple[str, str, str], deque[int]] = {}
        self._counts: dict[tuple[str, str, str], list[int]] = {}
        self._lock = threading.Lock()

    @property
    def baselines(self) -> int:
        """How many categories have one."""
        return len(self._baselines)

    def watch(self, packs: Sequence[tuple[Pack, str]]) -> None:
        """Follow these packs in these contexts. A category whose baseline is unchanged keeps its window."""
        fresh: dict[tuple[str, str, str], Baseline] = {}
        for pack, context in packs:
            for name, spec in pack.categories.items():
                q = spec.normal_quantiles
                baseline = from_quantiles(q.levels, q.values) if q is not None and pack.calibrated else None
                if baseline is not None:
                    fresh[pack.id, context, name] = baseline
        with self._lock:
            for key, b in fresh.items():
                old = self._baselines.get(key)
                if old is None or not (np.array_equal(old.edges, b.edges) and np.array_equal(old.shares, b.shares)):
                    self._recent[key] = deque()
                    self._counts[key] = [0] * len(b.shares)
            for key in self._baselines.keys() - fresh.keys():
                del self._recent[key], self._counts[key]
            self._baselines = fresh

    def add(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """The `packs` of one record. Entries without scores count nothing."""
        with self._lock:
            for entry in entries:
                for name, category in (entry.get("categories") or {}).items():
                    key = (entry["id"], entry["context"], name)
                    baseline = self._baselines.get(key)
                    if baseline is None:
                        continue
                    group = baseline.group(category["score"])
                    recent, counts = self._recent[key], self._counts[key]
                    recent.append(group)
                    counts[group] += 1
                    if len(recent) > self._window:
                        counts[recent.popleft()] -= 1

    def figures(self) -> dict[tuple[str, str, str], float]:
        """The index of every category with at least LEAST articles in its window."""
        with self._lock:
            return {key: psi(b, self._counts[key]) for key, b in self._baselines.items() if len(self._recent[key]) >= LEAST}
