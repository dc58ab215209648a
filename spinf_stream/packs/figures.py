"""Figures of a classifier on labelled data, with their uncertainty."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from spinf_stream.questions.plan import F64, I64, Bool

Z95 = 1.959963984540054
BINS = 10
_TINY = 1e-6


class Interval(NamedTuple):
    value: float
    low: float
    high: float


class Binary(NamedTuple):
    """One category. NaN where a figure has no meaning, such as AUC with one class."""

    accuracy: float
    precision: float
    recall: float
    f1: float
    auc: float
    brier: float
    log_loss: float
    ece: float


class Bin(NamedTuple):
    """A group of articles of similar score."""

    size: int
    score: float  # mean
    rate: float  # share that is positive (or right)
    low: float  # Wilson, 95 %
    high: float


def wilson(hits: float, n: float, z: float = Z95) -> Interval:
    """Share with its Wilson interval."""
    if not n:
        return Interval(math.nan, math.nan, math.nan)
    p = hits / n
    mid = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Interval(p, max(0.0, mid - half), min(1.0, mid + half))


def binary(score: F64, y: Bool, threshold: float | None) -> Binary:
    flagged = score >= (0.5 if threshold is None else threshold)
    hits, wrong, missed = int((flagged & y).sum()), int((flagged & ~y).sum()), int((~flagged & y).sum())
    return Binary(
        accuracy=float((flagged == y).mean()),
        precision=hits / (hits + wrong) if hits + wrong else math.nan,
        recall=hits / (hits + missed) if hits + missed else math.nan,
        f1=2 * hits / (2 * hits + wrong + missed) if hits + wrong + missed else math.nan,
        auc=auc(score, y),
        brier=float(np.mean((score - y) ** 2)),
        log_loss=float(log_loss(score, y).mean()),
        ece=ece(bins(score, y)),
    )


def log_loss(score: F64, y: Bool) -> F64:
    """Per article."""
    s = np.clip(score, _TINY, 1 - _TINY)
    return np.where(y, -np.log(s), -np.log1p(-s))


def auc(score: F64, y: Bool) -> float:
    """The chance that a positive article scores above a negative one, ties half."""
    up = int(y.sum())
    down = len(y) - up
    if not up or not down:
        return math.nan
    _, group, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[group]
    return float((rank[y].sum() - up * (up + 1) / 2) / (up * down))


def bins(score: F64, right: Bool, n: int = BINS) -> list[Bin]:
    """Groups of equal mass, from low to high."""
    order = np.argsort(score, kind="stable")
    out = []
    for part in np.array_split(order, min(n, len(order))):
        rate = wilson(int(right[part].sum()), len(part))
        out.append(Bin(len(part), float(score[part].mean()), rate.value, rate.low, rate.high))
    return out


def ece(groups: list[Bin]) -> float:
    """Expected calibration error: the mean distance between score and rate, weighted by mass."""
    return sum(b.size * abs(b.score - b.rate) for b in groups) / sum(b.size for b in groups)


class Top(NamedTuple):
    """One of several categories, each article having exactly one: the highest normalised score is the choice."""

    accuracy: Interval
    ece: float
    log_loss: float
    losses: F64  # per article
    confidence: F64  # the choice's share, per article
    right: Bool
    groups: list[Bin]


def top(score: F64, truth: I64) -> Top:
    """score [A, C], not normalised; truth [A] index of the right category."""
    share = np.clip(score, _TINY, None)
    share = share / share.sum(1, keepdims=True)
    choice = share.argmax(1)
    right = choice == truth
    confidence = share.max(1)
    groups = bins(confidence, right)
    losses = -np.log(np.clip(share[np.arange(len(truth)), truth], _TINY, None))
    return Top(wilson(int(right.sum()), len(right)), ece(groups), float(losses.mean()), losses, confidence, right, groups)


def paired_bootstrap(before: F64, after: F64, draws: int = 10_000, seed: int = 0) -> Interval:
    """Mean of after - before with its 95 % percentile interval, articles resampled in pairs."""
    difference = after - before
    rng = np.random.default_rng(seed)
    means = np.empty(draws)
    for at in range(0, draws, 500):  # in blocks, to bound memory
        rows = rng.integers(0, len(difference), (min(500, draws - at), len(difference)))
        means[at : at + len(rows)] = difference[rows].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(difference.mean()), float(low), float(high))
