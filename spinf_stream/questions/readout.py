"""From candidate log-probabilities to options: pure numpy, float64, in a fixed order, no Python per question."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spinf_stream.questions.plan import F64, I64, Plan


class Read(NamedTuple):
    """Answers of one tree: O options, Q prompts, plan order. NaN stands for the null of `residual: false`."""

    logprob: F64  # [O]
    p: F64  # [O] softmax over the prompt's options
    residual: F64  # [Q] mass outside the options, never negative


def read_out(plan: Plan, cand: F64, end: F64) -> Read:
    """cand [C], end [R] as in TreeOutput. See plan.py for the formulas."""
    variant = np.add.reduceat(cand[plan.step_cand], plan.step_ptr[:-1].astype(np.int64))
    variant = variant + np.where(plan.variant_end >= 0, end[plan.variant_end], 0.0)
    logprob = _logsumexp(variant, starts(plan.variant_option))
    of_prompt = starts(plan.option_prompt)
    total = _logsumexp(logprob, of_prompt)
    p = np.exp(logprob - total[plan.option_prompt])
    residual = np.maximum(0.0, 1.0 - np.add.reduceat(np.exp(np.minimum(logprob, 0.0)), of_prompt))
    residual[~plan.prompt_norm] = np.nan
    logprob = np.where(plan.prompt_norm[plan.option_prompt], logprob, np.nan)
    return Read(logprob, p, residual)


def starts(group: np.ndarray) -> I64:
    """First index of each run of a non-decreasing group column that begins at 0 and leaves no group out."""
    return np.flatnonzero(np.diff(group, prepend=-1)).astype(np.int64)


def _logsumexp(x: F64, at: I64) -> F64:
    top = np.maximum.reduceat(x, at)
    size = np.diff(np.append(at, len(x)))
    return top + np.log(np.add.reduceat(np.exp(x - np.repeat(top, size)), at))
