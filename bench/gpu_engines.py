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

import device
import numpy as np
import proofs
from job import Job

Once = Callable[[], tuple[Any, ...]]  # answers, rows, GPU ms, and the wall ms where the engine measures it itself


class Missing(Exception):
    """This engine said nothing; what others said stands."""


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
        from shapes import gemma4_12b, random_stack

        from spinf_stream.engine.gpu.executor import GpuExecutor
        from spinf_stream.engine.tokenizer import Encoder

        device.forget_memory()
        spec = gemma4_12b(args.layers)
        encoder = Encoder.from_file(args.tokenizer, spec.bos, spec.vocab)
        executor = GpuExecutor(random_stack(spec, "cuda"), encoder.starts_alnum())
        shared["report"] |= proofs.prove(executor) if args.gates else {"bit_exact": "not asked", "digest": proofs.digest(executor)}
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
    scorer = scorer_of(job, args, shared)
    readers, ahead = ThreadPoolExecutor(min(8, os.cpu_count() or 1)), ThreadPoolExecutor(1)
    after = ThreadPoolExecutor(1)

    def packed() -> tuple[Any, Any]:
        items = list(readers.map(scorer.prepare, job.articles))
        return items, scorer.pack(items)

    def jobs(seconds: float) -> Iterator[Any]:
        """Outputs of finished jobs, three at least, each read out, in order."""
        coming: Future[tuple[Any, Any]] = ahead.submit(packed)
        running: deque[tuple[Any, Any]] = deque()
        answered: Future[Any] | None = None
        end, begun = time.perf_counter() + seconds, 0
        while running or begun < 3 or time.perf_counter() < end:
            if begun < 3 or time.perf_counter() < end:
                items, batch = coming.result()
                coming = ahead.submit(packed)
                running.append((items, scorer.engine.submit(batch)))
                begun += 1
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
        with device.Clocks() as clocks:
            for output, answered in jobs(args.seconds):  # the clock starts when the first job is out: the period between jobs
                count, busy, last = count + 1, busy + (output.busy_seconds if count >= 0 else 0.0), (output, answered)
                ended = time.perf_counter()
                began = began or ended
        wall = ended - began
        assert last is not None and count > 0
        shared["report"]["stream"] = {
            "seconds": round(wall, 2), "jobs": count, "gpu_busy_share": round(busy / wall, 4), "clocks": clocks.told(),
            "peak_gib": device.memory()["allocated_gib"],
        }  # fmt: skip
        return flat(last[1].result()), last[0].tokens, 1e3 * busy / count, 1e3 * wall / count

    return once


def flat(answers: Any) -> np.ndarray:
    """[articles, options] log-probabilities."""
    if not isinstance(answers[0].scores, list):
        return np.stack([np.frombuffer(a.scores.logprob, "<f4") for a in answers])
    return np.array([[o.logprob for q in a.scores for c in q.combinations for o in c.options] for a in answers])


def peer(args: argparse.Namespace, shared: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The peer's own script, once: medians of its warm calls for 24, 1 and 96 articles, and with floors for 24 and 1."""
    if "peer" not in shared:
        root = Path(__file__).resolve().parents[1]  # holds a package `kernels`, which is not the one that transformers looks for
        paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != root]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-P", str(Path(__file__).with_name("peer_floors.py")), args.peer, args.job, Path(args.tokenizer).parent]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=args.peer_timeout, env=env)
            said, why = done.stdout, done.stderr
        except subprocess.TimeoutExpired as e:
            said, why = (str(t, "utf-8") if isinstance(t, bytes) else t or "" for t in (e.stdout, e.stderr))
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        if not lines:
            raise Missing(f"spinf-serve failed: {why[-1500:]}")
        plain, floors = lines[0], lines[1] if len(lines) > 1 else {"failed": why[-1500:]}
        shared["report"]["spinf-serve"], shared["report"]["spinf-serve with floors"] = plain, floors
        shared["peer"] = plain, floors
    return shared["peer"]


def spinf_serve(which: int) -> Callable[[Job, argparse.Namespace, dict[str, Any]], Once]:
    """Its answers are of other weights."""

    def make(job: Job, args: argparse.Namespace, shared: dict[str, Any]) -> Once:
        mine = peer(args, shared)[which].get(str(len(job.articles)))
        if mine is None:
            raise Missing(f"spinf-serve said nothing of {len(job.articles)} articles: {peer(args, shared)[which]}")
        return lambda: (None, mine["packed_tokens"], mine["gpu_ms"], mine["wall_ms"])

    return make


def closing(job: Job, shared: dict[str, Any]) -> dict[str, Any]:
    """What is worth knowing once the clock has stopped: kernels, memory, versions."""
    scorer = shared.get("scorer-12b")
    if scorer is None:
        return {}
    items = [scorer.prepare(a) for a in job.articles]
    out: dict[str, Any] = {"peak_gib": device.memory()["allocated_gib"], "clocks": device.clocks(), "numerics": scorer.engine.executor.numerics}
    for name, measured in (
        ("profile", lambda: device.kernels(scorer, scorer.pack(items))), ("full_budget", lambda: device.full_budget(scorer, job.articles)),
    ):  # fmt: skip
        try:
            out[name] = measured()
        except Exception as e:  # what was timed stands all the same
            out[name] = {"failed": f"{type(e).__name__}: {e}"}
    return out


REGISTRY = {"ours-12b": ours, "ours-12b-cold": cold, "ours-12b-stream": stream, "spinf-serve": spinf_serve(0), "spinf-serve-floors": spinf_serve(1)}
