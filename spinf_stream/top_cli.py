"""`spinf-stream top`: a live view of one or several workers, from their /metrics alone.

Rates are between two scrapes. On a terminal the screen is drawn again every --interval seconds; elsewhere, and with
--once, it is printed once.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.request
from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from spinf_stream.errors import UsageError
from spinf_stream.metrics import PREFIX, STAGES

WIDTH = 24  # of a bar
_CLEAR = "\x1b[H\x1b[J"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape(NamedTuple):
    """The samples of all workers, summed where name and labels are equal; `away` are the addresses without an answer."""

    at: float  # monotonic
    samples: Samples
    workers: int
    away: tuple[str, ...]

    def sum(self, name: str, **labels: str) -> float:
        return sum(self.values(name, **labels))

    def values(self, name: str, **labels: str) -> list[float]:
        wanted = labels.items()
        return [v for (n, own), v in self.samples.items() if n == PREFIX + name and wanted <= own]

    def labelled(self, name: str, label: str) -> dict[str, float]:
        out: dict[str, float] = {}
        for (n, own), v in self.samples.items():
            if n == PREFIX + name:
                key = dict(own).get(label, "")
                out[key] = out.get(key, 0.0) + v
        return out


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("urls", metavar="URL", nargs="*", default=["http://127.0.0.1:9464"], help="workers (default http://127.0.0.1:9464)")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between two looks (default 2)")
    parser.add_argument("--once", action="store_true", help="print one view and leave")


def run(args: argparse.Namespace) -> int:
    if args.interval <= 0:
        raise UsageError("--interval must be more than 0")
    urls = [u if u.startswith("http") else f"http://{u}" for u in args.urls]
    once = args.once or not sys.stdout.isatty()
    before = scrape(urls)
    if not before.workers:
        raise UsageError(f"no worker answers at {', '.join(urls)}", 3)
    while True:
        time.sleep(args.interval)
        now = scrape(urls)
        text = "\n".join(view(before, now))
        if once:
            print(text)
            return 0
        print(_CLEAR + text, flush=True)
        before = now


def scrape(urls: Sequence[str]) -> Scrape:
    samples: Samples = {}
    away = []
    for url in urls:
        try:
            with urllib.request.urlopen(url.rstrip("/") + "/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except (OSError, ValueError):
            away.append(url)
            continue
        for family in text_string_to_metric_families(text):
            for s in family.samples:
                key = (s.name, frozenset(s.labels.items()))
                samples[key] = samples.get(key, 0.0) + s.value
    return Scrape(time.monotonic(), samples, len(urls) - len(away), tuple(away))


def view(before: Scrape, now: Scrape) -> list[str]:
    """The lines of the screen. A worker that began anew counts from 0: a rate is never negative."""
    seconds = max(now.at - before.at, 1e-6)

    def rate(name: str, **labels: str) -> float:
        return max(0.0, now.sum(name, **labels) - before.sum(name, **labels)) / seconds

    def mean(name: str, **labels: str) -> float:
        count = rate(name + "_count", **labels)
        return rate(name + "_sum", **labels) / count if count else 0.0

    fill, busy = mean("batch_fill_ratio"), rate("engine_busy_seconds_total") / max(1, now.workers)
    outcomes = now.labelled("records_total", "outcome")
    dead = {k: v for k, v in now.labelled("dead_letters_total", "reason").items() if v}
    up = now.labelled("dependency_up", "dependency")
    slow = [(stage, mean("stage_seconds", stage=stage)) for stage in STAGES]
    lines = [
        f"spinf-stream   {now.workers} worker{'s' * (now.workers != 1)}, {now.sum('assigned_partitions'):.0f} partitions"
        + "".join(f"   {name} {'ok' if v >= now.workers else 'AWAY'}" for name, v in sorted(up.items()))
        + ("   PAUSED" if now.sum("paused") else "")
        + (f"   {blocked:.0f} BLOCKED" if (blocked := now.sum("publish_blocked")) else ""),
        "",
        f"scored         {rate('records_total', outcome='scored'):10.1f} articles/s  {rate('questions_scored_total'):10.0f} questions/s  {rate('tokens_total', kind='real'):10.0f} tokens/s",
        f"lag            {now.sum('lag_records'):10.0f} records     {max(now.values('lag_seconds'), default=0.0):10.1f} s oldest",
        f"in flight      {now.sum('inflight_records'):10.0f} records     {now.sum('inflight_tokens'):10.0f} tokens       {now.sum('inflight_bytes') / 2**20:10.1f} MiB",
        "",
        f"fill           {_bar(fill)} {fill:4.0%} of {now.sum('token_budget_effective') / max(1, now.workers):.0f} tokens",
        f"device busy    {_bar(busy)} {busy:4.0%}",
        *_memory(now),
        "",
        "outcomes       " + "  ".join(f"{name} {value:.0f}" for name, value in outcomes.items()),
        "dead letters   " + ("  ".join(f"{name} {value:.0f}" for name, value in dead.items()) or "none"),
        "stages         " + "  ".join(f"{stage} {_time(value)}" for stage, value in slow if value),
    ]
    lines += [f"no answer      {url}" for url in now.away]
    return lines


def _memory(now: Scrape) -> list[str]:
    """Of GPUs; a worker on a CPU has no such series."""
    used, total = now.sum("device_memory_used_bytes"), now.sum("device_memory_total_bytes")
    if not total:
        return []
    watts = now.values("device_power_watts")
    return [f"device memory  {_bar(used / total)} {used / total:4.0%} of {total / 2**30:.0f} GiB" + (f"   {sum(watts):.0f} W" if watts else "")]


def _bar(share: float) -> str:
    full = round(WIDTH * min(1.0, max(0.0, share)))
    return "#" * full + "." * (WIDTH - full)


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
