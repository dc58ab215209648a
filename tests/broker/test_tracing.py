"""Spans of a real worker, as a collector receives them; and a collector that is ill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kafka_io import Rec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from stage import Stage, Topics

pytestmark = pytest.mark.kafka

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """OTLP over HTTP, one port; `status` is what it answers, after `seconds`."""

    def __init__(self, status: int = 200, seconds: float = 0.0) -> None:
        self.bodies: list[bytes] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                outer.paths.add(self.path)
                time.sleep(seconds)
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.paths: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> tuple[list[Any], dict[str, Any]]:
        """All spans, and the resource's attributes."""
        found, resource = [], {}
        for body in self.bodies:
            for of in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = attributes(of.resource)
                found += [s for scope in of.scope_spans for s in scope.spans]
        return found, resource


def attributes(of: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in of.attributes}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Collector]:
    made = Collector(*getattr(request, "param", ()))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    yield made
    made.stop()


def article(text: str, *headers: tuple[str, bytes | None], id: str = "secret-id") -> Rec:
    return Rec(json.dumps({"id": id, "text": text}).encode(), b"secret-key", headers, 0)


def traceparent(trace: str, flags: str = "01") -> tuple[str, bytes]:
    return "traceparent", f"00-{trace}-{SPAN}-{flags}".encode()


RECORDS = [
    article("secretword alpha", traceparent(TRACE)),
    article("secretword beta", traceparent("1" + TRACE[1:])),
    article("secretword gamma", ("traceparent", b"secretword")),
    article("secretword delta", traceparent(TRACE), traceparent("2" + TRACE[1:])),
    article("secretword alpha"),  # the text of the first
    Rec(b"{secretword", b"secret-key", (traceparent(TRACE),), 0),
    Rec(None, b"secret-key", (), 0),
]


def test_each_record_has_one_span_that_names_its_place_and_no_text(kafka: str, topics: Any, collector: Collector) -> None:
    t = Topics(kafka, topics)

    async def main() -> Stage:
        await t.fill(RECORDS)
        async with Stage(t.settings(), seconds=0.05) as w:
            await w.until(lambda: w.value("committed_offset") == len(RECORDS))
        return w

    began = time.time_ns()
    w = asyncio.run(main())
    ended = time.time_ns()
    spans, resource = collector.spans()
    assert collector.paths == {"/v1/traces"} and resource["service.name"] == "spinf-stream"
    records = {attributes(s)["messaging.kafka.offset"]: s for s in spans if s.name == f"score {t.source}"}
    passes = {s.span_id: s for s in spans if s.name == "pass"}
    assert sorted(records) == list(range(len(RECORDS))) and len(records) + len(passes) == len(spans)
    for offset, s in records.items():
        said = attributes(s)
        place = ("messaging.system", "messaging.destination.name", "messaging.destination.partition.id", "messaging.consumer.group.name")
        assert [said[name] for name in place] == ["kafka", t.source, "0", t.group]
        times = [s.start_time_unix_nano, *(e.time_unix_nano for e in s.events), s.end_time_unix_nano]
        assert times == sorted(times) and began < times[0] and times[-1] < ended, (offset, times)

    outcomes = [attributes(records[i])["spinf_stream.outcome"] for i in range(len(RECORDS))]
    assert outcomes == ["scored"] * 4 + ["duplicate", "dead", "tombstone"]
    assert attributes(records[5])["error.type"] == "not_json" and records[5].status.code == 2 and records[0].status.code == 0

    def links(i: int, kind: str) -> list[Any]:
        return [link for link in records[i].links if attributes(link)["spinf_stream.link"] == kind]

    named = [[(link.trace_id.hex(), link.span_id.hex()) for link in links(i, "producer")] for i in range(len(RECORDS))]
    assert named == [[(TRACE, SPAN)], [("1" + TRACE[1:], SPAN)], [], [], [], [(TRACE, SPAN)], []], "its own, malformed and doubled ones none"
    through = [[link.span_id for link in links(i, "pass")] for i in range(len(RECORDS))]
    assert all(len(ids) == (i < 5) and set(ids) <= passes.keys() for i, ids in enumerate(through)) and through[4] == through[0]
    for i in range(5):
        assert {"batched", "pass begun", "pass ended", "publishing"} == {e.name for e in records[i].events}

    assert sum(attributes(p)["spinf_stream.articles"] for p in passes.values()) == 4, "equal texts share a pass"
    assert sum(attributes(p)["spinf_stream.tokens"] for p in passes.values()) == w.value("tokens_total", kind="real")
    assert w.value("spans_total", result="exported") == len(spans)
    assert w.value("spans_total") == len(spans)
    assert not any(word in body for body in collector.bodies for word in (b"secretword", b"secret-id", b"secret-key"))


@pytest.mark.parametrize("collector", [(503, 0.0), (200, 60.0)], ids=["refuses", "does not answer"], indirect=True)
def test_a_collector_that_is_ill_holds_nothing_up(
    kafka: str, topics: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    t = Topics(kafka, topics)

    async def main() -> tuple[Stage, float]:
        await t.fill([article(f"text {i}") for i in range(600)])
        async with Stage(t.settings()) as w:
            await w.until(lambda: w.value("committed_offset") == 600)
            await w.until(lambda: w.value("spans_total", result="failed") > 0)
            began = time.monotonic()
        return w, time.monotonic() - began

    w, leaving = asyncio.run(main())
    assert w.code == 0 and leaving < 6
    passes = w.value("engine_passes_total", result="ok")
    assert w.value("spans_total", result="exported") == 0
    assert w.value("spans_total", result="failed") + w.value("spans_total", result="dropped") == 600 + passes
    assert caplog.text.count("spans cannot be exported") == 1


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """In a process where OpenTelemetry cannot be imported, as without the extra."""
    blocked = "import sys; sys.modules['opentelemetry'] = None\n"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    return subprocess.run([sys.executable, "-c", blocked + code], env={**clean, **env}, capture_output=True, text=True, timeout=60)


WORKER = "from spinf_stream.cli import main; sys.exit(main(['worker']))"


def test_without_the_extra_an_endpoint_is_one_clear_line() -> None:
    done = run(WORKER, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 2
    assert done.stderr == (
        "spinf-stream worker: OTEL_EXPORTER_OTLP_ENDPOINT is set and OpenTelemetry is not installed: "
        "pip install 'spinf-stream[otel]', or unset it\n"
    )


def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from spinf_stream.cli import main

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert main(["worker"]) == 2
    assert "not by grpc: set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf" in capsys.readouterr().err


def test_without_an_endpoint_nothing_is_imported() -> None:
    code = (
        "from spinf_stream.config import Settings; from spinf_stream.metrics import Metrics\n"
        "from spinf_stream.stream import tracing, worker\n"
        "assert tracing.opened(Settings(), Metrics(2048)) is None\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry') and sys.modules[m]])"
    )
    for env in ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}):
        done = run(code, **env)
        assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
