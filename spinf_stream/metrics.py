"""Every metric once, with its unit and meaning. Names begin with spinf_stream_, base units, ratios 0-1.

A registry of its own for each worker: nothing is global. Label values that are known are made at once, so that rates
begin at 0; those of a partition come with its assignment and go with it. Never a label of an id, a key or a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from spinf_stream import __version__
from spinf_stream.engine.seam import HOWS
from spinf_stream.records import Outcome, Reason

PREFIX = "spinf_stream_"
STAGES = ("decode", "dedup", "window_wait", "queue", "forward", "slots", "publish", "commit")
STEPS = ("consume", "score", "publish", "commit")
CAUSES = ("full", "timeout", "revoke", "shutdown", "bytes")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
BYTES = (1024, 4096, 16384, 65536, 262144, 393216, 524288, 786432, 917504, 1048576, 4194304)
COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
FILL = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)

Labels = dict[str, Sequence[str]]


class Metrics:
    """`budget` sets the buckets of tokens; the rest is filled in by the worker."""

    def __init__(self, budget: int, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, CPU, descriptors
        tokens = sorted({max(1, budget * i // 16) for i in range(1, 16)} | {max(1, budget - 1), budget})
        c, g, h = self._counter, self._gauge, self._histogram

        # records
        self.consumed = c("records_consumed_total", "records read", ("topic", "partition"))
        self.consumed_bytes = c("consumed_bytes_total", "bytes of keys, values and headers read", ("topic", "partition"))
        self.records = c("records_total", "records by their one outcome, counted when it is final", outcome=get_args(Outcome))
        self.dead_letters = c("dead_letters_total", "dead letters written, by reason", reason=get_args(Reason))
        self.questions = c("questions_scored_total", "prompts answered, by pack; '' = the question file", ("pack",))
        self.discarded = c("records_discarded_total", "records in flight dropped with their epoch; they are read again", reason=("revoked", "lost", "aborted", "shutdown"))
        self.discarded_scored = c("records_discarded_scored_total", "of those, records that had been scored already", reason=("revoked", "lost", "aborted", "shutdown"))
        self.published_bytes = h("published_bytes", "bytes of one output record", BYTES)
        self.corrupt = c("corrupt_batches_total", "record batches that could not be read, however often it was tried", result=("skipped", "stopped"))
        self.unreadable = c("fetch_errors_total", "fetches that raised: a broken batch, a missing right, a broker away")

        # batches and passes
        self.tokens = c("tokens_total", "tokens of passes; shared_prefix = content tokens that questions reused instead of reading them again", kind=("real", "padding", "shared_prefix"))
        self.batch_tokens = h("batch_tokens", "tokens of one window", tokens)
        self.batch_articles = h("batch_articles", "distinct texts of one window", COUNTS)
        self.batch_fill = h("batch_fill_ratio", "tokens of a window over the budget", FILL)
        self.batch_closed = c("batch_closed_total", "windows by what closed them", cause=CAUSES)
        self.passes = c("engine_passes_total", "passes by result", result=("ok", "oom", "fault", "nonfinite", "error", "fatal"))
        self.oom = c("engine_oom_total", "passes that did not fit into memory")
        self.nonfinite = c("nonfinite_scores_total", "articles whose numbers were not finite")
        self.budget = g("token_budget_effective", "tokens of one pass, after what out-of-memory errors taught")
        self.budget.set(budget)
        self.engine_busy = g("engine_busy_ratio", "device time over wall time since the first pass")
        self.engine_seconds = c("engine_busy_seconds_total", "device time of passes; 1 minus its rate is the idle share")
        self.device_used = g("device_memory_used_bytes", "memory of the GPU in use, by every process; absent on a CPU", ("device",))
        self.device_total = g("device_memory_total_bytes", "memory that the GPU has", ("device",))
        self.device_peak = g("device_memory_peak_bytes", "the most that tensors of this process have taken", ("device",))
        self.device_watts = g("device_power_watts", "what the GPU draws; absent without NVML's Python binding", ("device",))
        self.slot_tokens = c("slot_tokens_total", "rows decoded for slots, their templates included, by how; not among tokens_total", how=HOWS)
        self.slot_seconds = c("slot_seconds_total", "device time of decode steps, also counted in engine_busy_seconds_total")
        self.floors = g("floors", "prompts with a floor, by whether the cache had it at the start", source=("cached", "computed"))

        # time
        self.stage = h("stage_seconds", "time of one record or pass in a stage", SECONDS, stage=STAGES)
        self.end_to_end = h("end_to_end_seconds", "record timestamp to acknowledged output; future timestamps are not counted", SECONDS)
        self.from_future = c("records_from_future_total", "records with a timestamp later than this machine's clock")
        self.loop_stall = h("event_loop_stall_seconds", "how late the event loop woke up a sleeper; long stalls lose the session", (*QUICK, 2.5, 5, 10, 30))
        self.warnings = c("warnings_total", "log lines at warning or above, start-up's too, by the module that said them", ("logger",))
        self.progress = g("last_progress_timestamp_seconds", "unix time of the latest success", stage=STEPS)

        # flow
        self.lag = g("lag_records", "last stable offset minus the finished prefix", ("topic", "partition"))
        self.lag_seconds = g("lag_seconds", "age of the oldest unfinished record read; 0 when none", ("topic", "partition"))
        self.gap = g("offset_gap_records", "records read past the finished prefix", ("topic", "partition"))
        self.epoch = g("partition_epoch", "epoch of the partition in this worker", ("topic", "partition"))
        self.committed = g("committed_offset", "offset committed last, or where reading began", ("topic", "partition"))
        self.inflight_records = g("inflight_records", "records read and not yet published")
        self.inflight_tokens = g("inflight_tokens", "tokens waiting and in passes")
        self.inflight_bytes = g("inflight_bytes", "bytes of records read and not yet published, of their outputs and answers, and of marks on their way to Redis")
        self.partitions = g("assigned_partitions", "partitions open in this worker")
        self.paused = g("paused", "1 while reading is paused by backpressure")
        self.paused_seconds = c("paused_seconds_total", "seconds of that")
        self.blocked = g("publish_blocked", "partitions that cannot publish now and try again: refused, aborted, or not acknowledged in time")

        # group, commits, producers
        self.rebalances = c("rebalances_total", "ends of an assignment", result=("drained", "deadline", "lost"))
        self.drain_seconds = h("revoke_drain_seconds", "time from revocation to the answer", SECONDS)
        self.commits = c("commits_total", "offset commits outside transactions", result=("ok", "rebalanced", "failed"))
        self.transactions = c("transactions_total", "transactions", result=("committed", "failed"))
        self.publish_failures = c("publish_failures_total", "publishing attempts that failed, by kind; late = not acknowledged in time, and still under way", kind=("too_large", "timestamp", "other", "away", "late"))
        self.producer_resets = c("producer_resets_total", "producers thrown away and made anew", reason=("failed", "assigned"))

        # dedup
        self.dedup = c("dedup_requests_total", "look-ups; skipped = not asked, after an error", result=("hit", "miss", "mismatch", "error", "skipped"))
        self.dedup_seconds = h("dedup_seconds", "time of one request to Redis", QUICK)
        self.redis_errors = c("redis_errors_total", "requests to Redis that failed", kind=("read", "write"))
        self.marks = c("done_marks_total", "done marks", result=("written", "error", "skipped"))
        self.attempts_refused = c("attempts_refused_total", "look-ups of attempts in Redis that were not all signed with dedup_secret, or written twice")
        self.shared = c("texts_in_flight_shared_total", "records that joined the pass of an equal text")
        self.redis_up = g("redis_up", "1 when the last request to Redis was answered")

        # what it depends on, and what its answers look like
        self.dependency_up = g("dependency_up", "1 when it answered the last probe; only those in use have a series", ("dependency",))
        self.drift = g("score_drift_psi", "population-stability index of the latest scores against the pack's calibration traffic or the recorded baseline", ("pack", "context", "category"))

        self.reloads = c("reloads_total", "SIGHUPs by what came of them", result=("changed", "unchanged", "failed"))
        self.reload_kept = c("reload_kept_total", "packs and question files that a reload could not load; what was asked before stays")
        self.spans = c("spans_total", "OpenTelemetry spans; dropped = the queue was full; none without an endpoint", result=("exported", "failed", "dropped"))

        self.build = g("build_info", "always 1; says what runs here", ("version", "fingerprint", "questions", "engine", "device"))

    def info(self, fingerprint: str, questions: str, engine: str, device: str) -> None:
        """Of what runs from now on."""
        self.build.clear()
        self.build.labels(__version__, fingerprint, questions, engine, device).set(1)

    def of_partition(self, topic: str, partition: int) -> None:
        """Make the series of a partition that was assigned."""
        for metric in (*self._of_partition, self.consumed, self.consumed_bytes):
            if metric is not self.lag:  # a lag of 0 is good news that nobody has brought yet
                metric.labels(topic, str(partition))

    def forget_partition(self, topic: str, partition: int) -> None:
        """A partition that is somebody else's has no lag here; what was counted stays."""
        for metric in self._of_partition:
            try:
                metric.remove(topic, str(partition))
            except KeyError:
                pass

    def text(self) -> bytes:
        return generate_latest(self.registry)

    @property
    def _of_partition(self) -> tuple[Gauge, ...]:
        return (self.lag, self.lag_seconds, self.gap, self.epoch, self.committed)

    def _counter(self, name: str, help: str, labels: Iterable[str] = (), **values: Sequence[str]) -> Counter:
        made = Counter(PREFIX + name, help, (*labels, *values), registry=self.registry)
        _premake(made, values)
        return made

    def _gauge(self, name: str, help: str, labels: Iterable[str] = (), **values: Sequence[str]) -> Gauge:
        made = Gauge(PREFIX + name, help, (*labels, *values), registry=self.registry)
        _premake(made, values)
        return made

    def _histogram(self, name: str, help: str, buckets: Sequence[float], **values: Sequence[str]) -> Histogram:
        made = Histogram(PREFIX + name, help, tuple(values), registry=self.registry, buckets=buckets)
        _premake(made, values)
        return made


def _premake(metric: Counter | Gauge | Histogram, values: Labels) -> None:
    for of_one in values.values():
        for value in of_one:
            metric.labels(value)
