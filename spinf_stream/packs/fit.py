"""Small convex fits by Newton's method, with what keeps them finite on few or separable labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spinf_stream.questions.plan import F64, I64, Bool

_STEPS = 100


def platt(x: F64, y: Bool) -> tuple[float, float]:
    """(a, b) of sigmoid(a x + b) by maximum likelihood against Platt's smoothed targets.

    Targets (n+ + 1)/(n+ + 2) and 1/(n- + 2) instead of 1 and 0 (J. Platt 1999, section 2.2) keep a perfectly separated
    sample from sending a to infinity; the Newton steps are those of Lin, Lin and Weng (2007), halved until they descend.
    """
    up, down = int(y.sum()), int((~y).sum())
    if not up or not down:
        raise ValueError("needs labels of both kinds")
    target = np.where(y, (up + 1) / (up + 2), 1 / (down + 2))
    a, b = logistic(np.asarray(x, np.float64)[:, None], target, ridge=1e-9)
    return float(a[0]), b


def platt_joint(x: F64, truth: I64) -> tuple[F64, F64]:
    """(a [C], b [C]) for macros x [N, C] where each row has exactly one category, truth [N].

    Fitted apart, each category's score is right by itself, but the shares s_c / sum s are too timid: the categories see
    the same evidence, and normalising counts it once where each was fitted to say it alone. So the loss is the mean over
    the categories of their own cross entropy, plus the cross entropy of the choice.
    """
    n, c = x.shape
    yes = truth[:, None] == np.arange(c)
    up = yes.sum(0)
    target = np.where(yes, (up + 1) / (up + 2), 1 / (n - up + 2))
    rows = np.arange(n)

    def loss(w: F64) -> tuple[float, F64]:
        s = w[:c] * x + w[c:]
        log_score = -np.logaddexp(0.0, -s)
        top = log_score.max(1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(log_score - top).sum(1))
        own = np.sum(np.logaddexp(0.0, s) - target * s) / c
        choice = np.sum(total - log_score[rows, truth])
        slope = (sigmoid(s) - target) / c + (np.exp(log_score - total[:, None]) - yes) * sigmoid(-s)
        return float(own + choice), np.concatenate([(slope * x).sum(0), slope.sum(0)])

    start = [platt(x[:, i], yes[:, i]) for i in range(c)]
    w = _bfgs(loss, np.array([a for a, _ in start] + [b for _, b in start]))
    return w[:c], w[c:]


def _bfgs(loss: Callable[[F64], tuple[float, F64]], w: F64) -> F64:
    """Quasi-Newton descent with halved steps; for tens of parameters."""
    inverse = np.eye(len(w))
    now, slope = loss(w)
    for _ in range(500):
        step = -inverse @ slope
        fall = float(slope @ step)
        if fall > -1e-10 * max(1.0, abs(now)):
            break
        size = 1.0
        while True:
            then, new_slope = loss(w + size * step)
            if then <= now + 1e-4 * size * fall or size < 1e-12:
                break
            size /= 2
        if then >= now:
            break
        moved, turned = size * step, new_slope - slope
        w, now, slope = w + moved, then, new_slope
        along = float(moved @ turned)
        if along > 1e-12:  # otherwise the curvature is not positive here and the old estimate serves
            left = np.eye(len(w)) - np.outer(moved, turned) / along
            inverse = left @ inverse @ left.T + np.outer(moved, moved) / along
    return w


def logistic(x: F64, target: F64, ridge: float) -> tuple[F64, float]:
    """Weights [features] and intercept that minimise sum of cross entropies + ridge/2 |w|^2. Targets lie in [0, 1]."""
    n, k = x.shape
    design = np.hstack([x, np.ones((n, 1))])
    penalty = np.append(np.full(k, ridge), 0.0)
    w = np.zeros(k + 1)

    def loss(w: F64) -> float:
        s = design @ w
        return float(np.sum(np.logaddexp(0.0, s) - target * s) + 0.5 * np.sum(penalty * w * w))

    now = loss(w)
    for _ in range(_STEPS):
        p = sigmoid(design @ w)
        slope = design.T @ (p - target) + penalty * w
        curve = (design * (p * (1.0 - p))[:, None]).T @ design + np.diag(penalty + 1e-12)
        step = np.linalg.solve(curve, slope)
        size = 1.0
        while (then := loss(w - size * step)) > now and size > 1e-10:
            size /= 2
        if then >= now:
            break
        done = now - then < 1e-12 * max(1.0, abs(now))
        w, now = w - size * step, then
        if done:
            break
    return w[:-1], float(w[-1])


def sigmoid(x: F64) -> F64:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


class NoThreshold(ValueError):
    """No threshold reaches the target; says the best that can be had."""


def threshold_f1(score: F64, y: Bool) -> float:
    """The cut between two neighbouring scores with the highest F1; the higher cut on ties."""
    cuts, hits, flagged = _cuts(score, y)
    f1 = 2 * hits / (flagged + y.sum())
    return float(cuts[np.flatnonzero(f1 == f1.max())[0]])


def threshold_precision(score: F64, y: Bool, precision: float, least: int = 5) -> float:
    """The lowest cut whose precision is at least the target, over `least` flagged articles or more. Raises NoThreshold."""
    cuts, hits, flagged = _cuts(score, y)
    reached = np.flatnonzero((hits / flagged >= precision) & (flagged >= least))
    if not len(reached):
        usable = flagged >= least
        best = (hits / flagged)[usable].max() if usable.any() else 0.0
        raise NoThreshold(f"no threshold reaches precision {precision:g} on the fitting part (best {best:.3f} with at least {least} flagged)")
    return float(cuts[reached[-1]])


def threshold_rate(normal: F64, rate: float) -> float:
    """The score that a share `rate` of normal traffic reaches."""
    return float(np.quantile(normal, 1.0 - rate))


def _cuts(score: F64, y: Bool) -> tuple[F64, F64, F64]:
    """Cuts from high to low, each with its hits and its flagged count; a cut lies halfway to the next lower score."""
    order = np.argsort(-score, kind="stable")
    s = score[order]
    last = np.append(np.flatnonzero(np.diff(s)), len(s) - 1)
    hits = np.cumsum(y[order])[last].astype(np.float64)
    below = s[np.minimum(last + 1, len(s) - 1)]
    return (s[last] + below) / 2, hits, (last + 1).astype(np.float64)
