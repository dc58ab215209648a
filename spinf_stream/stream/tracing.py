"""OpenTelemetry spans, where OTEL_EXPORTER_OTLP_ENDPOINT says where to; elsewhere nothing of it is imported.

    passes, publisher --a small tuple--> bounded queue --a thread--> spans --OTLP over HTTP--> collector

An article's span goes from its reading to its acknowledgement, with an event a stage and links to the producer's
`traceparent` and to its pass. It names the record by topic, partition and offset, never by id, key or text. A full queue
drops and a failing exporter is counted: scoring waits for neither. The OTEL_* variables of the SDK apply (sampler,
headers, resource, timeout).
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from spinf_stream import __version__
from spinf_stream.config import Settings
from spinf_stream.engine.seam import PassOutput
from spinf_stream.errors import UsageError
from spinf_stream.metrics import Metrics
from spinf_stream.stream.flow import Settled, Work

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
QUEUED = 16_384  # facts held while the collector is slow
BATCH = 512  # spans a request
GATHER_SECONDS = 0.5
CLOSE_SECONDS = 2.0  # given to what is queued at the end
_EXTRA = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


class Pass:
    """The thread fills in `context` when it makes the span; articles of the pass come after it in the queue."""

    def __init__(self, began: float, ended: float, articles: int, output: PassOutput) -> None:
        self.began, self.ended = began, ended  # monotonic
        self.articles = articles
        self.tokens, self.padding = output.tokens, output.padding
        self.device_seconds = output.busy_seconds + output.slot_seconds
        self.context: Any = None


class Published(NamedTuple):
    """What a span says of a record."""

    topic: str
    partition: int
    offset: int
    parents: tuple[bytes, ...]  # traceparent headers
    outcome: str
    reason: str | None
    tokens: int | None  # of the content
    events: tuple[tuple[str, float], ...]  # what happened, and when (monotonic)
    through: Pass | None
    began: float
    ended: float


def wanted() -> bool:
    return any(os.environ.get(name) for name in ENDPOINTS) and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"


def check() -> None:
    """Raises UsageError when spans are wanted and cannot be sent."""
    if not wanted():
        return
    import importlib

    try:
        for module in _EXTRA:
            importlib.import_module(module)
    except ImportError:
        name = next(n for n in ENDPOINTS if os.environ.get(n))
        raise UsageError(f"{name} is set and OpenTelemetry is not installed: pip install 'spinf-stream[otel]', or unset it") from None
    protocol = next((os.environ[n] for n in PROTOCOLS if os.environ.get(n)), "http/protobuf")
    if protocol != "http/protobuf":
        raise UsageError(f"spans are sent by http/protobuf (port 4318), not by {protocol}: set {PROTOCOLS[0]}=http/protobuf")


def opened(s: Settings, metrics: Metrics) -> Tracing | None:
    """None where no endpoint is set. Raises UsageError."""
    check()
    return Tracing(s, metrics) if wanted() else None


class Tracing:
    """`passed` and `published` are called in the event loop and only put into the queue."""

    def __init__(self, s: Settings, metrics: Metrics) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        class Ended(SpanProcessor):
            def __init__(self) -> None:
                self.spans: list[Any] = []

            def on_end(self, span: Any) -> None:
                self.spans.append(span)

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # a line a failed request; ours says it once
        resource = Resource.create({"service.version": __version__})
        if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "spinf-stream"}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._ended = Ended()
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("spinf_stream", __version__)
        self._exporter = OTLPSpanExporter()
        self._group = s.group
        self._counted = metrics.spans
        self._failing = False
        self._queue: queue.Queue[Pass | Published] = queue.Queue(QUEUED)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def passed(self, works: Sequence[Work], began: float, output: PassOutput) -> None:
        facts = Pass(began, time.monotonic(), len(works), output)
        for work in works:
            work.through = facts
        self._put(facts)

    def published(self, unit: Sequence[Settled], began: float) -> None:
        """`began` (monotonic) is when the publishing of the unit did."""
        ended = time.monotonic()
        for s in unit:
            r, item, work = s.record, s.item, s.item.work if s.item else None
            events: list[tuple[str, float]] = []
            if work is not None:
                events.append(("batched", max(item.arrived, work.arrived)))  # type: ignore[union-attr]
            through = work.through if work is not None and isinstance(work.through, Pass) else None
            if through is not None:
                events += [("pass begun", through.began), ("pass ended", through.ended)]
            events.append(("publishing", began))
            start = min([item.arrived if item else began, *(at for _, at in events)])
            parents = tuple(v for k, v in r.headers if k == "traceparent" and v is not None)
            tokens = work.prepared.content_tokens if work is not None else None
            self._put(Published(r.topic, r.partition, r.offset, parents, s.outcome, s.reason, tokens, tuple(events), through, start, ended))

    def close(self) -> None:
        """Send what is queued, for a moment."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        self._exporter.shutdown()  # a request that is being tried again ends
        self._thread.join(0.5)
        self._counted.labels("dropped").inc(self._queue.qsize())

    def _put(self, facts: Pass | Published) -> None:
        try:
            self._queue.put_nowait(facts)
        except queue.Full:
            self._counted.labels("dropped").inc()

    def _run(self) -> None:
        end = float("inf")
        while time.monotonic() < end:
            if self._queue.qsize() < BATCH:
                self._closing.wait(GATHER_SECONDS)
            if self._closing.is_set():
                end = min(end, time.monotonic() + CLOSE_SECONDS)
                if self._queue.empty():
                    return
            for _ in range(min(BATCH, self._queue.qsize())):
                facts = self._queue.get_nowait()
                try:
                    self._pass(facts) if isinstance(facts, Pass) else self._article(facts)
                except Exception as e:
                    self._counted.labels("failed").inc()
                    log.warning("a span could not be made: %s", type(e).__name__)
            spans, self._ended.spans = self._ended.spans, []
            if spans:
                self._export(spans)

    def _export(self, spans: list[Any]) -> None:
        try:
            ok = self._exporter.export(spans).name == "SUCCESS"
        except Exception as e:  # the exporter catches what it knows
            log.debug("exporting spans: %s", type(e).__name__)
            ok = False
        self._counted.labels("exported" if ok else "failed").inc(len(spans))
        if ok is self._failing:
            self._failing = not ok
            log.warning("spans %s", "are exported again" if ok else "cannot be exported: they are counted and left out, scoring goes on")

    def _pass(self, p: Pass) -> None:
        attributes = {"spinf_stream.articles": p.articles, "spinf_stream.tokens": p.tokens, "spinf_stream.padding": p.padding, "spinf_stream.device_seconds": p.device_seconds}
        shift = _shift()
        span = self._tracer.start_span("pass", attributes=attributes, start_time=int(p.began * 1e9) + shift)
        p.context = span.get_span_context()
        span.end(int(p.ended * 1e9) + shift)

    def _article(self, a: Published) -> None:
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode

        links = [Link(c, {"spinf_stream.link": "producer"}) for c in [_producer(a.parents)] if c is not None]
        if a.through is not None and a.through.context is not None:
            links.append(Link(a.through.context, {"spinf_stream.link": "pass"}))
        attributes: dict[str, Any] = {
            "messaging.system": "kafka", "messaging.operation.type": "process", "messaging.operation.name": "score",
            "messaging.destination.name": a.topic, "messaging.destination.partition.id": str(a.partition),
            "messaging.kafka.offset": a.offset, "messaging.consumer.group.name": self._group, "spinf_stream.outcome": a.outcome,
        }  # fmt: skip
        attributes |= {} if a.tokens is None else {"spinf_stream.content_tokens": a.tokens}
        shift = _shift()
        span = self._tracer.start_span(
            f"score {a.topic}", kind=SpanKind.CONSUMER, attributes=attributes, links=links, start_time=int(a.began * 1e9) + shift
        )
        for name, at in a.events:
            span.add_event(name, timestamp=int(at * 1e9) + shift)
        if a.reason is not None:
            span.set_attribute("error.type", a.reason)
            span.set_status(Status(StatusCode.ERROR))
        span.end(int(a.ended * 1e9) + shift)


def _producer(parents: Sequence[bytes]) -> Any:
    """The span context that the record's headers name; None where they are malformed or contradict each other."""
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if len(parents) != 1:
        return None
    carrier = {"traceparent": parents[0].decode("ascii", "replace")}
    context = get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    return context if context.is_valid else None


def _shift() -> int:
    """From nanoseconds of the monotonic clock to those since 1970."""
    return time.time_ns() - time.monotonic_ns()
