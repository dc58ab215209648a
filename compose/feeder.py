"""Sample articles without end, as JSONL on standard output: `python feeder.py | spinf-stream produce - --rate 2`.

The eight samples of the package come round and round, each time as a new edition, so that every one costs a pass; each
fourth article is one that came before under another id, as agency copy does in several papers. An edition names the start
that it belongs to: done marks outlive a restart, and its texts would all be duplicates. --beat FILE is touched at every
line: a health check looks at its age. --editions N ends after N rounds.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

REPEAT = 4  # each fourth article has come before


def articles(editions: int | None, run: str) -> Iterator[dict[str, str]]:
    """New editions of the samples, and after each third of them one of the latest again. `run` is in every id and text."""
    lines = (importlib.resources.files("spinf_stream") / "samples" / "articles.jsonl").read_text("utf-8").splitlines()
    samples = [json.loads(line) for line in lines if line.strip()]
    edition = sent = 0
    while editions is None or edition < editions:
        edition += 1
        for sample in samples:
            name = f"{run}-{edition}"
            new = {**sample, "id": f"{sample['id']}-{name}", "text": f"{sample['text']}\n\nEdition {name} of this report."}
            yield new
            sent += 1
            if sent % (REPEAT - 1) == 0:
                yield {**new, "id": f"{new['id']}-copy"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("--beat", type=Path, metavar="FILE")
    parser.add_argument("--editions", type=int, metavar="N")
    args = parser.parse_args()
    try:
        for article in articles(args.editions, f"{time.time_ns():x}"):
            print(json.dumps(article), flush=True)
            if args.beat:
                args.beat.touch()
    except BrokenPipeError:
        sys.stderr.close()  # the other end has left; its own exit code says why
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
