"""Fits and figures against closed forms and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spinf_stream.packs.figures import auc, binary, bins, ece, paired_bootstrap, top, wilson
from spinf_stream.packs.fit import (
    NoThreshold,
    logistic,
    platt,
    platt_joint,
    sigmoid,
    threshold_f1,
    threshold_precision,
    threshold_rate,
)


def sample(n: int, a: float, b: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return x, rng.random(n) < sigmoid(a * x + b)


def test_platt_finds_the_truth() -> None:
    x, y = sample(200_000, 1.7, -0.8)
    assert platt(x, y) == pytest.approx((1.7, -0.8), abs=0.03)


def test_platt_is_a_minimum() -> None:
    """No step in any direction lowers the loss against the smoothed targets."""
    x, y = sample(300, 2.0, 0.5)
    a, b = platt(x, y)
    t = np.where(y, (y.sum() + 1) / (y.sum() + 2), 1 / ((~y).sum() + 2))

    def loss(a: float, b: float) -> float:
        s = a * x + b
        return float(np.sum(np.logaddexp(0, s) - t * s))

    assert all(loss(a, b) <= loss(a + da, b + db) for da in (-1e-3, 0, 1e-3) for db in (-1e-3, 0, 1e-3))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_platt_stays_finite_on_separable_labels(scale: float) -> None:
    x = np.linspace(-1, 1, 40) * scale
    a, b = platt(x, x > 0)
    assert math.isfinite(a) and math.isfinite(b) and 0 < a * scale < 100
    assert float(sigmoid(np.array(a * x[-1] + b))) < 1


def test_platt_needs_both_kinds() -> None:
    with pytest.raises(ValueError, match="both kinds"):
        platt(np.arange(3.0), np.array([True, True, True]))


def choices(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Evidence that all categories share: each sees the truth through the same fog."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 4, n)
    return 1.6 * (truth[:, None] == np.arange(4)) + rng.normal(0, 1, (n, 4)), truth


def test_the_joint_fit_calibrates_the_choice() -> None:
    x, truth = choices(4_000, 1)
    fresh, fresh_truth = choices(20_000, 2)
    apart = np.array([platt(x[:, c], truth == c) for c in range(4)])
    a, b = platt_joint(x, truth)
    one = top(sigmoid(apart[:, 0] * fresh + apart[:, 1]), fresh_truth)
    two = top(sigmoid(a * fresh + b), fresh_truth)
    assert two.log_loss < one.log_loss and two.ece < one.ece
    own = [binary(sigmoid(a[c] * fresh[:, c] + b[c]), fresh_truth == c, None).ece for c in range(4)]
    assert max(own) < 0.06


def test_the_joint_fit_is_a_minimum() -> None:
    x, truth = choices(300, 3)
    a, b = platt_joint(x, truth)
    n = np.bincount(truth, minlength=4)
    yes = truth[:, None] == np.arange(4)
    target = np.where(yes, (n + 1) / (n + 2), 1 / (300 - n + 2))

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        s = a * x + b
        p = sigmoid(s)
        own = -(target * np.log(p) + (1 - target) * np.log(1 - p)).mean(1).sum()
        return float(own - np.log((p / p.sum(1, keepdims=True))[np.arange(300), truth]).sum())

    rng = np.random.default_rng(4)
    best = loss(a, b)
    assert all(loss(a + rng.normal(0, 0.03, 4), b + rng.normal(0, 0.03, 4)) > best for _ in range(200))


def test_logistic_with_several_features_and_a_ridge() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50_000, 3))
    y = rng.random(50_000) < sigmoid(x @ [1.0, -2.0, 0.0] + 0.5)
    w, b = logistic(x, y.astype(float), 1.0)
    assert [*w, b] == pytest.approx([1.0, -2.0, 0.0, 0.5], abs=0.05)
    tame, _ = logistic(x[:30], (x[:30, 0] > 0).astype(float), 1.0)
    assert np.abs(tame).max() < 10


def test_thresholds_against_brute_force() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        score = np.round(rng.random(40), 1)  # many ties
        y = rng.random(40) < score
        if not y.any() or y.all():
            continue
        tries = [s + d for s in np.unique(score) for d in (-1e-9, 1e-9)]
        best = max(binary(score, y, t).f1 for t in tries if (score >= t).any())
        assert binary(score, y, threshold_f1(score, y)).f1 == pytest.approx(best)
        try:
            cut = threshold_precision(score, y, 0.8)
        except NoThreshold:
            assert all((score >= t).sum() < 5 or binary(score, y, t).precision < 0.8 for t in tries)
        else:
            assert binary(score, y, cut).precision >= 0.8
            assert all((score >= t).sum() <= (score >= cut).sum() or binary(score, y, t).precision < 0.8 for t in tries)


def test_threshold_of_a_flag_rate() -> None:
    normal = np.arange(1000) / 1000
    assert (normal >= threshold_rate(normal, 0.05)).mean() == pytest.approx(0.05, abs=1e-3)


def test_wilson_against_known_values() -> None:
    got = wilson(8, 10)
    assert (got.low, got.high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson(0, 20).low == 0 and wilson(20, 20).high == 1 and math.isnan(wilson(0, 0).value)


def test_auc_against_all_pairs() -> None:
    rng = np.random.default_rng(3)
    score, y = np.round(rng.random(60), 1), rng.random(60) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in score[y] for b in score[~y]]
    assert auc(score, y) == pytest.approx(np.mean(pairs))
    assert math.isnan(auc(score, np.zeros(60, bool)))


def test_figures_of_a_small_table() -> None:
    score, y = np.array([0.9, 0.8, 0.4, 0.1]), np.array([True, False, True, False])
    b = binary(score, y, None)
    assert (b.accuracy, b.precision, b.recall, b.f1, b.auc) == (0.5, 0.5, 0.5, 0.5, 0.75)
    assert b.brier == pytest.approx((0.01 + 0.64 + 0.36 + 0.01) / 4)
    assert b.log_loss == pytest.approx(-np.mean(np.log([0.9, 0.2, 0.4, 0.9])))
    assert math.isnan(binary(score, y, 2.0).precision)


def test_calibration_error() -> None:
    rng = np.random.default_rng(4)
    p = rng.random(100_000)
    right = rng.random(100_000) < p
    assert ece(bins(p, right)) < 0.01
    assert ece(bins(np.full(1000, 0.9), np.arange(1000) % 5 < 3)) == pytest.approx(0.3)
    assert [b.size for b in bins(p[:95], right[:95])] == [10] * 5 + [9] * 5


def test_the_choice_among_categories() -> None:
    score = np.array([[0.2, 0.2], [0.9, 0.1], [0.3, 0.6]])
    t = top(score, np.array([1, 0, 1]))
    assert t.accuracy.value == pytest.approx(2 / 3)
    assert t.log_loss == pytest.approx(-np.mean(np.log([0.5, 0.9, 2 / 3])))


def test_the_paired_bootstrap_sees_a_small_steady_gain() -> None:
    rng = np.random.default_rng(5)
    before = rng.random(200)
    gain = paired_bootstrap(before, before - 0.05 + rng.normal(0, 0.02, 200))
    assert gain.low < gain.value < gain.high < 0 and gain.value == pytest.approx(-0.05, abs=0.01)
    none = paired_bootstrap(before, before + rng.normal(0, 1, 200))
    assert none.low < 0 < none.high
