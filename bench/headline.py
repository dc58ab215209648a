"""The headline job: articles x questions, texts in, probabilities out, one engine after another in one process.

    python bench/headline.py --engine ours,transformers,transformers-prefix-cache --articles 2     # a CPU, the demo model
    python bench/headline.py --engine ours-12b,ours-12b-stream --tokenizer tokenizer.json --articles 24     # an H200, random weights

Engines are the registry below. Every engine answers the same prompts; all are compared with the first that ran. Warm:
one run of each (its floors too) before the clock starts; `ours-cold` is ours with an empty floor cache. Without --job
articles and questions of the same shape are made up. Engines that need a GPU: gpu_engines.py.
Exit code 1 when answers differ by 1e-4 (float32 on a CPU) or 1e-3, or, with --check, when ours is less faster than promised.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_engines
import numpy as np
from job import Job, load
from results import Run, write_result

Answers = np.ndarray  # [articles, options] log-probabilities
# answers (None: of other weights), rows computed, GPU ms, and the wall ms where the engine measures it itself
Once = Callable[[], tuple[Any, ...]]
UNWARMED = ("ours-cold", "ours-12b-stream", "spinf-serve", "spinf-serve-floors", "transformers")  # cold on purpose, or long enough to warm up by themselves
ONCE = ("transformers", "ours-12b-stream", "spinf-serve", "spinf-serve-floors")
FLOAT32 = {"ours", "ours-cold", "transformers", "transformers-prefix-cache", "transformers-prefix-batch"}
PROMISED = {"transformers": 15.0, "transformers-prefix-cache": 3.0, "transformers-prefix-batch": 1.3}  # times the wall time of ours


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engine", default="ours,ours-cold,transformers-prefix-batch,transformers-prefix-cache,transformers")
    p.add_argument("--job", type=Path, help="JSON of {articles: [{id, text}], questions: [query]}")
    p.add_argument("--articles", type=int, default=2)
    p.add_argument("--questions", type=int, default=56)
    p.add_argument("--words", type=int, default=340, help="length of made-up articles")
    p.add_argument("--model", default="demo")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--repeat", type=int, default=3)
    gpu = p.add_argument_group("engines that need a GPU")
    gpu.add_argument("--layers", type=int, default=48, help="of the random 12B")
    gpu.add_argument("--tokenizer", type=Path, help="a Gemma tokenizer.json, for the random 12B")
    gpu.add_argument("--seconds", type=float, default=20.0, help="of ours-12b-stream")
    gpu.add_argument("--gates", action="store_true", help="run the bit gates first")
    gpu.add_argument("--compact", action="store_true", help="answers in the compact format")
    gpu.add_argument("--peer", type=Path, help="the script that runs spinf-serve")
    gpu.add_argument("--peer-timeout", type=float, default=300.0)
    p.add_argument("--check", action="store_true", help="fail when ours is not as much faster than transformers as promised")
    p.add_argument("--name", default="headline", help="of the result file")
    args = p.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    job = load(args.job, args.articles, args.questions, args.words).take(args.articles, args.questions)
    names = args.engine.split(",")
    if unknown := set(names) - set(REGISTRY):
        p.error(f"no engine {', '.join(sorted(unknown))}; there is {', '.join(REGISTRY)}")
    runs: list[Run] = []
    first: Answers | None = None
    worst: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        shared: dict[str, Any] = {"folder": Path(folder), "report": {}}
        for name in names:
            try:
                once = REGISTRY[name](job, args, shared)
            except gpu_engines.Missing as e:
                print(shared["report"].setdefault(f"{name} failed", str(e)), file=sys.stderr)
                continue
            if name not in UNWARMED:
                once()
            walls = []
            for _ in range(1 if name in ONCE else args.repeat):
                began = time.perf_counter()
                answers, tokens, gpu, *own = once()
                walls.append(own[0] if own else 1e3 * (time.perf_counter() - began))
            if answers is not None:
                first = answers if first is None else first
                worst[name] = float(np.abs(answers - first).max())
            runs.append(Run(name, len(job.articles), len(job.scoring["queries"]) * len(job.articles), tokens, walls, gpu))
            print(row(runs[-1], runs[0], worst.get(name)), flush=True)
        times = ratios(runs)
        report = {"worst_logprob_difference": worst, "times_ours": times, **shared["report"], **gpu_engines.closing(job, shared)}
    path = write_result(args.name + ("-demo" if "scorer-12b" not in shared else ""), report, runs)
    print(path, file=sys.stderr)
    for name, times_ours in times.items():
        print(f"{name}: {times_ours:.2f} x the time of ours, promised {PROMISED[name]:g} x")
    far = [n for n, w in worst.items() if not w < (1e-4 if worst.keys() <= FLOAT32 else 1e-3)]
    slow = [n for n, promised in PROMISED.items() if times.get(n, 0.0) < promised] if args.check else []
    for said, of in (("answers differ", far), ("not measured, or ours is not as fast as promised", slow)):
        if of:
            print(f"{said}: {', '.join(of)}", file=sys.stderr)
    return 1 if far or slow else 0


def ratios(runs: list[Run]) -> dict[str, float]:
    """How many times the wall time of ours, warm, each engine takes that something was promised of."""
    wall = {run.engine: run.row()["wall_ms"] for run in runs}
    return {n: round(wall[n] / wall["ours"], 2) for n in PROMISED if n in wall and "ours" in wall}


def row(run: Run, ours: Run, worst: float | None) -> str:
    wall = run.row()["wall_ms"]
    rate = run.questions / wall * 1e3
    return (
        f"{run.engine:<26} {wall:>10.0f} ms  {run.tokens:>7} rows  {rate:>7.1f} questions/s  "
        f"{wall / ours.row()['wall_ms']:>5.2f} x the first  "
        + ("other weights" if worst is None else f"worst difference {worst:.1e}")
        + ("" if run.gpu_ms is None else f"  GPU {run.gpu_ms:.1f} ms")
    )


def ours(job: Job, args: argparse.Namespace, shared: dict[str, Any]) -> Once:
    """Texts in, probabilities out, as `score FILE` does it: tokenise, pack, run, read out."""
    from spinf_stream.config import Settings
    from spinf_stream.engine.open import open_scorer

    questions = shared["folder"] / "questions.json"
    questions.write_text(json.dumps({**job.scoring, "case_insensitive": True}), "utf-8")
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    cache = shared["folder"] / "cache"
    if not cache.exists():  # the converted model is kept, floors are this run's own
        cache.mkdir()
        models = Path(home) / "spinf-stream" / "models"
        models.mkdir(parents=True, exist_ok=True)
        (cache / "models").symlink_to(models)
    settings = Settings(model=args.model, questions=str(questions), cache_dir=str(cache), threads=args.threads)
    scorer = open_scorer(settings)
    shared["scorer"] = scorer

    def once() -> tuple[Answers, int, float | None]:
        items = [scorer.prepare(a) for a in job.articles]
        output = scorer.engine.collect(scorer.engine.submit(scorer.pack(items)))
        answers = scorer.answers(items, output)
        flat = [[o.logprob for q in a.scores for c in q.combinations for o in c.options] for a in answers]
        return np.array(flat), output.tokens, None

    return once


def ours_cold(job: Job, args: argparse.Namespace, shared: dict[str, Any]) -> Once:
    """With the floors computed as well: what the first article of a new question set waits for."""
    warm = ours(job, args, shared)

    def once() -> tuple[Answers, int, float | None]:
        from asking import asked

        scorer = shared["scorer"]
        with tempfile.TemporaryDirectory() as empty:
            floors = asked(scorer.asks[0].questions, scorer.engine, scorer.encoder, scorer.fingerprint_full, Path(empty)).floors
        answers, tokens, gpu = warm()
        return answers, tokens + floors.tokens, gpu

    return once


def plain(name: str) -> Callable[[Job, argparse.Namespace, dict[str, Any]], Once]:
    def make(job: Job, args: argparse.Namespace, shared: dict[str, Any]) -> Once:
        from demo_transformers import demo_model
        from transformers_engines import ENGINES, Asked

        if args.model != "demo":
            raise SystemExit("the transformers engines run the demo model")
        if "plain" not in shared:
            shared["plain"] = demo_model()
        model, tokenizer = shared["plain"]

        def ids(text: str) -> list[int]:
            return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

        def variants(option: str) -> list[int]:
            w = option.strip()
            forms = dict.fromkeys([option, *(s + f for f in (w.lower(), w.capitalize(), w.upper()) for s in ("", " "))])
            return sorted({t[0] for t in map(ids, forms) if len(t) == 1})

        queries = job.scoring["queries"]
        asked = Asked(
            [[tokenizer.bos_token_id, *ids(a.text.rstrip())] for a in job.articles],
            [ids(q["template"].removesuffix("{?}")) for q in queries],
            [[variants(o) for o in q["options"]] for q in queries],
        )
        suffix = sum(map(len, asked.prompts))
        rows = sum(len(t) for t in asked.trunks)
        longest = max(map(len, asked.prompts)) * len(asked.prompts)
        tokens = {
            "transformers": rows * len(queries) + suffix * len(asked.trunks),
            "transformers-prefix-cache": rows + suffix * len(asked.trunks),
            "transformers-prefix-batch": rows + longest * len(asked.trunks),
        }[name]

        def once() -> tuple[Answers, int, float | None]:
            return ENGINES[name](model, asked).reshape(len(asked.trunks), -1), tokens, None

        return once

    return make


REGISTRY: dict[str, Callable[[Job, argparse.Namespace, dict[str, Any]], Once]] = {
    "ours": ours,
    "ours-cold": ours_cold,
    "transformers": plain("transformers"),
    "transformers-prefix-cache": plain("transformers-prefix-cache"),
    "transformers-prefix-batch": plain("transformers-prefix-batch"),
    **gpu_engines.REGISTRY,
}

if __name__ == "__main__":
    sys.exit(main())
