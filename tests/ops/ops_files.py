"""The files of compose/ as the tests read them: rules, board and services parsed once, expressions with their place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from spinf_stream.metrics import Metrics

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
RULES = COMPOSE / "prometheus" / "rules.yml"
BOARD = COMPOSE / "grafana" / "dashboards" / "spinf-stream.json"
# what Grafana puts in; a test puts in what a reader of the board would see first
VARIABLES = {"$job": "spinf-stream", "$topic": ".*", "$slo": "60.0", "$__rate_interval": "1m", "$__range": "1h"}
_WORDS = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class Query(NamedTuple):
    where: str  # "panel TITLE" or "alert NAME"
    expr: str


@cache
def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [r for r in rules() if "alert" in r]


@cache
def board() -> dict[str, Any]:
    return dict(json.loads(BOARD.read_text("utf-8")))


def panels() -> list[dict[str, Any]]:
    return [p for p in board()["panels"] if p["type"] != "row"]


def filled(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def queries() -> Iterator[Query]:
    for p in panels():
        for t in p["targets"]:
            yield Query(f"panel {p['title']}", filled(t["expr"]))
    for a in board()["annotations"]["list"]:
        if "expr" in a:
            yield Query(f"annotation {a['name']}", filled(a["expr"]))
    for r in rules():
        yield Query(f"alert {r['alert']}" if "alert" in r else f"record {r['record']}", r["expr"])


@cache
def services() -> dict[str, Any]:
    return dict(yaml.safe_load((COMPOSE / "compose.yaml").read_text("utf-8"))["services"])


@cache
def exported() -> frozenset[str]:
    """The series names that a worker's /metrics can have: of a real registry, with every label made."""
    m = Metrics(2048)
    m.of_partition("articles", 0)
    m.lag.labels("articles", "0")
    m.questions.labels("")
    m.warnings.labels("spinf_stream.stream.worker")
    m.dependency_up.labels("kafka")
    for gauge in (m.device_used, m.device_total, m.device_peak, m.device_watts):
        gauge.labels("cuda:0")
    m.drift.labels("pack", "plain", "category")
    m.info("fp_0", "0", "Engine", "cpu")
    return frozenset(sample.name for metric in m.registry.collect() for sample in metric.samples)


def metrics_in(expr: str) -> set[str]:
    """The metric names of an expression: its words with our prefix, or of the client's process collector."""
    bare = re.sub(r'"[^"]*"', '""', expr)
    bare = re.sub(r"(by|on|ignoring|without)\s*\([^)]*\)", "", bare)
    return {w for w in _WORDS.findall(bare) if w.startswith(("spinf_stream", "process_")) or w == "up"}
