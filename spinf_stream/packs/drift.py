"""Score drift: how far the live scores of a category have moved from the traffic it was calibrated on, or from a recorded
baseline (baseline.py), which a draft can have too: then the model's own probabilities are followed.

The population-stability index over groups of equal mass of the baseline: sum of (live - expected) ln(live / expected).
By custom below 0.1 is steady, 0.1 to 0.25 worth a look, above 0.25 a change of model, pack or source. Chance alone gives
about (groups - 1) / articles, so a window below `LEAST` articles has no figure.

The window ends after so many articles or so many seconds, whichever comes first, and never below LEAST: a change shows
once it has filled most of the window, hence within WINDOW_SECONDS, or LEAST articles where fewer come.

A pack on another model than its own publishes no score, and just that is a change to be seen: what its constants make of
the answers is computed here, for the index alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.packs.evaluate import Evaluator
from spinf_stream.packs.file import Pack
from spinf_stream.packs.stored import Scores, Stored, answers_in
from spinf_stream.questions.plan import F64

GROUPS = 10
WINDOW = 2_000  # articles; at ten groups chance alone stays near 0.005
WINDOW_SECONDS = 20 * 60.0
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


class _Source(NamedTuple):
    """A pack whose values are computed here, from the answers."""

    evaluator: Evaluator
    raw: bool  # the model's own probabilities, always; else scores, where the record has none

    @property
    def place(self) -> tuple[str, str]:
        return self.evaluator.pack.id, self.evaluator.context

    def values(self, s: Stored) -> list[float]:
        """By category. Raises ValueError where an answer is not finite."""
        if self.raw:
            return list(self.evaluator.raw(s.p[None])[0].tolist())
        return list(self.evaluator.figures(self.evaluator.answers(s.p[None], s.logprob[None])).scores[0].tolist())


class _Window:
    """The groups of the latest values of a category."""

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self.counts = [0] * len(baseline.shares)
        self._recent: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, value: float, now: float, most: int) -> None:
        group = self.baseline.group(value)
        self._recent.append((now, group))
        self.counts[group] += 1
        while len(self) > most or (len(self) > LEAST and self._recent[0][0] < now - WINDOW_SECONDS):
            self.counts[self._recent.popleft()[1]] -= 1


class Drift:
    """The latest scores of each category of the active packs. Thread-safe."""

    def __init__(self, window: int = WINDOW, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = window
        self._clock = clock
        self._windows: dict[Key, _Window] = {}
        self._scored: set[Key] = set()  # those of scores; the others are of probabilities
        self._sources: list[_Source] = []
        self._lock = threading.Lock()
        self.unreadable = 0  # answers from which no values could be taken
        self.why = ""

    @property
    def baselines(self) -> int:
        """How many categories have one."""
        return len(self._windows)

    def watch(self, packs: Sequence[tuple[Pack, str]], recorded: Mapping[Key, Recorded] | None = None) -> None:
        """Follow these packs in these contexts; a recorded baseline goes before the pack's own quantiles. A category whose
        baseline is unchanged keeps its window."""
        fresh: dict[Key, _Window] = {}
        scored: set[Key] = set()
        sources: list[_Source] = []
        for pack, context in packs:
            kinds = set()  # raw or not
            for name, spec in pack.categories.items():
                key, q = Key(pack.id, context, name), spec.normal_quantiles
                own = from_quantiles(q.levels, q.values) if q is not None and pack.calibrated and spec.fitted else None  # the others rest on few texts
                given = (recorded or {}).get(key)
                if (baseline := given.baseline if given else own) is not None:
                    fresh[key] = _Window(baseline)
                    kinds.add(raw := given is not None and given.raw)
                    scored |= set() if raw else {key}
            sources += [_Source(Evaluator(pack, context), raw) for raw in sorted(kinds) if raw or pack.calibrated]
        with self._lock:
            for key, new in fresh.items():
                old = self._windows.get(key)
                if old is not None and np.array_equal(old.baseline.edges, new.baseline.edges) and np.array_equal(old.baseline.shares, new.baseline.shares):
                    fresh[key] = old
            self._windows, self._scored, self._sources = fresh, scored, sources

    def add(self, entries: Sequence[Mapping[str, Any]], scores: Scores | None = None) -> None:
        """The `packs` of one record, and its `scores`, from which is computed what the entries do not say."""
        with self._lock:
            now = self._clock()
            silent = set()
            for entry in entries:
                if entry.get("categories") is None:
                    silent.add((entry["id"], entry["context"]))
                for name, category in (entry.get("categories") or {}).items():
                    key = Key(entry["id"], entry["context"], name)
                    if key in self._scored:
                        self._windows[key].add(category["score"], now, self._most)
            for source in self._sources if scores is not None else ():
                if not (source.raw or source.place in silent):
                    continue
                assert scores is not None
                pack = source.evaluator.pack
                try:
                    values = [source.values(s) for s in answers_in(scores, entries, pack, source.evaluator.context)]
                except ValueError as e:
                    self.unreadable, self.why = self.unreadable + 1, str(e)
                    continue
                for name, value in ((n, v) for of_one in values for n, v in zip(pack.categories, of_one)):
                    key = Key(*source.place, name)
                    if key in self._windows and (key in self._scored) != source.raw:
                        self._windows[key].add(value, now, self._most)

    def figures(self) -> dict[Key, float]:
        """The index of every category with at least LEAST articles in its window."""
        with self._lock:
            return {key: psi(w.baseline, w.counts) for key, w in self._windows.items() if len(w) >= LEAST}
