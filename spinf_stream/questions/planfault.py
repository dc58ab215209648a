"""Is this a plan? The invariants of plan.py, checked in numpy: a cache file is data from outside."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spinf_stream.questions.plan import Plan


def plan_fault(plan: Plan) -> str | None:
    """What is wrong with the arrays, or None."""
    n, r, c, v, o, q = plan.nodes, plan.reads, len(plan.cand_token), len(plan.variant_option), plan.options, plan.prompts
    sizes = {
        "parent": n, "depth": n, "end": n, "read_norm": r, "read_end": r, "cand_ptr": r + 1, "step_ptr": v + 1, "variant_end": v,
    }  # fmt: skip
    for name, size in sizes.items():
        if len(getattr(plan, name)) != size:
            return f"{name} has {len(getattr(plan, name))} entries instead of {size}"
    at = np.arange(n)
    checks = {
        "token": (plan.token >= 0).all(),
        "parent": (plan.parent >= -1).all() and (plan.parent < at).all(),
        "end": (plan.end > at).all() and (plan.end <= n).all(),
        "read_node": (plan.read_node >= -1).all() and (plan.read_node < n).all() and _ascending(plan),
        "cand_ptr": _pointers(plan.cand_ptr, c, 0),
        "cand_token": (plan.cand_token >= 0).all(),
        "step_ptr": _pointers(plan.step_ptr, len(plan.step_cand), 1),
        "step_cand": (plan.step_cand >= 0).all() and (plan.step_cand < c).all(),
        "variant_end": (plan.variant_end >= -1).all() and (plan.variant_end < r).all(),
        "variant_option": _runs(plan.variant_option, o),
        "option_prompt": _runs(plan.option_prompt, q),
    }
    for name, good in checks.items():
        if not good:
            return f"{name} is out of range or out of order"
    if n:
        inner = plan.parent >= 0
        depth = np.where(inner, plan.depth[plan.parent] + 1, 0)
        if not np.array_equal(depth, plan.depth):
            return "depth does not follow from parent"
        if not np.array_equal(plan.end, _ends(plan)) or (plan.end[plan.parent[inner]] <= at[inner]).any():
            return "end does not follow from parent"
    inside = np.ones(c, np.bool_)
    inside[plan.cand_ptr[:-1][plan.cand_ptr[:-1] < c]] = False  # the first candidate of each read
    if (inside[1:] & (np.diff(plan.cand_token) <= 0)).any():
        return "cand_token is not ascending within a read"
    of_cand = np.repeat(plan.read_norm, np.diff(plan.cand_ptr))
    if not np.array_equal(of_cand[plan.step_cand], np.repeat(plan.prompt_norm[plan.option_prompt[plan.variant_option]], np.diff(plan.step_ptr))):
        return "read_norm is not what the prompts ask for"
    if (plan.variant_end >= 0).any() and not plan.read_end[plan.variant_end[plan.variant_end >= 0]].all():
        return "variant_end names a read without read_end"
    return None


def _ascending(plan: Plan) -> bool:
    return bool((np.diff(2 * plan.read_node.astype(np.int64) + plan.read_norm) > 0).all())


def _pointers(pointer: NDArray[np.int32], last: int, least: int) -> bool:
    return bool(pointer[0] == 0 and pointer[-1] == last and (np.diff(pointer) >= least).all())


def _runs(group: NDArray[np.int32], groups: int) -> bool:
    """Non-decreasing, from 0, no group left out."""
    return bool(np.array_equal(np.unique(group), np.arange(groups)) and (np.diff(group) >= 0).all())


def _ends(plan: Plan) -> NDArray[np.int32]:
    """In pre-order a subtree ends at the next node that is not deeper."""
    end = np.full(plan.nodes, plan.nodes, np.int32)
    for level in range(int(plan.depth.max()) + 1):
        here = np.flatnonzero(plan.depth == level)
        stops = np.flatnonzero(plan.depth <= level)
        after = np.searchsorted(stops, here, "right")
        found = after < len(stops)
        end[here[found]] = stops[after[found]]
    return end
