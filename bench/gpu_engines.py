"""Engines of the headline bench that need a GPU: ours on random weights of the 12B's shape, and spinf-serve on its own.

`ours-12b` is one job at a time: texts in, answers out, nothing overlapped. `ours-12b-stream` is the same job back to back
for --seconds: tokenising and packing job N+1 and reading out job N-1 while job N runs. spinf-serve comes from PyPI
(PYTHONPATH) through a script of its own, --peer, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from job import Job

Once = Callable[[], tuple[Any, ...]]  # answers, rows, GPU ms, and the wall ms where the engine measures it itself


def scorer_of(job: Job, args: argparse.Namespace, shared: dict[str, Any]) -> Any:
    """An ArticleScorer on a random stack, floors computed and kept."""
    if "scorer-12b" in shared:
        return shared["scorer-12b"]
    from asking import asked

    from spinf_stream.config import Settings
    from spinf_stream.engine.fingerprint import fingerprint
    from spinf_stream.engine.packed import PackedEngine
    from spinf_stream.engine.scoring import ArticleScorer
    from spinf_stream.questions.compile import Source, build

    executor, encoder = executor_of(args, shared)
    engine = PackedEngine(executor)
    questions = build([Source({**job.scoring, "case_insensitive": True})], encoder)
    full = fingerprint(executor, encoder.digest)
    ask = asked(questions, engine, encoder, full, shared["folder"] / "floors")
    settings = Settings(model="random-12b", scores_format="compact" if args.compact else "full")
    shared["scorer-12b"] = ArticleScorer(engine, encoder, [ask], settings, full)
    return shared["scorer-12b"]


def cold_floors(scorer: Any) -> tuple[int, float]:
    """The floors of a scorer's questions, from nothing: (rows computed, device seconds)."""
    from spinf_stream.engine.floors import FloorCache
    from spinf_stream.engine.open import Ground, ask_of

    seconds = 0.0

    def run(batch: Any) -> Any:
        nonlocal seconds
        output = scorer.engine.collect(scorer.engine.submit(batch))
        seconds += output.busy_seconds
        return output

    with tempfile.TemporaryDirectory() as empty:
        cache = FloorCache(Path(empty), scorer.fingerprint_full)
        ground = Ground(scorer.settings, scorer.encoder, scorer.engine, cache, scorer.fingerprint_full, lambda line: None)
        rows = sum(ask_of(ground, ask.questions, None, run).floors.tokens for ask in scorer.asks)
    return rows, seconds


def executor_of(args: argparse.Namespace, shared: dict[str, Any]) -> tuple[Any, Any]:
    """The random stack's executor and the tokenizer, made once."""
    if "executor-12b" not in shared:
        import torch
        from shapes import gemma4_12b, random_stack

        from spinf_stream.engine.gpu.executor import GpuExecutor
        from spinf_stream.engine.gpu.proven import prove
        from spinf_stream.engine.tokenizer import Encoder

        torch.cuda.reset_peak_memory_stats()
        spec = gemma4_12b(args.layers)
        encoder = Encoder.from_file(args.tokenizer, spec.bos, spec.vocab)
        executor = GpuExecutor(random_stack(spec, "cuda"), encoder.starts_alnum())
        shared["report"]["bit_exact"] = prove(executor, shared["folder"] / "gates", print) if args.gates else "not asked"
        shared["executor-12b"] = executor, encoder
    return shared["executor-12b"]


def ours(job: Job, args: argparse.Namespace, shared: dict[str, Any]) -> Once:
    scorer, pool = scorer_of(job, args, shared), ThreadPoolExecutor(min(8, os.cpu_count() or 1))

    def once() -> tuple[Any, ...]:
        items = list(pool.map(scorer.prepare, job.articles))
        output = scorer.engine.collect(scorer.engine.submit(scorer.pack(items)))
        return flat(scorer.answers(items, output)), output.tokens, 1e3 * output.busy_seconds

    return once


def cold(job: Job, args: argparse.Namespace, shared: dict[str, Any]) -> Once:
    """The same job with its floors computed as well: what the first articles of a new question set wait for."""
    scorer, warm = scorer_of(job, args, shared), ours(job, args, shared)

    def once() -> tuple[Any, ...]:
        rows, seconds = cold_floors(scorer)
        answers, tokens, gpu_ms = warm()
        return answers, rows + tokens, 1e3 * seconds + gpu_ms

    return once


def stream(job: Job, args: argparse.Namespace, shared: dict[str, Any]) -> Once:
    import torch

    scorer = scorer_of(job, args, shared)
    readers, ahead = ThreadPoolExecutor(min(8, os.cpu_count() or 1)), ThreadPoolExecutor(1)
    after = ThreadPoolExecutor(1)

    def packed() -> tuple[Any, Any]:
        items = list(readers.map(scorer.prepare, job.articles))
        return items, scorer.pack(items)

    def jobs(seconds: float) -> Iterator[Any]:
        """Outputs of finished jobs, each read out, in order."""
        coming: Future[tuple[Any, Any]] = ahead.submit(packed)
        running: deque[tuple[Any, Any]] = deque()
        answered: Future[Any] | None = None
        end = time.perf_counter() + seconds
        while running or time.perf_counter() < end:
            if time.perf_counter() < end:
                items, batch = coming.result()
                coming = ahead.submit(packed)
                running.append((items, scorer.engine.submit(batch)))
            if len(running) == 2 or time.perf_counter() >= end:
                items, handle = running.popleft()
                output = scorer.engine.collect(handle)
                if answered is not None:
                    answered.result()
                answered = after.submit(scorer.answers, items, output)
                yield output, answered
        if answered is not None:
            answered.result()

    def once() -> tuple[Any, ...]:
        count, busy, last, began = -1, 0.0, None, 0.0
        for output, answered in jobs(args.seconds):  # the clock starts when the first job is out: the period between jobs
            count, busy, last = count + 1, busy + (output.busy_seconds if count >= 0 else 0.0), (output, answered)
            ended = time.perf_counter()
            began = began or ended
        wall = ended - began
        assert last is not None and count > 0
        shared["report"]["stream"] = {
            "seconds": round(wall, 2), "jobs": count, "gpu_busy_share": round(busy / wall, 4), "clocks": clocks(),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        }  # fmt: skip
        return flat(last[1].result()), last[0].tokens, 1e3 * busy / count, 1e3 * wall / count

    return once


def flat(answers: Any) -> np.ndarray:
    """[articles, options] log-probabilities."""
    if not isinstance(answers[0].scores, list):
        return np.stack([np.frombuffer(a.scores.logprob, "<f4") for a in answers])
    return np.array([[o.logprob for q in a.scores for c in q.combinations for o in c.options] for a in answers])


def spinf_serve(job: Job, args: argparse.Namespace, shared: dict[str, Any]) -> Once:
    """The peer's own script: medians of its warm calls for 24, 1 and 96 articles; its answers are of other weights."""
    tokenizer = Path(args.tokenizer).parent
    done = subprocess.run([sys.executable, args.peer, args.job, tokenizer], capture_output=True, text=True, timeout=args.peer_timeout)
    if done.returncode:
        raise SystemExit(f"spinf-serve failed: {done.stderr[-1500:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    shared["report"]["spinf-serve"] = told
    mine = told[str(len(job.articles))]

    def once() -> tuple[Any, ...]:
        return None, mine["packed_tokens"], mine["gpu_ms"], mine["wall_ms"]

    return once


def profile(scorer: Any, batch: Any) -> dict[str, Any]:
    """GPU ms of one pass by kernel, and the attention's share."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CUDA]) as p:
        scorer.engine.collect(scorer.engine.submit(batch))
        torch.cuda.synchronize()
    rows = sorted(((e.key, e.device_time_total / 1e3, e.count) for e in p.key_averages()), key=lambda r: -r[1])
    total = sum(ms for _, ms, _ in rows)
    attention = sum(ms for name, ms, _ in rows if "attention" in name)
    top = [[name[:60], round(ms, 3), count] for name, ms, count in rows[:12]]
    return {"total_ms": round(total, 2), "attention_share": round(attention / total, 4), "kernels": top}


def closing(job: Job, shared: dict[str, Any]) -> dict[str, Any]:
    """What is worth knowing once the clock has stopped: kernels, memory, versions."""
    scorer = shared.get("scorer-12b")
    if scorer is None:
        return {}
    import torch

    items = [scorer.prepare(a) for a in job.articles]
    numerics = scorer.engine.executor.numerics
    peak = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return {"profile": profile(scorer, scorer.pack(items)), "peak_gib": peak, "clocks": clocks(), "numerics": numerics}


def clocks() -> str:
    query = "clocks.sm,clocks.mem,power.draw,temperature.gpu,driver_version,clocks_event_reasons.active"
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True)
    except OSError:
        return "no nvidia-smi"
    return f"{query}: {done.stdout.strip()}"


REGISTRY = {"ours-12b": ours, "ours-12b-cold": cold, "ours-12b-stream": stream, "spinf-serve": spinf_serve}
