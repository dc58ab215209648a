"""Logs: every warning has a counter."""

from __future__ import annotations

import logging

import pytest

from spinf_stream.config import Settings
from spinf_stream.metrics import Metrics
from spinf_stream.stream import logs


@pytest.fixture
def tally(monkeypatch: pytest.MonkeyPatch) -> logs.Tally:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    tally = logs.Tally()
    monkeypatch.setattr(logs, "TALLY", tally)
    logs.set_up(Settings(log_level="error"))
    return tally


def test_warnings_are_counted_by_who_said_them_from_the_first_on(tally: logs.Tally) -> None:
    def counted(name: str) -> float | None:
        return metrics.registry.get_sample_value("spinf_stream_warnings_total", {"logger": name})

    logging.getLogger("spinf_stream.engine.floors").error("before there is a page")
    metrics = Metrics(100)
    tally.into(metrics.warnings)
    assert counted("spinf_stream.engine.floors") == 1
    logging.getLogger("spinf_stream.engine.floors").error("again")
    logging.getLogger("spinf_stream.engine.floors").info("nothing")
    logging.getLogger("aiokafka.consumer.fetcher").error("theirs")
    assert counted("spinf_stream.engine.floors") == 2 and counted("aiokafka") == 1 and counted("aiokafka.consumer.fetcher") is None


def test_a_quiet_log_counts_all_the_same(tally: logs.Tally) -> None:
    metrics = Metrics(100)
    tally.into(metrics.warnings)
    logging.getLogger("spinf_stream.x").warning("not shown")
    assert metrics.registry.get_sample_value("spinf_stream_warnings_total", {"logger": "spinf_stream.x"}) == 1
