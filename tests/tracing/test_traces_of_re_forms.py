"""One trace per re-form, with its phases on every worker, as OpenTelemetry's own SDK exports it."""

from __future__ import annotations

import gzip
import http.server
import os
import threading

import pytest

from edl_allreduce.core import event_data, events
from edl_allreduce.core.status import EventRecord
from edl_allreduce.core.traces import Traces
from edl_allreduce.master.tracing import Tracing

FIRST = events.RingPlanned(1, (0, 1, 2), True, "3 workers are ready", "first")
LOSS = events.RingPlanned(2, (0, 2), True, "worker 1 is gone", "loss")


def reformed(worker_id: int, generation: int = 2) -> events.RingReformed:
    return events.RingReformed(worker_id, generation, 2, 0.01, 0.02, 0.03, 0.04, 0.05 * (worker_id + 1))


def records(*told: events.Event) -> list[EventRecord]:
    return [
        EventRecord(number, 1000.0 + number, event.kind, event.text(), event_data.to_data(event))
        for number, event in enumerate(told)
    ]


def spans(*told: events.Event):
    traces = Traces()
    return [span for record in records(*told) for span in traces.take(record)]


def test_a_re_form_is_known_when_all_survivors_told_their_pause():
    assert not spans(FIRST, LOSS, reformed(0))
    (trace,) = spans(FIRST, LOSS, reformed(0), reformed(2))
    assert [worker.name for worker in trace.parts] == ["worker 0", "worker 2"]
    assert trace.about["elasticdl.cause"] == "loss" and trace.about["elasticdl.generation"] == 2
    for worker in trace.parts:
        assert [part.name for part in worker.parts] == ["notice", "plan", "join", "sync", "first step"]
        assert worker.parts[0].began == worker.began and worker.parts[-1].ended == pytest.approx(worker.ended)
        for one, following in zip(worker.parts, worker.parts[1:], strict=False):
            assert one.ended == following.began, "phases follow each other without a gap"
    assert trace.began == min(w.began for w in trace.parts) and trace.ended == max(
        w.ended for w in trace.parts
    )


def test_who_is_lost_on_the_way_is_not_waited_for():
    again = events.RingPlanned(3, (0,), True, "worker 2 is gone", "loss")
    first, second = spans(FIRST, LOSS, reformed(0), again, reformed(0, generation=3))
    assert [len(first.parts), len(second.parts)] == [1, 1]


def test_a_first_ring_is_no_re_form():
    assert not spans(FIRST, reformed(0, generation=1), events.JobEnded("Succeeded", "done"))


def test_the_sdk_exports_a_tree():
    exporters = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="the extra otel is not installed"
    )
    exporter = exporters.InMemorySpanExporter()
    tracing = Tracing("digits", {}, exporter)
    for record in records(FIRST, LOSS, reformed(0), reformed(2)):
        tracing.told(record)
    tracing._provider.force_flush()
    found = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in found}
    (root,) = [span for span in found if span.parent is None]
    assert root.name == "re-form 2" and root.resource.attributes["elasticdl.job"] == "digits"
    assert len({span.context.trace_id for span in found}) == 1, "one trace"
    workers = [
        span for span in found if span.parent is not None and span.parent.span_id == root.context.span_id
    ]
    assert sorted(span.name for span in workers) == ["worker 0", "worker 2"]
    joins = [span for span in found if span.name == "join"]
    assert [by_id[span.parent.span_id].name for span in joins] == ["worker 0", "worker 2"]
    assert all(span.end_time - span.start_time == pytest.approx(0.03e9, rel=1e-3) for span in joins)
    tracing.close()


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what is posted."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_a_collector_that_the_environment_names_gets_them(monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.posted = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        tracing = Tracing("digits", os.environ)
        for record in records(FIRST, LOSS, reformed(0), reformed(2)):
            tracing.told(record)
        tracing.close()
        server.shutdown()
        ((path, body),) = server.posted  # type: ignore[attr-defined]
    assert path == "/v1/traces"
    request = ExportTraceServiceRequest.FromString(gunzipped(body))
    names = [span.name for r in request.resource_spans for scope in r.scope_spans for span in scope.spans]
    assert names.count("first step") == 2 and "re-form 2" in names


def gunzipped(body: bytes) -> bytes:
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


def test_without_a_collector_nothing_is_imported_or_sent():
    tracing = Tracing("digits", {})
    for record in records(FIRST, LOSS, reformed(0), reformed(2)):
        tracing.told(record)
    tracing.close()
    assert tracing._provider is None
