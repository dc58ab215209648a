"""Score drift: how far the live scores of a category have moved from the traffic it was calibrated on, or from a recorded
baseline (baseline.py), which a draft can have too: then the model's own probabilities are followed.

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

from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import Pack
from spinf_stream.packs.stored import Scores, StoredError, answers_in
from spinf_stream.questions.plan import F64

GROUPS = 10
WINDOW = 2_000  # articles; at ten groups chance alone stays near 0.005
LEAST = 200
_SMOOTH = 0.5  # added to every count, so that an empty group has a finite share


class Key(NamedTuple):
    pack: str
    context: str
    category: str


class Baseline(NamedTuple):
    """Groups between ascending edges: group g holds scores with exactly g edges at or below them."""

    edges: F64  # [G-1]
    shares: F64  # [G], sums to 1

    def group(self, score: float) -> int:
        return int(np.searchsorted(self.edges, score, "right"))


class Recorded(NamedTuple):
    baseline: Baseline
    raw: bool  # of the model's own probabilities, not of scores


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
    """The last `window` scores of each category of the active packs. Thread-safe."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._baselines: dict[Key, Baseline] = {}
        self._scored: set[Key] = set()  # those of scores; the others are of probabilities
        self._raw: list[Evaluator] = []  # for these
        self._recent: dict[Key, deque[int]] = {}
        self._counts: dict[Key, list[int]] = {}
        self._lock = threading.Lock()
        self.unreadable = 0  # answers from which no probabilities could be taken
        self.why = ""

    @property
    def baselines(self) -> int:
        """How many categories have one."""
        return len(self._baselines)

    def watch(self, packs: Sequence[tuple[Pack, str]], recorded: Mapping[Key, Recorded] | None = None) -> None:
        """Follow these packs in these contexts; a recorded baseline goes before the pack's own quantiles. A category whose
        baseline is unchanged keeps its window."""
        fresh: dict[Key, Baseline] = {}
        scored: set[Key] = set()
        for pack, context in packs:
            for name, spec in pack.categories.items():
                key, q = Key(pack.id, context, name), spec.normal_quantiles
                own = from_quantiles(q.levels, q.values) if q is not None and pack.calibrated and spec.fitted else None  # the others rest on few texts
                given = (recorded or {}).get(key)
                if (baseline := given.baseline if given else own) is not None:
                    fresh[key] = baseline
                    scored |= set() if given and given.raw else {key}
        raw = [Evaluator(pack, context) for pack, context in packs if any(k[:2] == (pack.id, context) for k in fresh.keys() - scored)]
        with self._lock:
            for key, b in fresh.items():
                old = self._baselines.get(key)
                if old is None or not (np.array_equal(old.edges, b.edges) and np.array_equal(old.shares, b.shares)):
                    self._recent[key] = deque()
                    self._counts[key] = [0] * len(b.shares)
            for key in self._baselines.keys() - fresh.keys():
                del self._recent[key], self._counts[key]
            self._baselines, self._scored, self._raw = fresh, scored, raw

    def add(self, entries: Sequence[Mapping[str, Any]], scores: Scores | None = None) -> None:
        """The `packs` of one record, and its `scores` where probabilities are followed. Entries without scores count nothing."""
        with self._lock:
            for entry in entries:
                for name, category in (entry.get("categories") or {}).items():
                    key = Key(entry["id"], entry["context"], name)
                    if key in self._scored:
                        self._count(key, category["score"])
            for evaluator in self._raw if scores is not None else ():
                assert scores is not None
                pack = evaluator.pack
                try:
                    stored = answers_in(scores, entries, pack, evaluator.context)
                except StoredError as e:
                    self.unreadable, self.why = self.unreadable + 1, str(e)
                    continue
                for s in stored:
                    for name, value in zip(pack.categories, evaluator.raw(s.p[None])[0].tolist()):
                        key = Key(pack.id, evaluator.context, name)
                        if key in self._baselines and key not in self._scored:
                            self._count(key, value)

    def figures(self) -> dict[Key, float]:
        """The index of every category with at least LEAST articles in its window."""
        with self._lock:
            return {key: psi(b, self._counts[key]) for key, b in self._baselines.items() if len(self._recent[key]) >= LEAST}

    def _count(self, key: Key, value: float) -> None:
        group = self._baselines[key].group(value)
        recent, counts = self._recent[key], self._counts[key]
        recent.append(group)
        counts[group] += 1
        if len(recent) > self._window:
            counts[recent.popleft()] -= 1
