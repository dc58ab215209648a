"""Decode steps on the fused kernels; see grow.py for what they mean, steps.py for how they are laid out.

A step is a forward of all its rows with buffers of its own, so that passes may be launched meanwhile, and a head (head.py).
On a card a step whose padded shape comes back is replayed as a CUDA graph: a step of few rows is hundreds of small kernels.
The naive kernels test it on a CPU; on a card slot_gates.py decides at start-up whether it may be used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from spinf_stream.engine.gpu import faults, steps
from spinf_stream.engine.gpu.buffers import Uploads
from spinf_stream.engine.gpu.busy import Span
from spinf_stream.engine.gpu.forward import Forward, Index
from spinf_stream.engine.gpu.head import GpuHead
from spinf_stream.engine.grow import Grown, Step

if TYPE_CHECKING:
    from spinf_stream.engine.gpu.executor import GpuExecutor

log = logging.getLogger(__name__)
GRAPHS = 64  # shapes remembered


class Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    hidden: torch.Tensor
    addresses: tuple[int, ...]  # what it was captured with


class GpuGrower:
    """graphs: whether steps may be replayed; off for good when a capture fails."""

    def __init__(self, executor: GpuExecutor, forward: Forward) -> None:
        """forward: of this grower alone."""
        self.executor, self.forward = executor, forward
        self.graphs = executor.device.type == "cuda"
        self.padded = self.graphs  # fixed shapes; tests set it without graphs
        self.captured: dict[steps.Shape, Captured] = {}
        self.met: dict[steps.Shape, tuple[int, ...]] = {}  # shapes that have run, with these addresses: all is compiled and there
        self.pool: Any = None
        self.uploads: dict[steps.Shape | None, Uploads] = {}
        self.range = (0, 0)  # first slot and slots of the range that steps lay their paths into
        self.head = GpuHead(executor.ops, executor.stack.embed, executor.stack.spec.softcap or 0.0, forward.ends)

    def grow(self, step: Step) -> Grown:
        ex = self.executor
        if ex.stream is None:
            began = time.perf_counter()
            grown = self._grow(step, None, None)
            return grown._replace(seconds=time.perf_counter() - began)
        forward, head = (Span(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(2))
        grown = self._grow(step, forward, head)
        head.ended.synchronize()
        return grown._replace(seconds=forward.seconds + ex.busy.head(head))

    def _grow(self, step: Step, forward: Span | None, head: Span | None) -> Grown:
        of = steps.paths(step)
        with self.executor.lock:
            shape = steps.shape(step, of) if self.padded else None
            arrays = self._laid(step, of, shape)
            with timed(forward):
                hidden = self._hidden(arrays, shape)
        with timed(head):
            return self.head.read(hidden[: len(step.read)], step)

    def forget(self) -> None:
        """Give back what can be made anew, after a step that did not fit. Never while one runs."""
        for known in (self.captured, self.met, self.uploads):
            known.clear()
        self.pool = None
        self.forward.forget()
        self.head.forget()

    def _laid(self, step: Step, of: steps.Paths, shape: steps.Shape | None) -> dict[str, np.ndarray]:
        """What is sent, and room for what it names."""
        ex, cache = self.executor, self.executor.cache
        need = len(of.source) if shape is None else shape.slots
        cache.reserve(int(step.path.max()) + 1)
        if need > self.range[1]:
            size = max(need, 2 * self.range[1])
            if self.range[1]:
                cache.release(*self.range)
            self.range = (0, 0)  # where there is no room for a larger one, the old one is another's all the same
            self.range = (cache.take(size), size)
        self.forward.rotations(int(step.position.max()) + 1)
        starts = [trunk.start for trunk in step.trunks]
        return steps.arrays(step, of, starts, self.range[0], ex.stack.spec.layers, ex.ops.tile, shape)

    def _hidden(self, arrays: dict[str, np.ndarray], shape: steps.Shape | None) -> torch.Tensor:
        """[reads or more, hidden] after the final norm; good until the next step."""
        ix = self._sent(arrays, shape)
        if shape is None or not self.graphs:
            return self._plain(ix)
        addresses = self._addresses(ix)
        found = self.captured.get(shape)
        if found is None or found.addresses != addresses:
            hidden = self._plain(ix)  # also compiles what is new, and makes the buffers
            after = self._addresses(ix)
            if self.met.get(shape) == after:
                self._capture(shape, ix, after)
            self.met[shape] = after
            return hidden
        found.graph.replay()
        return found.hidden

    def _plain(self, ix: Index) -> torch.Tensor:
        cache, ops = self.executor.cache, self.executor.ops
        lo = self.range[0]
        hi = lo + len(ix["source"])

        def keys(i: int, kv: torch.Tensor) -> torch.Tensor:
            cache.own[i].index_copy_(0, ix["own"], kv)
            ops.gather_rows(cache.own[i], ix["source"], cache.slots[i][lo:hi])
            return cache.slots[i]

        return self.forward.hidden(ix, keys)

    def _sent(self, arrays: dict[str, np.ndarray], shape: steps.Shape | None) -> Index:
        """A shape has uploads of its own, so that a graph finds its arrays where it was captured with them. The one used longest ago
        makes room: mixed articles have more shapes than are remembered, and most steps are of a few."""
        uploads = self.uploads.pop(shape, None) or Uploads(self.executor.device)
        self.uploads[shape] = uploads  # the last used is the last
        if len(self.uploads) > GRAPHS:
            oldest = next(iter(self.uploads))
            del self.uploads[oldest]
            if oldest is not None:
                self.captured.pop(oldest, None)
                self.met.pop(oldest, None)
            if not self.captured:
                self.pool = None  # no graph holds it any more
        return uploads.send(arrays)

    def _addresses(self, ix: Index) -> tuple[int, ...]:
        """Changes when anything that a graph reads or writes lies elsewhere."""
        cache, forward = self.executor.cache, self.forward
        return (cache.moved, forward.arena.moved, forward.positions, *self.range, ix["token"].data_ptr())

    def _capture(self, shape: steps.Shape, ix: Index, addresses: tuple[int, ...]) -> None:
        """Of what has just run: nothing is computed here."""
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()  # one for all: replays follow one another, and none leaves anything there
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.executor.stream, capture_error_mode="thread_local"):
                hidden = self._plain(ix)
        except RuntimeError as e:
            self.captured.clear()
            self.pool = None  # no graph holds it any more
            if faults.full(e):  # its step has run; there may be room another time
                self.met.clear()
                log.warning("no memory for a CUDA graph of a decode step, all of them are given back: %s", faults.first_line(e))
                return
            log.warning("decode steps run without CUDA graphs: %s", faults.first_line(e))
            self.graphs = False
            return
        self.captured[shape] = Captured(graph, hidden, addresses)


@contextmanager
def timed(span: Span | None) -> Iterator[None]:
    if span is not None:
        span.began.record()
    yield
    if span is not None:
        span.ended.record()
