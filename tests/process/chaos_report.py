"""What a chaos run promises, and its figures as one line of JSON, as the table of the README and as a result file."""

from __future__ import annotations

import datetime
import statistics
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import results
from audit import Verdict
from faults import HARD, Faults

ROOT = Path(__file__).resolve().parents[2]


class Least(NamedTuple):
    """What a run must have been to count."""

    records: int
    faults: int
    each: int  # of every kind


class Spec(NamedTuple):
    """One run."""

    delivery: str
    redis: bool
    equal: bool  # five records share a text
    records: int
    faults: int
    partitions: int
    feeding: float  # seconds
    seed: int
    least: Least
    most_seconds: float | None = None  # that the run may take on a machine that nobody else uses


class Ending(NamedTuple):
    """How a run ended."""

    sent: int  # records, the poison included
    poison: int
    verdict: Verdict
    hanging: int
    lag: int
    seconds: float
    others: float  # share of the machine that was not ours meanwhile


def report(spec: Spec, in_flight: int, faults: Faults, end: Ending) -> dict[str, Any]:
    """`broken` names the promises that were not kept. in_flight: what a sudden death may repeat, at least once."""
    v, struck = end.verdict, faults.struck
    bound = 0 if spec.delivery == "exactly_once" else in_flight * sum(struck[k] for k in ("kill", "zombie", "network"))
    kinds = ["sigterm", *(k for k in HARD if spec.redis or k != "redis")]
    limit = spec.most_seconds and spec.most_seconds / max(0.1, 1 - end.others)
    times = sorted(faults.recoveries)
    broken = [
        name
        for name, bad in (
            ("lost", v.lost), ("duplicates", v.duplicates + v.dead_duplicates > bound), ("duplicates after SIGTERM", faults.after_sigterm),
            ("order", v.order_breaks), ("offsets backwards", v.backwards), ("commits missed", v.commits_missed),
            ("hanging transactions", end.hanging), ("lag", end.lag), ("dead letters lost", v.dead_lost), ("dead letters wrong", v.dead_wrong),
            ("too few records", end.sent < spec.least.records), ("too few faults", sum(struck.values()) < spec.least.faults),
            ("a kind too seldom", min(struck[k] for k in kinds) < spec.least.each), ("slow", limit and end.seconds > limit),
        )
        if bad
    ]  # fmt: skip
    return {
        "delivery": spec.delivery, "redis": spec.redis, "equal_texts": spec.equal, "seed": spec.seed, "partitions": spec.partitions,
        "records": end.sent, "faults": dict(sorted(struck.items())), "besides": dict(sorted(faults.fleet.moves.items())),
        "in_flight_when_struck": {"least": min(faults.held), "median": statistics.median(faults.held)},
        "duplicates_allowed": bound, "duplicates_after_sigterm": faults.after_sigterm, **v._asdict(), "hanging_transactions": end.hanging,
        "lag": end.lag, "poison": end.poison, "recovery_p50_s": round(statistics.median(times), 2),
        "recovery_p95_s": round(times[min(len(times) - 1, int(0.95 * len(times)))], 2),
        "seconds": round(end.seconds, 1), "others_cpu": end.others, "broken": broken,
    }  # fmt: skip


def _title(r: dict[str, Any]) -> str:
    more = ("" if r.get("redis", True) else ", no Redis") + (", equal texts" if r.get("equal_texts") else "")
    return str(r["delivery"]).replace("_", " ") + more


def _counts(of: dict[str, int]) -> str:
    return ", ".join(f"{k} {n}" for k, n in of.items())


def table(reports: list[dict[str, Any]]) -> str:
    rows = [
        ("records", lambda r: r["records"]),
        ("faults struck", lambda r: f"{sum(r['faults'].values())} ({_counts(r['faults'])})"),
        ("besides", lambda r: _counts(r["besides"])),
        ("lost", lambda r: r["lost"]),
        ("duplicates, read_committed: scores + dead letters",
         lambda r: f"{r['duplicates']} + {r['dead_duplicates']} (allowed {r['duplicates_allowed']}; after SIGTERM {r['duplicates_after_sigterm']})"),
        ("order breaks / offsets backwards / hanging transactions", lambda r: f"{r['order_breaks']} / {r['backwards']} / {r['hanging_transactions']}"),
        ("dead letters: sent / lost / wrong", lambda r: f"{r['poison']} / {r['dead_lost']} / {r['dead_wrong']}"),
        ("fault to the next score of every partition, p50 / p95", lambda r: f"{r['recovery_p50_s']} / {r['recovery_p95_s']} s"),
        ("seed", lambda r: r["seed"]),
    ]  # fmt: skip
    lines = ["| | " + " | ".join(map(_title, reports)) + " |", "|---" * (1 + len(reports)) + "|"]
    return "\n".join(lines + [f"| {name} | " + " | ".join(str(of(r)) for r in reports) + " |" for name, of in rows])


def write(name: str, command: str, reports: list[dict[str, Any]]) -> Path:
    """bench/results/NAME-MACHINE.json (DECISIONS 25): the reports besides the keys that every bench has; tokens are
    not counted here."""
    runs = [results.Run(_title(r), r["records"], r["records"], 0, [1000 * r["seconds"]], None) for r in reports]
    return results.write_result(name, {"command": command, "date": datetime.date.today().isoformat(), "commit": _commit(), "reports": reports}, runs)


def _commit() -> str:
    git = lambda *args: subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True).stdout.strip()  # noqa: E731
    return git("rev-parse", "--short=12", "HEAD") + (" and changes" if git("status", "--porcelain", "-uno") else "")
