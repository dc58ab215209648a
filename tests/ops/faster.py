"""The same rules with every time divided by 60, and with it every threshold that is a time or a backlog of one."""

from __future__ import annotations

import re
from typing import Any

import yaml

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def faster(rules: str, by: int = 60) -> str:
    """`[5m]`, `for: 5m` and `> 600` (seconds of lag, records that wait) become a 60th; shares and counts stay."""
    document: dict[str, Any] = yaml.safe_load(rules)
    for group in document["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[(\d+)([smh])\]", lambda m: f"[{_short(m[1], m[2], by)}]", rule["expr"])
            rule["expr"] = re.sub(r"> (\d{3,})", lambda m: f"> {int(m[1]) / by:g}", rule["expr"])
            if "for" in rule:
                amount, unit = re.fullmatch(r"(\d+)([smh])", rule["for"]).groups()  # type: ignore[union-attr]
                rule["for"] = _short(amount, unit, by)
    return yaml.safe_dump(document, sort_keys=False)


def _short(amount: str, unit: str, by: int) -> str:
    return f"{1000 * int(amount) * _SECONDS[unit] // by}ms"
