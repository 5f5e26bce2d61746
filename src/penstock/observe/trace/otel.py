"""OpenTelemetry: one span per request and one per stage, sent by OTLP when the request has ended. Extra `otel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidSetting
from penstock.observe.epoch import Epoch
from penstock.observe.trace.records import RequestTrace
from penstock.observe.trace.timeline import stages

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

try:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
except ImportError:  # the extra is not installed: see `exporter_class`
    pass
else:

    class _Ids(RandomIdGenerator):
        """Uses the ids that were sent to the client already."""

        trace_id: int | None = None
        span_id: int | None = None

        def generate_trace_id(self) -> int:
            trace_id, self.trace_id = self.trace_id, None
            return trace_id or super().generate_trace_id()

        def generate_span_id(self) -> int:
            span_id, self.span_id = self.span_id, None
            return span_id or super().generate_span_id()


class Spans:
    """A listener of the journal: exports each request that has ended."""

    def __init__(self, version: str, exporter: SpanExporter, epoch: Epoch) -> None:
        self._ids = _Ids()
        resource = Resource.create({"service.name": "penstock", "service.version": version})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("penstock")
        self._epoch = epoch

    def export(self, request: RequestTrace) -> None:
        if request.trace is None or request.end is None:
            return
        own = request.trace
        context = None
        if own.parent is not None:
            parent = trace.SpanContext(
                int(own.id, 16), int(own.parent, 16), is_remote=True, trace_flags=trace.TraceFlags(own.flags)
            )
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        self._ids.trace_id, self._ids.span_id = int(own.id, 16), int(own.span, 16)
        span = self._tracer.start_span(
            f"{request.kind} {request.model or request.source.model}",
            context,
            trace.SpanKind.SERVER,
            attributes=self._attributes(request),
            start_time=self._epoch.unix_ns(request.accepted),
        )
        inside = trace.set_span_in_context(span)
        for name, start, end in stages(request, request.end):
            child = self._tracer.start_span(name, inside, start_time=self._epoch.unix_ns(start))
            child.end(self._epoch.unix_ns(end))
        if request.failed:
            span.set_status(trace.StatusCode.ERROR, request.code or "")
        span.end(self._epoch.unix_ns(request.end))

    def shutdown(self) -> None:
        """Send what is queued."""
        self._provider.shutdown()

    def _attributes(self, request: RequestTrace) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "embeddings" if request.kind == "embedding" else request.kind,
            "gen_ai.request.model": request.model or request.source.model,
            "gen_ai.usage.input_tokens": request.prompt_tokens,
            "gen_ai.usage.output_tokens": request.output_tokens,
            "gen_ai.response.finish_reasons": [request.finish or ""],
            "penstock.request_id": request.request_id,
            "penstock.replica": request.source.replica,
            "penstock.cached_tokens": request.cached_tokens,
            "penstock.preemptions": sum(len(sequence.preemptions) for sequence in request.sequences),
        }
        waited = next((one.waited_for for one in request.sequences if one.waited_for), None)
        return attributes if waited is None else {**attributes, "penstock.waited_for": waited}


def to_endpoint(version: str, endpoint: str, epoch: Epoch) -> Spans:
    return Spans(version, exporter_class()(endpoint), epoch)


def exporter_class() -> Callable[[str], SpanExporter]:
    """Raises if the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise InvalidSetting(
            "otel_endpoint needs the extra: pip install 'penstock[otel]'", param="otel_endpoint"
        ) from None
    return OTLPSpanExporter
