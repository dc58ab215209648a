"""The GPU executor: a layout to its reads through fused kernels, launched without waiting for the device.

    tokens -> [norm -> qkv -> rotary -> attention -> o -> norm -> gate_up -> geglu -> down] x layers -> norm -> head

Rows are dense in every product; padding lies only in the attention's key slots (slots.py). The last layer computes
queries, attention, o and the MLP for the rows that are read. It runs on a CPU too, with the naive kernels, for tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from spinf_stream.engine.executor import Fetched
from spinf_stream.engine.forest import Layout
from spinf_stream.engine.gpu import faults
from spinf_stream.engine.gpu.buffers import Arena, Uploads
from spinf_stream.engine.gpu.busy import Busy, Span
from spinf_stream.engine.gpu.cache import Cache, Kept
from spinf_stream.engine.gpu.decode import GpuGrower
from spinf_stream.engine.gpu.forward import Forward
from spinf_stream.engine.gpu.indices import Heads, indices
from spinf_stream.engine.gpu.linear import use_own
from spinf_stream.engine.gpu.ops import Ops, naive_ops, triton_ops
from spinf_stream.engine.gpu.tables import Slots
from spinf_stream.engine.grow import Grown, Step
from spinf_stream.engine.seam import EngineFatal, OutOfMemory
from spinf_stream.engine.stack import Stack

RING = 3  # passes whose pinned memory may be in use at once: two in flight, one being filled
IDLE = 256  # passes in a row that keep no trunk, after which what decode steps took is given back


def unsupported(stack: Stack) -> str | None:
    """Why these kernels cannot run a stack, or None. Such a stack runs on the plain executor."""
    spec, w = stack.spec, stack.layers[0]
    if stack.embed.dtype != torch.bfloat16:
        return f"the fused kernels compute in bfloat16, the model is {stack.embed.dtype}"
    if w.qkv.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        return f"the fused kernels multiply bfloat16 or e4m3 weights, the model has {w.qkv.dtype}"
    for s in spec.layers:
        group = s.heads // s.kv_heads
        if s.head_dim not in (64, 128, 256, 512) or s.heads % s.kv_heads or group & (group - 1) or group > 64:
            return f"no attention tile for head size {s.head_dim} with {s.heads} heads on {s.kv_heads}"
        if s.heads * s.head_dim % 64:
            return "the attention's width is not a multiple of 64"
    if spec.hidden % 64 or spec.intermediate % 64:
        return "hidden and intermediate size must be multiples of 64"
    return None


class Handle(NamedTuple):
    layout: Layout
    heads: Heads
    cand: torch.Tensor  # pinned [c] float32 logits
    norms: torch.Tensor  # pinned [reads that need them, 3] float64
    events: Span | None
    trunks: tuple[Kept, ...]  # of layout.kept


class GpuExecutor:
    """starts_alnum [<= vocab]: tokens whose text begins with a letter or digit.

    row_scales: fp8 inputs of qkv and gate_up get a scale a row (the norm kernel holds the row) instead of the
    checkpoint's static one: never clipped, and an outlier never costs another row its precision.
    fast_accum: fp8 products keep their partial sums in the tensor cores' own accumulators. On a 4-layer cut of the 12B the
    error against float32 is no larger (bench/results/fp8_error-nvidia-h200.json) and a pass takes 6 % less time.
    The executor owns the stack: where the fused MLP kernel runs, gate_up is interleaved in place.
    """

    def __init__(
        self,
        stack: Stack,
        starts_alnum: NDArray[np.bool_],
        *,
        row_scales: bool = True,
        fast_accum: bool = True,
        bit_exact: bool = False,
        ops: Ops | None = None,
    ) -> None:
        self.stack = stack
        self.bit_exact = bit_exact
        # gates of decode steps that failed: then no slot is extracted; None on a card where they have not been run
        self.slot_faults: list[str] | None = None if stack.embed.device.type == "cuda" else []
        self.slot_record: Path | None = None  # the file that remembers them
        self.fast_accum = fast_accum
        self.default_budget = 32_768
        self.device = stack.embed.device
        cuda = self.device.type == "cuda"
        self.ops = ops or (triton_ops(self.device, stack.spec.hidden, stack.spec.intermediate) if cuda else naive_ops())
        self.slots = Slots()
        self.uploads = [Uploads(self.device) for _ in range(RING)]
        self.done: list[torch.cuda.Event | None] = [None] * RING
        self.passes = 0
        self.stream = torch.cuda.Stream(self.device) if cuda else None
        forget = self.ops.forget_keys
        few = self.ops._replace(attention=self.ops.decode_attention or self.ops.attention)
        self.forward, steps = (Forward(stack, starts_alnum, ops, Arena(self.device, forget), row_scales, fast_accum) for ops in (self.ops, few))
        self.cache = Cache(stack.spec.layers, stack.embed.dtype, self.device, forget)
        self.lock = threading.Lock()  # passes and decode steps are launched from two threads, into one stream and one cache
        self.grower = GpuGrower(self, steps)
        self.busy = Busy()
        self.unkept = 0  # passes since one kept a trunk
        self.numerics: dict[str, object] = {
            "executor": "gpu/1",
            "decode": "gpu/2",
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(self.device) if cuda else "cpu",
            "cublas": torch.version.cuda if cuda else None,
            "dtype": str(stack.embed.dtype),
            "row_scales": row_scales,
            "fast_accum": fast_accum,
            **self.ops.table,
        }

    def own_products(self, shapes: Collection[tuple[int, int]]) -> None:
        """Weights [out, in] that our own kernel multiplies from now on; part of the numerics. None takes nothing back."""
        if shapes:
            known: set[tuple[int, int]] = set(self.numerics.get("own products", ()))  # type: ignore[call-overload]
            self.numerics["own products"] = sorted(known | set(shapes))
            for forward in (self.forward, self.grower.forward):
                use_own(forward.layers, self.stack.layers, shapes)

    def launch(self, layout: Layout) -> Handle:
        with self._on_device(f"a pass of {len(layout.token)} rows", self._forget_pass):
            return self._launch(layout)

    def grow(self, step: Step) -> Grown:
        with self._on_device(f"a decode step of {step.rows} rows", self._forget_step):
            return self.grower.grow(step)

    @contextmanager
    def _on_device(self, what: str, forget: Callable[[], None] | None = None) -> Iterator[None]:
        try:
            with torch.inference_mode(), torch.cuda.stream(self.stream) if self.stream else nullcontext():
                yield
        except RuntimeError as e:
            if faults.full(e) and forget is not None:
                with self.lock:
                    forget()  # something smaller finds room again
                torch.cuda.empty_cache()
                raise OutOfMemory(f"{what} does not fit: {faults.first_line(e)}") from None
            if faults.said_by_device(e):
                raise EngineFatal(faults.first_line(e)) from None
            raise

    def _forget_pass(self) -> None:
        self.forward.forget()
        self.forward.kept = []  # of the pass that failed: a chain begins anew
        self._shrink()

    def _forget_step(self) -> None:
        """Not the trunk that a chain of passes has stored: its next pass may be about to be launched."""
        self.grower.forget()
        self.forward.forget()

    def _shrink(self) -> None:
        """Give back what decode steps took, where no trunk is kept: then no step runs either, a step holds its trunks."""
        if self.cache.shrink(self.grower.range):
            self.grower.range = (0, 0)
            self.grower.forget()

    def fetch(self, handle: Handle) -> Fetched:
        seconds = 0.0
        if handle.events is not None:
            with self._on_device("a pass"):
                handle.events.ended.synchronize()
                seconds = self.busy.whole(handle.events)
        layout, reads = handle.layout, len(handle.layout.read_row)
        norms = handle.norms.numpy()
        log_norm, end = np.zeros(reads), np.zeros(reads)
        log_norm[handle.heads.need] = norms[:, 0] + np.log(norms[:, 1])
        with np.errstate(divide="ignore"):
            end[handle.heads.need] = np.log(norms[:, 2]) - np.log(norms[:, 1])
        cand = handle.cand.numpy().astype(np.float64)
        cand -= np.repeat(np.where(layout.read_norm, log_norm, 0.0), np.diff(layout.cand_ptr))
        return Fetched(cand, np.where(layout.read_end, end, 0.0), seconds, handle.trunks)

    def _launch(self, layout: Layout) -> Handle:
        slot = self.passes % RING
        self.passes += 1
        waited = self.done[slot]
        if waited is not None:
            waited.synchronize()
        spec, uploads = self.stack.spec, self.uploads[slot]
        arrays, heads = indices(layout, self.slots, spec.layers, self.ops.tile)
        events = None
        if self.stream is not None:
            events = Span(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True, blocking=True))
        with self.lock:
            if events is not None:
                events.began.record()
            trunks = tuple([Kept(self.cache, int(layout.trunk[i])) for i in layout.kept])
            self.unkept = 0 if trunks else self.unkept + 1
            if self.unkept == IDLE:
                self._shrink()
            if trunks:
                arrays |= self.cache.moves(trunks, self.slots.bases(layout)[list(layout.kept)])
            there = uploads.send(arrays)

            def store(layer: int, kv: torch.Tensor) -> None:
                self.ops.move_rows(kv, there["keep:from"], self.cache.slots[layer], there["keep:to"])

            cand, norms = self.forward(there, heads, layout, store if trunks else None)
            cand, norms = uploads.fetch(cand), uploads.fetch(norms)
            if events is not None:
                events.ended.record()
                self.done[slot] = events.ended
                self.busy.launched(events)
        return Handle(layout, heads, cand, norms, events, trunks)
