"""What a slot costs, in equivalents of scored tokens: (time with slots - time without) / slots / time of one scored token.

The time of one scored token is that of a full scoring pass on the same engine (articles x 56 questions). A random model
would prune nothing, or everything, so each searched or copied slot of a random shape replays the rows that a slot of its kind
took on the demo model and real articles (slot_widths.py). Beside that the most that is possible: `full beam`, six beams to
the last of 16 tokens, and `all opened`, every number of an article dense with numbers, which is what copying them comes to
where nothing can be pruned.

On a CPU it is the CPU time of the decode steps: a machine's other work would drown a difference between two passes.
--beside adds what slots cost while other passes go on: slot_beside.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import device
import numpy as np
import proofs
import slot_beside
import slot_bits
import slot_widths
from results import Run, write_result

KINDS = ("number", "amount", "copied number", "copied amount", "text", "copied text", "generated")
FULL, OPENED = ", full beam", ", all opened"
EXTREMES = (f"number{FULL}", f"text{FULL}", f"copied number{OPENED}", f"copied amount{OPENED}")
MAX_TOKENS = 16
PER_ARTICLE = 4
QUESTIONS = 56
SENTENCES = (
    "The group said profit rose 12% to $3.4m in 2004 from $2.9m.", "It paid £1.2bn for 1,200 shops and 35,000 staff.",
    "Analysts had hoped for 4.5 million units at €250 each.", "Shares fell 3.5% to 410 pence in London.",
)  # fmt: skip


def chosen(args: argparse.Namespace) -> list[str]:
    """The kinds of --kinds, where "number-full-beam" is "number, full beam"; without it all. The model itself prunes: nothing
    there is `all opened`."""
    every = {words(k): k for k in KINDS + EXTREMES if args.shape != "model" or not k.endswith(OPENED)}
    asked = every if args.kinds is None else [words(k) for k in re.split(f",(?!{FULL[1:]}|{OPENED[1:]})", args.kinds)]
    if unknown := [k for k in asked if k not in every]:
        raise SystemExit(f"no kind {', '.join(unknown)}; there is {'; '.join(every.values())}")
    return [every[k] for k in asked]


def words(kind: str) -> str:
    return " ".join(re.findall("[a-z]+", kind))


def cost(args: argparse.Namespace) -> int:
    import torch

    kinds = chosen(args)
    torch.set_num_threads(args.threads)
    executor, encoder = model(args)
    bench = Bench(executor, encoder, args)
    gc.freeze()  # as a worker does
    gates: dict[str, Any] = {}
    if args.gates:
        from spinf_stream.engine.gpu.proven import slot_gates

        gates = {"slot_gates": proofs.told(slot_gates(executor))}
        device.forget_memory()
    token_ms = bench.scored_token()
    print(f"one scored token {token_ms:.4f} ms")
    report: dict[str, Any] = {"scored_token_ms": round(token_ms, 5), "max_tokens": MAX_TOKENS, "equivalents": {}, **gates}
    runs = []
    for kind in kinds:
        if not bench.gpu:
            bench.slots(kind, 1)  # buffers and tables are made with the first step
        for slots in (args.slots, 1):
            walls, rows, steps = bench.slots(kind, slots)
            ms = statistics.median(walls)
            each, step_ms = ms / slots / token_ms, ms / max(1, steps)
            report["equivalents"][f"{kind}, {slots} together"] = {
                "equivalents": round(each, 1), "rows_a_slot": round(rows / slots, 1), "steps": steps, "ms_a_step": round(step_ms, 3),
            }  # fmt: skip
            runs.append(Run(f"{kind} x {slots}", spread(slots), slots, rows, walls, None))
            print(
                f"{kind:<26} {slots:>3} together: {each:8.1f} equivalents, {rows / slots:6.1f} rows a slot, {steps} steps of {step_ms:.2f} ms", flush=True
            )
    if args.beside:
        report["beside_passes"] = slot_beside.told(bench, [k for k in kinds if k in KINDS], args.slots, args.passes, token_ms)
    if args.bits:
        report["together_against_alone"] = slot_bits.told(bench, args.slots)
    if bench.gpu:
        report["peak"] = device.memory()
        report["clocks"] = device.clocks()
    grower = getattr(executor, "grower", None)
    report["cuda_graphs"] = len(getattr(grower, "captured", ()))
    path = write_result(f"slots-cost-{args.shape}", report, runs)
    print(f"{report['cuda_graphs']} CUDA graphs; {path.name}")
    wrong = [g for g in gates.get("slot_gates", []) if not g["passed"]] + [k for k in report.get("together_against_alone", {}).values() if k["different"]]
    return 1 if wrong and bench.gpu else 0  # a CPU's sums depend on their company


def model(args: argparse.Namespace) -> tuple[Any, Any]:
    from spinf_stream.config import Settings
    from spinf_stream.engine.open import Model, open_executor, open_model
    from spinf_stream.engine.tokenizer import Encoder

    settings = Settings(model=args.model, device=args.device, threads=args.threads)
    if args.shape == "model":
        found = open_model(settings, print)
    else:
        from shapes import gemma3_270m, gemma4_12b, random_stack

        make = gemma4_12b if args.shape == "12b" else gemma3_270m
        spec = make(args.layers) if args.layers else make()
        found = Model(random_stack(spec, args.device, args.scheme), Encoder.from_file(args.tokenizer, spec.bos, spec.vocab))
    return open_executor(settings, found), found.encoder


class Bench:
    def __init__(self, executor: Any, encoder: Any, args: argparse.Namespace) -> None:
        from spinf_stream.engine.packed import PackedEngine
        from spinf_stream.slots.build import Vocabularies

        self.executor, self.encoder, self.args = executor, encoder, args
        self.engine = PackedEngine(executor, 200_000)
        self.words = Vocabularies(encoder, executor.stack.spec.eos)
        self.widths: dict[str, list[list[int]]] = json.loads(slot_widths.FILE.read_text())
        self.gpu = args.device != "cpu"
        self.articles = 24 if self.gpu else 2  # of a full pass
        self.clock = time.perf_counter if self.gpu else time.process_time
        self.turn = 0  # how many slots of a run have taken their widths
        self.full = self.questions(QUESTIONS).plan
        self.base: dict[int, float] = {}  # milliseconds of a pass of so many articles without slots

    def texts(self, articles: int) -> list[str]:
        rng = np.random.default_rng(5)
        return [" ".join(SENTENCES[i] for i in rng.integers(0, len(SENTENCES), 24)) for _ in range(articles)]  # about 430 tokens

    def questions(self, count: int, kind: str | None = None) -> Any:
        """`count` yes/no questions, or with a kind as many slots."""
        from spinf_stream.questions.compile import Source, build
        from spinf_stream.questions.spec import Limits

        yes = [{"id": f"q{i}", "template": f"\n\nIs topic {i} the subject of this article?\nAnswer:{{?}}", "options": [" yes", " no"]} for i in range(count)]
        slot = "n" if kind and "number" in kind else "$" if kind and "amount" in kind else "*"
        more: dict[str, Any] = {"max_tokens": MAX_TOKENS}
        if kind == "generated":
            more["generate"] = {"temperature": 1.0}
        elif kind and kind.startswith("copied"):
            more = {"mode": "copy_only"}
        asked = [{"id": f"s{i}", "template": f"\n\nQuestion {i}: what was it?\nAnswer:{{{slot}}}", **more} for i in range(count)]
        return build([Source({"queries": asked if kind else yes})], self.encoder, Limits(max_slots=1000))

    def scored_token(self) -> float:
        """Milliseconds of one row of a scoring pass."""
        batch = self.batch(self.texts(self.articles), self.engine.register(self.full))
        walls = self.timed(lambda: self.engine.collect(self.engine.submit(batch)))
        return statistics.median(walls) / self.engine.collect(self.engine.submit(batch)).tokens

    def slots(self, kind: str, slots: int) -> tuple[list[float], int, int]:
        """(milliseconds that all the slots took in each run, rows that they took, steps)."""
        texts, scored = self.texts(spread(slots)), self.questions(1).plan
        batch, bare = self.carrying(texts, scored, kind, slots), self.batch(texts, self.engine.register(scored))
        rows = steps = 0
        decoding: list[float] = []

        def once() -> None:
            nonlocal rows, steps
            self.turn, steps = 0, 0
            pending = self.engine.begin(self.engine.submit(batch))
            began = self.clock()
            while not pending.done:
                self.engine.advance()
                steps += 1
            rows = pending.output().slot_rows
            decoding.append(1e3 * (self.clock() - began))

        with self.replaying(kind):
            walls = self.timed(once, 4 if self.gpu else 0)  # a card captures a shape when it comes back
        if not self.gpu:
            return decoding, rows, steps
        if len(texts) not in self.base:
            self.base[len(texts)] = statistics.median(self.timed(lambda: self.engine.collect(self.engine.submit(bare)), 2))
        return [max(0.0, w - self.base[len(texts)]) for w in walls], rows, steps

    @contextmanager
    def replaying(self, kind: str) -> Iterator[None]:
        """While the block runs, slots take a recorded number of rows, if they are of a kind that replays."""
        from spinf_stream.engine import packed
        from spinf_stream.slots.plan import BEAM

        real = packed.programs
        widths = slot_widths.Spread([[0, *[BEAM] * MAX_TOKENS]] if kind.endswith(FULL) else self.widths.get(kind, []))

        def replayed(plan: Any, batch: Any, tree: int) -> list[Any]:
            first, self.turn = self.turn, self.turn + len(plan.slots)
            return [slot_widths.Replay(p, widths[first + i]) for i, p in enumerate(real(plan, batch, tree))]

        if kind.endswith(FULL) or (kind in self.widths and self.args.shape != "model"):
            packed.programs = replayed
        try:
            yield
        finally:
            packed.programs = real

    def carrying(self, texts: Sequence[str], scored: Any, kind: str, slots: int) -> Any:
        """A pass with slots on the first of its articles."""
        from spinf_stream.slots.build import SlotSet

        articles = spread(slots, len(texts))
        found = SlotSet(self.questions(slots // articles, kind).slots, self.words)
        plans = [self.engine.register(scored, found.plan)] * articles + [self.engine.register(scored)] * (len(texts) - articles)
        return self.batch(texts, plans, found, articles)

    def batch(self, texts: Sequence[str], plan: int | Sequence[int], slots: Any = None, articles: int | None = None) -> Any:
        """slots: of the first `articles`, or of all."""
        from spinf_stream.engine.seam import PassInput
        from spinf_stream.slots.candidates import joined

        ids = [np.array([*self.encoder.bos, *self.encoder.encode(t)], np.int32) for t in texts]
        copies = joined([slots.copies(t) for t in texts[:articles]]) if slots is not None else None
        start = np.cumsum([0, *map(len, ids)]).astype(np.int64)
        return PassInput(np.concatenate(ids), start, np.full(len(ids), plan, np.int32), copies)

    def timed(self, once: Callable[[], Any], warm: int = 1) -> list[float]:
        for _ in range(warm):
            once()
        out = []
        for _ in range(self.args.repeat):
            began = self.clock()
            once()
            out.append(1e3 * (self.clock() - began))
        return out


def spread(slots: int, articles: int | None = None) -> int:
    """On how many articles, of so many at most, slots lie: as many on each, and PER_ARTICLE at least where there are enough."""
    return next(n for n in range(min(slots, articles or slots), 0, -1) if slots % n == 0 and slots // n >= min(PER_ARTICLE, slots))
