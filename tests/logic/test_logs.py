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


COORDINATOR = "Group Coordinator Request failed: [Error 15] GroupCoordinatorNotAvailableError"
TOPIC = "Topic articles.dlq not found in cluster metadata"


def said(patience: logs.Patience, message: str, name: str = "aiokafka.consumer.group_coordinator") -> bool:
    record = logging.LogRecord(name, logging.ERROR, "", 0, "%s", (message,), None)
    first, second = patience.filter(record), patience.filter(record)
    assert first is second, "both handlers get one answer"
    return first


def test_a_coordinator_that_is_not_there_yet_is_no_news_until_it_lasts() -> None:
    now = 0.0
    patience = logs.Patience(lambda: now)
    told = []
    for now in [i / 10 for i in range(250)]:
        if said(patience, COORDINATOR):
            told.append(now)
    assert told == [10.0], "a first start has it within seconds"
    now = 300.0  # another episode: patient again
    assert not said(patience, COORDINATOR)


@pytest.mark.parametrize("logger", ["aiokafka", "aiokafka.cluster"])  # both are the client's
def test_the_client_repeats_itself_once_a_minute(logger: str) -> None:
    now = 0.0
    patience = logs.Patience(lambda: now)
    told = []
    for now in [i / 10 for i in range(1300)]:
        if said(patience, TOPIC, logger):
            told.append(now)
    assert told == [0.0, 60.0, 120.0]
    assert said(patience, TOPIC.replace("dlq", "other"), logger), "another message is another state"
    assert said(patience, TOPIC, "spinf_stream.stream.worker") and said(patience, TOPIC, "spinf_stream.stream.worker"), "ours are never held"


def test_what_is_held_back_is_not_counted_either(tally: logs.Tally) -> None:
    metrics = Metrics(100)
    tally.into(metrics.warnings)
    for _ in range(5):
        logging.getLogger("aiokafka.cluster").error(TOPIC)
        logging.getLogger("aiokafka.consumer.group_coordinator").error(COORDINATOR)
    assert metrics.registry.get_sample_value("spinf_stream_warnings_total", {"logger": "aiokafka"}) == 1


def test_messages_that_all_differ_do_not_fill_the_memory() -> None:
    patience = logs.Patience(lambda: 0.0)
    assert all(said(patience, f"offset {i}") for i in range(5_000))
    assert max(len(patience._said), len(patience._seen), len(patience._since)) <= 1_000
