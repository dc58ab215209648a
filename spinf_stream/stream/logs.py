"""Logs: one line a message, text or JSON, on standard error. Never an article's text, at any level (DECISIONS 28).

A message about a record names it topic-partition-offset and carries it as `place`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter

from prometheus_client import Counter as Metric

from spinf_stream.config import Settings

EXTRA = ("place", "reason")
# these print keys, values or whole requests at debug level
CHATTY = ("aiokafka", "asyncio", "redis", "urllib3", "httpx", "httpcore", "filelock", "huggingface_hub", "transformers")


class Tally(logging.Handler):
    """Counts warnings by module: a counter for each that there is, those before the metrics page among them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._before: Counter[str] = Counter()
        self._metric: Metric | None = None

    def emit(self, record: logging.LogRecord) -> None:
        name = record.name if record.name.startswith("spinf_stream.") else record.name.partition(".")[0]
        if self._metric is None:
            self._before[name] += 1
        else:
            self._metric.labels(name).inc()

    def into(self, metric: Metric) -> None:
        """From now on; what was counted before is added."""
        self.acquire()
        try:
            self._metric = metric
            for name, n in self._before.items():
                metric.labels(name).inc(n)
            self._before.clear()
        finally:
            self.release()


TALLY = Tally()


def set_up(s: Settings) -> None:
    """Of the whole process. `auto` = text on a terminal, JSON elsewhere."""
    json_lines = s.log_format == "json" or (s.log_format == "auto" and not sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json_lines else Text())
    root = logging.getLogger()
    root.handlers[:] = [handler, TALLY]
    handler.setLevel(s.log_level.upper())
    root.setLevel(min(handler.level, TALLY.level))
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


class Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return _no_text_in_trace(record, super().format(record))


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        out = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        out |= {name: getattr(record, name) for name in EXTRA if hasattr(record, name)}
        if record.exc_info:
            out["trace"] = _no_text_in_trace(record, self.formatException(record.exc_info))
        return json.dumps(out, ensure_ascii=False)


def _no_text_in_trace(record: logging.LogRecord, text: str) -> str:
    """A trace keeps its lines of code and loses the exceptions' own words, which may quote an article."""
    if not record.exc_info:
        return text
    error = record.exc_info[1]
    while error is not None:
        words = str(error)
        if words:
            text = text.replace(words, "(message withheld)")
        error = error.__cause__ or error.__context__
    return text
