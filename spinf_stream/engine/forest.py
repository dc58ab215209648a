"""The packed layout: many trees, one pass.

Rows are dense. Tree i's rows are its trunk, then the branch nodes of its chunk in pre-order; nothing is padded here
(an attention kernel pads its own key table). A *chunk* is the part of a plan that one pass holds: all of it, as a rule;
a plan over the budget is cut along its trie into chunks that follow in further passes over the same stored trunk
(DECISIONS 5), each path whole in one chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spinf_stream.questions.plan import I32, I64, Bool, Plan


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """n nodes of a plan and the reads they carry. Shared by every article that asks the plan; compare by identity."""

    token: I32  # [n]
    parent: I32  # [n] within the chunk, -1 = trunk
    depth: I32  # [n]
    end: I32  # [n] subtree end within the chunk
    read_node: I32  # [r] node within the chunk, -1 = the trunk's last token
    read_index: I32  # [r] which read of the plan this is; each read of a plan is in exactly one chunk
    read_norm: Bool  # [r]
    read_end: Bool  # [r]
    cand_ptr: I32  # [r+1]
    cand_token: I32  # [c]
    cand_index: I32  # [c] which candidate of the plan

    @property
    def nodes(self) -> int:
        return len(self.token)

    @property
    def reads(self) -> int:
        return len(self.read_node)

    @property
    def cands(self) -> int:
        return len(self.cand_token)


class Layout(NamedTuple):
    """One pass, ready to run. T rows, A trees, r reads in all, c candidates in all."""

    token: I32  # [T]
    position: I32  # [T] trunk 0..P-1, node: P + depth
    row: I64  # [A+1] tree i's rows are row[i]:row[i+1]; in a continued pass (past) they hold branch rows alone
    trunk: I32  # [A] trunk length P, also where the trunk's rows are not in this pass
    chunk: tuple[Chunk, ...]  # [A]
    read_row: I64  # [r] row read; in a continued pass -1 cannot occur
    read_norm: Bool  # [r]
    read_end: Bool  # [r]
    cand_ptr: I64  # [r+1]
    cand_token: I32  # [c]
    past: bool = False  # the single tree's trunk keys and values are those the executor kept from the pass before
    keep: bool = False  # keep the single tree's trunk keys and values for a pass that continues it
    kept: tuple[int, ...] = ()  # trees whose trunk keys and values are handed out (Fetched.trunks), for decoding


def chunks(plan: Plan, capacity: int) -> tuple[Chunk, ...]:
    """Cut a plan into chunks of at most `capacity` nodes, prompts in order, greedily.

    A chunk holds whole root-to-read paths; nodes shared by two chunks are computed in both. Reads at the trunk's last
    token (-1) go to the first chunk. Raises ValueError naming the longest path when one path alone is over capacity.
    """
    if plan.nodes <= capacity:
        reads = np.arange(plan.reads, dtype=np.int32)
        return (_chunk(plan, np.arange(plan.nodes, dtype=np.int32), reads),)
    out: list[Chunk] = []
    nodes: set[int] = set()
    reads_here: list[int] = []
    for r in range(plan.reads):
        path = _path(plan, int(plan.read_node[r]))
        if len(path) > capacity:
            raise ValueError(f"one question's path has {len(path)} tokens, a pass has room for {capacity} beside its trunk")
        fresh = [n for n in path if n not in nodes]
        if len(nodes) + len(fresh) > capacity:
            out.append(_chunk(plan, np.array(sorted(nodes), np.int32), np.array(reads_here, np.int32)))
            nodes, reads_here, fresh = set(), [], path
        nodes.update(fresh)
        reads_here.append(r)
    out.append(_chunk(plan, np.array(sorted(nodes), np.int32), np.array(reads_here, np.int32)))
    return tuple(out)


def layout(ids: I32, start: NDArray[np.int64], chunk: tuple[Chunk, ...], *, past: bool = False, keep: bool = False,
           kept: tuple[int, ...] = ()) -> Layout:  # fmt: skip
    """Lay trees out. ids, start as in PassInput; chunk[i] is tree i's. Vectorised over trees with the same chunk."""
    trunk = np.diff(start).astype(np.int32)
    held = np.zeros_like(trunk) if past else trunk  # trunk rows present in this pass
    row = np.zeros(len(chunk) + 1, np.int64)
    np.cumsum(held + np.array([c.nodes for c in chunk], np.int64), out=row[1:])
    token = np.empty(int(row[-1]), np.int32)
    position = np.empty(int(row[-1]), np.int32)
    read_row = np.empty(sum(c.reads for c in chunk), np.int64)
    at = 0
    for i, c in enumerate(chunk):
        lo, mid, hi = int(row[i]), int(row[i] + held[i]), int(row[i + 1])
        if not past:
            token[lo:mid] = ids[start[i] : start[i + 1]]
            position[lo:mid] = np.arange(trunk[i], dtype=np.int32)
        token[mid:hi] = c.token
        position[mid:hi] = c.depth + trunk[i]
        read_row[at : at + c.reads] = c.read_node + mid  # -1 + mid = the trunk's last row
        at += c.reads
    offset = np.cumsum([0, *(c.cands for c in chunk)])
    cand_ptr = np.concatenate([np.zeros(1, np.int64), *(c.cand_ptr[1:].astype(np.int64) + o for c, o in zip(chunk, offset))])
    return Layout(
        token, position, row, trunk, chunk, read_row,
        np.concatenate([c.read_norm for c in chunk]),
        np.concatenate([c.read_end for c in chunk]),
        cand_ptr,
        np.concatenate([c.cand_token for c in chunk]),
        past, keep, kept,
    )  # fmt: skip


def _path(plan: Plan, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = int(plan.parent[node])
    return path


def _chunk(plan: Plan, nodes: I32, reads: I32) -> Chunk:
    new = np.full(plan.nodes + 1, -1, np.int32)  # old node -> new node; the last entry answers for parent -1
    new[nodes] = np.arange(len(nodes), dtype=np.int32)
    parent = new[plan.parent[nodes]]
    # end of a subtree among the nodes kept: how many kept nodes lie before the old end
    end = np.searchsorted(nodes, plan.end[nodes]).astype(np.int32)
    spans = [np.arange(plan.cand_ptr[r], plan.cand_ptr[r + 1], dtype=np.int32) for r in reads]
    cand_index = np.concatenate(spans) if spans else np.zeros(0, np.int32)
    cand_ptr = np.concatenate([np.zeros(1, np.int32), np.cumsum([len(s) for s in spans], dtype=np.int32)])
    return Chunk(
        plan.token[nodes], parent, plan.depth[nodes], end,
        new[plan.read_node[reads]], reads, plan.read_norm[reads], plan.read_end[reads],
        cand_ptr.astype(np.int32), plan.cand_token[cand_index], cand_index,
    )  # fmt: skip
