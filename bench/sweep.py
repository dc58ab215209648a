"""How the cost of a job grows, on a GPU with random weights of the 12B's shape: more articles, more questions, longer articles.

    python bench/sweep.py --tokenizer tokenizer.json

Made-up articles and questions; texts in, answers out, one job at a time, medians of --repeat warm runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import device
import gpu_engines
from headline import row
from job import made_up
from results import Run, write_result

ARTICLES, QUESTIONS, WORDS = (1, 4, 8, 24, 48, 96), (10, 56, 200, 1000), (100, 340, 1000, 2500)


def main() -> int:
    import time

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--layers", type=int, default=48)
    p.add_argument("--repeat", type=int, default=3)
    args = p.parse_args()
    args.gates, args.compact = False, False
    points = [(a, 56, 340) for a in ARTICLES] + [(8, q, 340) for q in QUESTIONS] + [(8, 56, w) for w in WORDS]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        shared: dict[str, Any] = {"folder": Path(folder), "report": {}}
        for articles, questions, words in dict.fromkeys(points):
            shared.pop("scorer-12b", None)  # other questions; the model stays
            job = made_up(articles, questions, words)
            once = gpu_engines.ours(job, args, shared)
            once()
            walls, gpu, tokens = [], 0.0, 0
            for _ in range(args.repeat):
                began = time.perf_counter()
                _, tokens, gpu = once()
                walls.append(1e3 * (time.perf_counter() - began))
            runs.append(Run(f"ours-12b, {words} words", articles, questions * articles, tokens, walls, gpu))
            print(row(runs[-1], runs[0], 0.0), flush=True)
        report = {"clocks": device.clocks(), **shared["report"]}
    print(write_result("sweep-12b", report, runs), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
