"""The token trie: every distinct token path once, in pre-order, siblings in the order in which they were first asked.

Below a prompt's last token lie the lead-ins of its options: all tokens of a variant but its last, all of them where the
option must end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spinf_stream.questions.plan import I32, Plan

Ids = tuple[int, ...]


class Shape(NamedTuple):
    """The reads of one prompt, relative to its end: place 0 is the prompt's last token, place i+1 is nodes[i]."""

    nodes: tuple[tuple[int, int], ...]  # (parent place, token)
    step_place: tuple[int, ...]
    step_token: tuple[int, ...]
    steps: tuple[int, ...]  # of each variant
    end_place: tuple[int, ...]  # of each variant, empty unless the options must end
    variant_option: tuple[int, ...]
    options: int


def shape(options: Sequence[Sequence[Ids]], ends: bool) -> Shape:
    """options[o][v] are the token ids of option o's variant v, at least one each."""
    nodes: dict[tuple[int, int], int] = {}
    place: list[int] = []
    token: list[int] = []
    end: list[int] = []
    for path in (p for variants in options for p in variants):
        at = 0
        for j, t in enumerate(path):
            place.append(at)
            token.append(t)
            if ends or j + 1 < len(path):
                at = nodes.setdefault((at, t), len(nodes) + 1)
        end.append(at)
    return Shape(
        tuple(nodes), tuple(place), tuple(token),
        tuple([len(p) for variants in options for p in variants]),
        tuple(end) if ends else (),
        tuple([o for o, variants in enumerate(options) for _ in variants]),
        len(options),
    )  # fmt: skip


class Builder:
    """Prompts in, in order; a Plan out."""

    def __init__(self) -> None:
        self._child: dict[tuple[int, int], int] = {}  # (parent, token) -> node, in the order of insertion
        self._step_node: list[int] = []
        self._step_token: list[int] = []
        self._steps: list[int] = []
        self._end_node: list[int] = []  # of each variant, -2 = none
        self._variant_option: list[int] = []
        self._option_prompt: list[int] = []
        self._norm: list[bool] = []

    def prompt(self, path: Sequence[int], shape: Shape, residual: bool) -> None:
        """One filled template's token ids and what is read below it."""
        child = self._child
        node = -1
        for t in path:
            node = child.setdefault((node, t), len(child))
        at = [node]
        for parent, t in shape.nodes:
            at.append(child.setdefault((at[parent], t), len(child)))
        self._step_node += [at[p] for p in shape.step_place]
        self._step_token += shape.step_token
        self._steps += shape.steps
        self._end_node += [at[p] for p in shape.end_place] or [-2] * len(shape.steps)
        first = len(self._option_prompt)
        self._variant_option += [first + o for o in shape.variant_option]
        self._option_prompt += [len(self._norm)] * shape.options
        self._norm.append(residual)

    def plan(self) -> Plan:
        """The arrays of all prompts so far."""
        n = len(self._child)
        size = [1] * n
        keys = list(self._child)
        for i in range(n - 1, -1, -1):  # children come after their parents
            if (parent := keys[i][0]) >= 0:
                size[parent] += size[i]
        place = [0] * n  # of each node in pre-order
        free = [0] * n + [0]  # where a node's next child goes; the last entry is the trunk's (index -1)
        depth = [0] * n + [-1]
        for i, (parent, _) in enumerate(keys):
            place[i] = free[parent]
            free[parent] += size[i]
            free[i] = place[i] + 1
            depth[i] = depth[parent] + 1
        order = np.array([*place, -2, -1], np.int32)  # old node -> new; -1 stays -1, -2 stays -2
        parents, token = np.array(keys, np.int32).reshape(n, 2).T
        out = np.zeros((4, n), np.int32)
        out[:, order[:n]] = token, order[parents], depth[:n], order[:n] + np.array(size, np.int32)
        return reads(
            out, order[np.array(self._step_node, np.int64)], np.array(self._step_token, np.int32),
            np.array(self._steps, np.int32), order[np.array(self._end_node, np.int64)],
            np.array(self._variant_option, np.int32), np.array(self._option_prompt, np.int32), np.array(self._norm, np.bool_),
        )  # fmt: skip


def reads(
    trie: I32, step_node: I32, step_token: I32, steps: I32, end_node: I32, variant_option: I32, option_prompt: I32, norm: np.ndarray
) -> Plan:
    """Gather what variants ask of nodes into the reads and candidates of a plan.

    trie [4, N] = token, parent, depth, end. step_node, step_token [S]; steps, end_node [V] (-2 = none); norm [Q].
    A *place* is 2 * node + 1 with the normaliser, 2 * node without: a node asked both ways is two reads.
    """
    step_norm = np.repeat(norm[option_prompt[variant_option]], steps)
    step_place = 2 * step_node.astype(np.int64) + step_norm
    end_place = 2 * end_node.astype(np.int64) + 1
    key, step_cand = np.unique(step_place << 32 | step_token, return_inverse=True)
    cand_place = key >> 32
    has_end = end_node > -2
    read_place = np.unique(np.concatenate([cand_place, end_place[has_end]]))
    cand_ptr = np.searchsorted(cand_place, np.append(read_place, np.iinfo(np.int64).max)).astype(np.int32)
    variant_end = np.where(has_end, np.searchsorted(read_place, end_place), -1).astype(np.int32)
    step_ptr = np.concatenate([np.zeros(1, np.int32), np.cumsum(steps, dtype=np.int32)])
    read_end = np.zeros(len(read_place), np.bool_)
    read_end[variant_end[has_end]] = True
    return Plan(
        token=trie[0], parent=trie[1], depth=trie[2], end=trie[3],
        read_node=(read_place >> 1).astype(np.int32), read_norm=(read_place & 1).astype(np.bool_), read_end=read_end,
        cand_ptr=cand_ptr, cand_token=(key & 0xFFFFFFFF).astype(np.int32),
        step_ptr=step_ptr, step_cand=step_cand.astype(np.int32),
        variant_end=variant_end, variant_option=variant_option,
        option_prompt=option_prompt, prompt_norm=norm,
    )  # fmt: skip


def subset(plan: Plan, prompts: Sequence[int]) -> Plan:
    """The plan of some prompts alone: their paths, reads and candidates. prompts: ascending, distinct.

    Siblings keep their order. Raises ValueError for prompts out of order or out of range.
    """
    chosen = np.array(prompts, np.int64).reshape(-1)
    if len(chosen) and (chosen[0] < 0 or chosen[-1] >= plan.prompts or (np.diff(chosen) <= 0).any()):
        raise ValueError(f"prompts must be ascending, distinct and below {plan.prompts}")
    new_prompt = np.full(plan.prompts, -1, np.int32)
    new_prompt[chosen] = np.arange(len(chosen), dtype=np.int32)
    option = new_prompt[plan.option_prompt] >= 0
    new_option = np.cumsum(option, dtype=np.int32) - 1
    variant = option[plan.variant_option]
    steps = np.diff(plan.step_ptr)
    step = np.repeat(variant, steps)
    cand = plan.step_cand[step]
    cand_node = np.repeat(plan.read_node, np.diff(plan.cand_ptr))
    end = plan.variant_end[variant]
    end_node = np.where(end >= 0, plan.read_node[end] if plan.reads else -2, -2).astype(np.int32)

    # a node stays if a read lies in its subtree
    read = np.zeros(plan.nodes + 1, np.int32)
    kept = np.concatenate([cand_node[cand], end_node[end_node >= 0]])
    read[kept[kept >= 0]] = 1
    before = np.concatenate([np.zeros(1, np.int32), np.cumsum(read[:-1] > 0, dtype=np.int32)])
    node = before[plan.end] > before[:-1]
    new_node = np.append(np.cumsum(node, dtype=np.int32) - 1, np.array([-2, -1], np.int32))  # -1 stays -1, -2 stays -2
    count = np.concatenate([np.zeros(1, np.int32), np.cumsum(node, dtype=np.int32)])
    trie = np.stack([plan.token[node], new_node[plan.parent[node]], plan.depth[node], count[plan.end[node]]])
    return reads(
        trie, new_node[cand_node[cand]], plan.cand_token[cand], steps[variant], new_node[end_node],
        new_option[plan.variant_option[variant]], new_prompt[plan.option_prompt[option]], plan.prompt_norm[chosen],
    )  # fmt: skip
