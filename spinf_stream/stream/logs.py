"""Logs: one line a message, text or JSON, on standard error. Never an article's text, at any level (DECISIONS 28).

A message about a record names it topic-partition-offset and carries it as `place`.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable

from prometheus_client import Counter as Metric

from spinf_stream.config import Settings

EXTRA = ("place", "reason")
# these print keys, values or whole requests at debug level
CHATTY = ("aiokafka", "asyncio", "redis", "urllib3", "httpx", "httpcore", "filelock", "huggingface_hub", "transformers")


class Patience(logging.Filter):
    """What the Kafka client says ten times a second while a state lasts, said once a minute; and what every first start on a
    fresh cluster brings (its group coordinator is not there yet), said only once it lasts."""

    LASTS = 10.0  # seconds
    AGAIN = 60.0
    PASSING = ("CoordinatorNotAvailable", "CoordinatorLoadInProgress", "NotCoordinator", "Marking the coordinator dead")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._since: dict[str, float] = {}  # message -> when its state began
        self._seen: dict[str, float] = {}  # when it was last wanted to be said
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """One answer a record, however many handlers ask."""
        if record.name.partition(".")[0] != "aiokafka":  # some of its messages come under the bare name
            return True
        if "passes" not in record.__dict__:
            record.__dict__["passes"] = self._passes(record.getMessage())
        return bool(record.__dict__["passes"])

    def _passes(self, message: str) -> bool:
        now = self._clock()
        if len(self._seen) >= 1000:  # messages name offsets: rather say one twice than keep them for ever
            for memory in (self._since, self._seen, self._said):
                memory.clear()
        if now - self._seen.get(message, -math.inf) > self.LASTS:  # it had ended
            self._since[message] = now
        self._seen[message] = now
        if any(word in message for word in self.PASSING) and now - self._since[message] < self.LASTS:
            return False
        if now - self._said.get(message, -math.inf) < self.AGAIN:
            return False
        self._said[message] = now
        return True


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
    patience = Patience()
    for h in (handler, TALLY):
        h.filters[:] = [patience]
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
