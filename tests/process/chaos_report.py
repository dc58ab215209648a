"""What a chaos run promises, and its figures as one line of JSON and as the table of the README."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from audit import Verdict
from faults import Faults


def report(args: argparse.Namespace, delivery: str, redis: bool, in_flight: int, records: int, poison: int, faults: Faults,
           v: Verdict, hanging: int, lag: int, seconds: float) -> dict[str, Any]:  # fmt: skip
    """`broken` names the promises that were not kept. in_flight: what a sudden death may repeat, at least once."""
    bound = 0 if delivery == "exactly_once" else in_flight * sum(faults.struck[k] for k in ("kill", "zombie", "network"))
    times = sorted(faults.recoveries)
    broken = [
        name
        for name, bad in (
            ("lost", v.lost), ("duplicates", v.duplicates > bound), ("duplicates after SIGTERM", faults.after_sigterm),
            ("order", v.order_breaks), ("offsets backwards", v.backwards), ("hanging transactions", hanging), ("lag", lag),
            ("dead letters lost", v.dead_lost), ("dead letters wrong", v.dead_wrong), ("dead letters twice", v.dead_duplicates > bound),
        )
        if bad
    ]  # fmt: skip
    return {
        "delivery": delivery, "redis": redis, "equal_texts": args.equal, "seed": args.seed,
        "records": records, "faults": dict(sorted(faults.struck.items())),
        "duplicates_allowed": bound, "duplicates_after_sigterm": faults.after_sigterm, **v._asdict(), "hanging_transactions": hanging,
        "lag": lag, "poison": poison, "recovery_p50_s": round(statistics.median(times), 2),
        "recovery_p95_s": round(times[min(len(times) - 1, int(0.95 * len(times)))], 2), "seconds": round(seconds), "broken": broken,
    }  # fmt: skip


def table(reports: list[dict[str, Any]]) -> str:
    rows = [
        ("records", lambda r: r["records"]),
        ("faults struck", lambda r: f"{sum(r['faults'].values())} ({', '.join(f'{k} {n}' for k, n in r['faults'].items())})"),
        ("lost", lambda r: r["lost"]),
        ("duplicates, read_committed", lambda r: f"{r['duplicates']} (allowed {r['duplicates_allowed']}; after SIGTERM {r['duplicates_after_sigterm']})"),
        ("order breaks / offsets backwards / hanging transactions", lambda r: f"{r['order_breaks']} / {r['backwards']} / {r['hanging_transactions']}"),
        ("dead letters: sent / lost / twice / wrong", lambda r: f"{r['poison']} / {r['dead_lost']} / {r['dead_duplicates']} / {r['dead_wrong']}"),
        ("fault to the next score of every partition, p50 / p95", lambda r: f"{r['recovery_p50_s']} / {r['recovery_p95_s']} s"),
    ]
    head = [f"{r['delivery'].replace('_', ' ')}{'' if r['redis'] else ', no Redis'}{', equal texts' if r['equal_texts'] else ''}" for r in reports]
    lines = ["| | " + " | ".join(head) + " |", "|---" * (1 + len(reports)) + "|"]
    return "\n".join(lines + [f"| {name} | " + " | ".join(str(of(r)) for r in reports) + " |" for name, of in rows])
