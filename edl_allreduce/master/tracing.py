"""Re-forms for OpenTelemetry, where its package is installed and the environment names a collector."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from edl_allreduce.core.status import EventRecord
from edl_allreduce.core.traces import Span, Traces
from edl_allreduce.version import __version__

log = logging.getLogger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""OpenTelemetry's own variables: one of them set means that traces are wanted, and where."""
NANOSECONDS: Final = 1_000_000_000


class Tracing:
    """Sends a trace for each re-form; without a collector it does nothing."""

    def __init__(self, job_name: str, environ: Mapping[str, str], exporter: Any = None) -> None:
        self._traces = Traces()
        self._provider: Any = None
        self._api: Any = None
        if exporter is not None or any(environ.get(name) for name in ENDPOINTS):
            self._open(job_name, exporter)

    def _open(self, job_name: str, exporter: Any) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter()
        except ImportError as error:
            log.warning("no traces are sent: %s; pip install 'edl-allreduce[otel]'", error)
            return
        about = {"service.name": "elasticdl", "service.version": __version__, "elasticdl.job": job_name}
        self._provider = TracerProvider(resource=Resource.create(about))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._api = trace

    def told(self, record: EventRecord) -> None:
        """Something happened to the job."""
        if self._provider is not None:
            for span in self._traces.take(record):
                self._send(span, None)

    def _send(self, span: Span, parent: Any) -> None:
        tracer = self._provider.get_tracer("edl_allreduce")
        made = tracer.start_span(
            span.name, context=parent, attributes=span.about, start_time=_nanoseconds(span.began)
        )
        inside = self._api.set_span_in_context(made)
        for part in span.parts:
            self._send(part, inside)
        made.end(end_time=_nanoseconds(span.ended))

    def close(self) -> None:
        """What was not sent yet; a collector that does not answer is not waited for long."""
        if self._provider is not None:
            self._provider.shutdown()


def _nanoseconds(wall: float) -> int:
    return int(wall * NANOSECONDS)
