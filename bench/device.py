"""What a card did while a bench ran: its clocks, its kernels, how long it was idle, how much memory was taken."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import threading
from collections.abc import Iterable
from typing import Any

from spinf_stream.records import Article

QUERY = "clocks.sm,clocks.mem,power.draw,temperature.gpu,driver_version,clocks_event_reasons.active"
NUMBERS = 4  # of those


def clocks() -> str:
    """Now."""
    done = _asked()
    return f"{QUERY}: {done}" if done else "no nvidia-smi"


def _asked(*more: str) -> str:
    try:
        command = ["nvidia-smi", "-i", "0", f"--query-gpu={QUERY}", ",".join(("--format=csv,noheader", *more))]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


class Clocks:
    """Readings about once a second while the block runs."""

    def __enter__(self) -> Clocks:
        self.rows: list[list[str]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._over.wait(1.0):
            if row := _asked("nounits"):
                self.rows.append([v.strip() for v in row.split(",")])

    def told(self) -> dict[str, Any]:
        """[least, median, most] of each number, and the driver and the throttle reasons met."""
        names = QUERY.split(",")
        out: dict[str, Any] = {"readings": len(self.rows)}
        for i, name in enumerate(names if self.rows else ()):
            column = [r[i] for r in self.rows if len(r) > i]
            if i < NUMBERS:
                values = [float(v) for v in column if v.replace(".", "", 1).isdigit()]
                out[name] = [min(values), statistics.median(values), max(values)] if values else None
            else:
                out[name] = sorted(set(column))
        return out


def profiler() -> Any:
    """Of the device alone; starting the first one of a process takes seconds."""
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CUDA])


def kernels(scorer: Any, batch: Any) -> dict[str, Any]:
    """GPU ms of one pass by kernel, and the attention's share."""
    import torch

    with profiler() as p:
        scorer.engine.collect(scorer.engine.submit(batch))
        torch.cuda.synchronize()
    rows = sorted(((e.key, e.device_time_total / 1e3, e.count) for e in p.key_averages()), key=lambda r: -r[1])
    total = sum(ms for _, ms, _ in rows)
    attention = sum(ms for name, ms, _ in rows if "attention" in name)
    top = [[name[:60], round(ms, 3), count] for name, ms, count in rows[:12]]
    return {"total_ms": round(total, 2), "attention_share": round(attention / max(total, 1e-9), 4), "kernels": top}


def idle(p: Any) -> dict[str, Any]:
    """From the intervals of kernels and copies that a profiler has seen, from the first to the last: nothing of our own."""
    from torch.autograd import DeviceType

    spans = [(e.time_range.start, e.time_range.end) for e in p.events() if e.device_type == DeviceType.CUDA and e.time_range.end > e.time_range.start]
    if not spans:
        return {"failed": "the profiler saw nothing of the device"}
    busy, gap = union(spans)
    window = max(b for _, b in spans) - min(a for a, _ in spans)
    return {
        "window_seconds": round(window / 1e6, 3), "busy_seconds": round(busy / 1e6, 3), "idle_share": round(1 - busy / window, 5),
        "largest_gap_ms": round(gap / 1e3, 3), "intervals": len(spans),
    }  # fmt: skip


def union(spans: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """(what the spans cover together, the largest gap between them)."""
    covered = gap = 0.0
    end: float | None = None
    for low, high in sorted(spans):
        if end is None or low > end:
            gap = max(gap, 0.0 if end is None else low - end)
            covered += high - low
            end = high
        elif high > end:
            covered += high - end
            end = high
    return covered, gap


def memory() -> dict[str, float]:
    """The most since the last `forget_memory`, of tensors and of what torch holds for them."""
    import torch

    gib = 2**30
    return {
        "allocated_gib": round(torch.cuda.max_memory_allocated() / gib, 2), "reserved_gib": round(torch.cuda.max_memory_reserved() / gib, 2),
    }  # fmt: skip


def forget_memory() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def full_budget(scorer: Any, articles: list[Article]) -> dict[str, Any]:
    """Two passes in flight as full as the budget lets them be, as a worker under load has them: the most memory."""
    budget, items, rows = scorer.engine.budget, [], 0
    for n in itertools.count():
        item = scorer.prepare(Article(id=f"{n}", text=f"{n} {articles[n % len(articles)].text}"))
        if rows + item.cost > budget:
            break
        items.append(item)
        rows += item.cost
    forget_memory()
    batch = scorer.pack(items)
    handles = [scorer.engine.submit(batch) for _ in range(2)]
    outputs = [scorer.engine.collect(h) for h in handles]
    return {"budget": budget, "rows": outputs[0].tokens, "articles": len(items), "gpu_ms": round(1e3 * outputs[1].busy_seconds, 1), **memory()}
