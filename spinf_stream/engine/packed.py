"""The Engine on top of an Executor: plans to chunks, passes to layouts, and numbers back to trees.

A pass that fits is one layout. A tree whose plan does not fit beside its trunk is a chain of layouts over one stored
trunk; such trees, and what is left of a pass that was packed over the budget, run one after another.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from spinf_stream.engine import forest
from spinf_stream.engine.executor import Executor, Fetched
from spinf_stream.engine.forest import Chunk
from spinf_stream.engine.grow import Grower
from spinf_stream.engine.pending import PendingPass, programs
from spinf_stream.engine.seam import NonFinite, OutOfMemory, PassInput, PassOutput, TreeOutput
from spinf_stream.questions.plan import Plan
from spinf_stream.slots.decoding import Below, Decoder
from spinf_stream.slots.plan import SlotPlan
from spinf_stream.slots.program import Program


class Launched(NamedTuple):
    handle: Any
    trees: tuple[int, ...]  # which trees of the pass
    chunks: tuple[Chunk, ...]  # the chunk of each
    kept: tuple[int, ...]  # trees of the pass whose trunks are kept


class Running(NamedTuple):
    batch: PassInput
    layouts: tuple[Launched, ...]
    rows: int


class PackedEngine:
    def __init__(self, executor: Executor, budget: int | None = None) -> None:
        self.executor = executor
        self.bit_exact = executor.bit_exact
        self.budget = self.first_budget = budget or executor.default_budget  # the first never changes: limits rest on it
        self.plans: dict[int, Plan] = {}
        self.slots: dict[int, SlotPlan | None] = {}  # of each plan
        self._uses: dict[int, int] = {}  # registered and not yet forgotten
        self._next = 0
        self._gone: deque[int] = deque()  # to be forgotten
        self.decoder = Decoder(executor) if isinstance(executor, Grower) else None
        self._known: dict[tuple[int, int], int] = {}  # ids of plan and slots -> index; both are kept, so ids stay unique
        self._cut: dict[tuple[int, int], tuple[Chunk, ...]] = {}  # (plan, capacity) -> chunks
        self._lock = threading.Lock()

    def register(self, plan: Plan, slots: SlotPlan | None = None) -> int:
        if slots is not None and self.decoder is None:
            raise ValueError("this executor cannot decode: it has no slots")
        with self._lock:
            self._sweep()
            index = self._known.setdefault((id(plan), id(slots)), self._next)
            if index == self._next:
                self._next += 1
                self.plans[index], self.slots[index] = plan, slots
            self._uses[index] = self._uses.get(index, 0) + 1
            return index

    def forget(self, plans: Iterable[int]) -> None:
        """Once for each `register`, when no pass in flight or to come has the plan: a worker reloads for years.

        May be called by a finaliser, which the garbage collector runs wherever it likes, inside the lock too: so it never waits.
        """
        self._gone.extend(plans)
        if self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()

    def _sweep(self) -> None:
        swept = bool(self._gone)
        while self._gone:
            index = self._gone.popleft()
            self._uses[index] -= 1
            if not self._uses[index]:
                del self._known[id(self.plans[index]), id(self.slots[index])], self._uses[index]
                del self.plans[index], self.slots[index]
        if swept:
            self._cut = {key: chunks for key, chunks in list(self._cut.items()) if key[0] in self.plans}

    def cost(self, trunk: int, plan: int) -> int:
        """Rows that a tree takes in one pass, trunk and branches."""
        return trunk + self.plans[plan].nodes

    def submit(self, batch: PassInput) -> Running:
        launched: list[Launched] = []
        rows = 0
        group: list[int] = []
        room = self.budget

        def flush() -> None:
            if group:
                chunk = tuple(self._chunks(int(batch.plan[i]), self.plans[int(batch.plan[i])].nodes)[0] for i in group)
                launched.append(self._launch(batch, tuple(group), chunk))
                group.clear()

        for i in range(batch.trees):
            trunk = int(batch.start[i + 1] - batch.start[i])
            need = self.cost(trunk, int(batch.plan[i]))
            rows += need
            if need > room:
                flush()
                room = self.budget
            if need > self.budget:
                launched.extend(self._chain(batch, i, trunk))
            else:
                group.append(i)
                room -= need
        flush()
        return Running(batch, tuple(launched), rows)

    def collect(self, handle: Running) -> PassOutput:
        pending = self.begin(handle)
        while not pending.done:
            self.advance()
        return pending.output()

    def begin(self, handle: Running) -> PendingPass:
        plans = [self.plans[int(p)] for p in handle.batch.plan]
        out = [TreeOutput(np.full(int(p.cand_ptr[-1]), np.nan), np.zeros(p.reads)) for p in plans]
        begun = self._programs(handle)  # while the device is at it
        seconds = 0.0
        trunks: dict[int, Any] = {}
        for part in handle.layouts:
            got = self._guard(self.executor.fetch, part.handle)
            seconds += got.seconds
            scatter(got, part, out)
            trunks.update(zip(part.kept, got.trunks))
        for i, tree in enumerate(out):
            for what, values in (("a candidate's log-probability", tree.cand), ("an end's log-probability", tree.end)):
                if not np.isfinite(values).all():
                    raise NonFinite(i, what)
        pending = PendingPass(out, [self.slots[int(p)] for p in handle.batch.plan], seconds, handle.rows)
        for i, made in begun.items():
            assert self.decoder is not None
            below = Below(trunks[i], int(handle.batch.start[i + 1] - handle.batch.start[i]))
            for slot, program in enumerate(made):
                if program.wanted:
                    self.decoder.add(pending, (i, slot), below, program)
                    pending.left += 1
        return pending

    def _programs(self, handle: Running) -> dict[int, list[Program]]:
        """Of each tree whose trunk is kept."""
        out = {}
        for tree in (t for part in handle.layouts for t in part.kept):
            plan = self.slots[int(handle.batch.plan[tree])]
            assert plan is not None
            out[tree] = programs(plan, handle.batch, tree)
        return out

    def advance(self) -> None:
        if self.decoder is None:
            return
        try:
            done = self.decoder.advance()
        except Exception as e:  # of a step that all of them share
            for pending in {id(a.owner): a.owner for a in self.decoder.live}.values():
                pending.error = e
                self.decoder.drop(pending)
            return
        for live in done:
            live.owner.take(live)
            if live.owner.error is not None:
                self.decoder.drop(live.owner)

    def _chain(self, batch: PassInput, i: int, trunk: int) -> list[Launched]:
        plan = int(batch.plan[i])
        path = int(self.plans[plan].depth.max(initial=0)) + 1
        cut = self._chunks(plan, max(self.budget - trunk, path, self.budget // 4))
        return [self._launch(batch, (i,), (c,), past=n > 0, keep=n == 0 and len(cut) > 1) for n, c in enumerate(cut)]

    def _launch(
        self, batch: PassInput, trees: tuple[int, ...], chunk: tuple[Chunk, ...], past: bool = False, keep: bool = False
    ) -> Launched:
        trunks = [batch.ids[batch.start[i] : batch.start[i + 1]] for i in trees]
        start = np.zeros(len(trees) + 1, np.int64)
        np.cumsum([len(t) for t in trunks], out=start[1:])
        kept = () if past else tuple([i for i, t in enumerate(trees) if self.slots[int(batch.plan[t])] is not None])
        layout = forest.layout(np.concatenate(trunks), start, chunk, past=past, keep=keep, kept=kept)
        return Launched(self._guard(self.executor.launch, layout), trees, chunk, tuple([trees[i] for i in kept]))

    def _chunks(self, plan: int, capacity: int) -> tuple[Chunk, ...]:
        key = (plan, capacity)
        found = self._cut.get(key)
        if found is None:
            if len(self._cut) > 256:
                self._cut.clear()
            found = self._cut[key] = forest.chunks(self.plans[plan], capacity)
        return found

    def _guard(self, call: Any, what: Any) -> Any:
        try:
            return call(what)
        except OutOfMemory:
            self.budget = max(256, self.budget * 3 // 4)
            raise


def scatter(got: Fetched, part: Launched, out: list[TreeOutput]) -> None:
    """Copy one layout's numbers to their trees."""
    c = r = 0
    for i, chunk in zip(part.trees, part.chunks):
        out[i].cand[chunk.cand_index] = got.cand[c : c + chunk.cands]
        out[i].end[chunk.read_index] = got.end[r : r + chunk.reads]
        c += chunk.cands
        r += chunk.reads
