"""What a slot costs, in equivalents of scored tokens: (time with slots - time without) / slots / time of one scored token.

The time of one scored token is that of a full scoring pass on the same engine (articles x 56 questions). A random model
would prune every beam at once, or none, so each slot of a random shape replays the rows that slots of its kind took on the
demo model (bench/data/slot_widths.json, written by `slots.py accuracy`); `full beam` is the most that is possible: six
beams to the last of 16 tokens. Copied numbers need no replay: their rows follow from the article.

On a CPU it is the CPU time of the decode steps: a machine's other work would drown a difference between two passes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import device
import numpy as np
import proofs
import slot_bits
from results import Run, write_result

WIDTHS = Path(__file__).resolve().parent / "data" / "slot_widths.json"
KINDS = ("number", "amount", "number, full beam", "copied number", "copied amount", "text", "text, full beam", "copied text", "generated")
MAX_TOKENS = 16
PER_ARTICLE = 4
SENTENCES = (
    "The group said profit rose 12% to $3.4m in 2004 from $2.9m.", "It paid £1.2bn for 1,200 shops and 35,000 staff.",
    "Analysts had hoped for 4.5 million units at €250 each.", "Shares fell 3.5% to 410 pence in London.",
)  # fmt: skip


class Widths:
    """Rows that each step of a searched or copied slot took, by kind, while the block runs."""

    def __init__(self) -> None:
        self.taken: dict[str, list[list[int]]] = {}

    def __enter__(self) -> Widths:
        from spinf_stream.slots.copying import CopyNumbers, CopyText
        from spinf_stream.slots.search import Search

        self.old = {c: c.feed for c in (Search, CopyText, CopyNumbers)}
        for owner, feed in self.old.items():
            owner.feed = self._wrapped(owner, feed)  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        for owner, feed in self.old.items():
            owner.feed = feed  # type: ignore[method-assign]

    def _wrapped(self, owner: type, feed: Callable[..., None]) -> Callable[..., None]:
        def wrapped(program: Any, reads: Any) -> None:
            before = len(program.token)
            steps = program.__dict__.setdefault("_steps", [before - program.stem - 1])  # what it began with, below the template
            feed(program, reads)
            steps.append(len(program.token) - before)
            if not program.wanted:
                kind = ("copied " if owner.__name__ != "Search" else "") + ("number" if program.automaton.rest else "text")
                self.taken.setdefault(kind, []).append([n for n in steps if n])

        return wrapped


def cost(args: argparse.Namespace) -> int:
    import torch

    torch.set_num_threads(args.threads)
    executor, encoder = model(args)
    bench = Bench(executor, encoder, args)
    gates: dict[str, Any] = {}
    if args.gates:
        from spinf_stream.engine.gpu.proven import slot_gates

        gates = {"slot_gates": proofs.told(slot_gates(executor))}
        device.forget_memory()
    token_ms = bench.scored_token()
    print(f"one scored token {token_ms:.4f} ms")
    report: dict[str, Any] = {"scored_token_ms": round(token_ms, 5), "max_tokens": MAX_TOKENS, "equivalents": {}, **gates}
    runs = []
    for kind in KINDS:
        for slots in (args.slots, 1):
            walls, rows, steps = bench.slots(kind, slots)
            ms = statistics.median(walls)
            each, step_ms = ms / slots / token_ms, ms / max(1, steps)
            report["equivalents"][f"{kind}, {slots} together"] = {
                "equivalents": round(each, 1), "rows_a_slot": round(rows / slots, 1), "steps": steps, "ms_a_step": round(step_ms, 3),
            }  # fmt: skip
            runs.append(Run(f"{kind} x {slots}", -(-slots // PER_ARTICLE), slots, rows, walls, None))
            print(
                f"{kind:<18} {slots:>3} together: {each:8.1f} equivalents, {rows / slots:6.1f} rows a slot, {steps} steps of {step_ms:.2f} ms", flush=True
            )
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
        self.widths: dict[str, list[list[int]]] = json.loads(WIDTHS.read_text())
        self.gpu = args.device != "cpu"
        self.clock = time.perf_counter if self.gpu else time.process_time
        self.turn = 0  # how many slots of a run have taken their widths
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
        plan = self.engine.register(self.questions(56).plan)
        batch = self.batch(self.texts(24 if self.args.device != "cpu" else 2), plan)
        walls = self.timed(lambda: self.engine.collect(self.engine.submit(batch)))
        return statistics.median(walls) / self.engine.collect(self.engine.submit(batch)).tokens

    def slots(self, kind: str, slots: int) -> tuple[list[float], int, int]:
        """(milliseconds that all the slots took in each run, rows that they took, steps)."""
        from spinf_stream.engine import packed
        from spinf_stream.slots.build import SlotSet

        per = min(PER_ARTICLE, slots)
        texts = self.texts(-(-slots // per))
        found = SlotSet(self.questions(per, kind).slots, self.words)
        scored = self.questions(1).plan
        with_, without = self.engine.register(scored, found.plan), self.engine.register(scored)
        batch, bare = self.batch(texts, with_, found), self.batch(texts, without)
        old = packed.programs
        if kind not in ("copied number", "copied amount", "generated") and (self.args.shape != "model" or "full" in kind):
            packed.programs = self.replayed(kind)
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

        try:
            walls = self.timed(once, 4 if self.gpu else 0)  # a card captures a shape when it comes back
        finally:
            packed.programs = old
        if not self.gpu:
            return decoding, rows, steps
        if len(texts) not in self.base:
            self.base[len(texts)] = statistics.median(self.timed(lambda: self.engine.collect(self.engine.submit(bare)), 2))
        return [max(0.0, w - self.base[len(texts)]) for w in walls], rows, steps

    def replayed(self, kind: str) -> Callable[..., list[Any]]:
        """In place of pending.programs: programs that take a recorded number of rows whatever the numbers say."""
        from spinf_stream.slots.plan import BEAM

        full = kind.endswith("full beam")
        widths = [[BEAM] * MAX_TOKENS] if full else self.widths["number" if kind == "amount" else kind]
        order = np.random.default_rng(1).integers(0, len(widths), 10_000).tolist()

        def programs(plan: Any, batch: Any, tree: int) -> list[Any]:
            first, self.turn = self.turn, self.turn + len(plan.slots)
            return [replay(s.template.tolist(), plan.automata[s.automaton], widths[order[first + i]]) for i, s in enumerate(plan.slots)]

        return programs

    def batch(self, texts: Sequence[str], plan: int, slots: Any = None) -> Any:
        from spinf_stream.engine.seam import PassInput
        from spinf_stream.slots.candidates import joined

        ids = [np.array([*self.encoder.bos, *self.encoder.encode(t)], np.int32) for t in texts]
        copies = joined([slots.copies(t) for t in texts]) if slots is not None else None
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


def replay(template: list[int], automaton: Any, widths: Sequence[int]) -> Any:
    from spinf_stream.slots.plan import BEAM
    from spinf_stream.slots.program import Program, Wanted

    class Replay(Program):
        top = BEAM

        def __init__(self) -> None:
            super().__init__(template, automaton)
            self.left = list(widths)
            self.last = [self.stem]
            self.wanted = [Wanted(self.stem, 0)]

        def feed(self, reads: Sequence[Any]) -> None:
            width = self.left.pop(0) if self.left else 0
            self.last = [self.add(int(automaton.token[i % len(automaton.token)]), self.last[min(i, len(self.last) - 1)]) for i in range(width)]
            self.wanted = [Wanted(row, 0) for row in self.last]

    return Replay()
