"""Traces and metrics: where they go, and how a trace goes on from one process to the next.

A trace travels as a W3C ``traceparent``: in a call's metadata, and in the inbox row. Without an OTLP endpoint
no span is made and ``span`` costs one comparison; an incoming traceparent is still handed on.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar

import prometheus_client
from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from anabranch.runtime.config import ServiceSettings, split_address
from anabranch.store.session.told import told

_propagator = TraceContextTextMapPropagator()
_incoming: ContextVar[str | None] = ContextVar("anabranch_traceparent", default=None)
_tracer: trace.Tracer | None = None


def start(service: str, settings: ServiceSettings) -> Callable[[], None]:
    """Send traces and metrics as the settings say. Gives the function that sends the rest and ends it. Once a
    process."""
    global _tracer
    resource = Resource.create({"service.name": f"anabranch-{service}", "service.namespace": "anabranch"})
    closers: list[Callable[[], object]] = []
    readers: list[MetricReader] = []
    if settings.metrics_address is not None:
        host, port = split_address(settings.metrics_address)
        readers.append(PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False))
        server, thread = prometheus_client.start_http_server(port, host)
        closers += [server.shutdown, server.server_close, thread.join]
    if settings.otlp_endpoint is not None:
        # Imported here, because it costs a third of a second that a service without an endpoint need not pay.
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        plaintext = settings.otlp_endpoint.startswith("http://")
        readers.append(
            PeriodicExportingMetricReader(
                OTLPMetricExporter(settings.otlp_endpoint, insecure=plaintext), settings.metrics_interval_ms
            )
        )
        traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(settings.otlp_endpoint, insecure=plaintext)))
        trace.set_tracer_provider(traces)
        _tracer = traces.get_tracer("anabranch")
        closers.append(traces.shutdown)
    if readers:
        # Without exemplars, which nothing here shows and which double the cost of a histogram.
        meters = MeterProvider(readers, resource, exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False)
        metrics.set_meter_provider(meters)
        closers.append(meters.shutdown)

    def close() -> None:
        for closer in closers:
            closer()

    return close


def tracing() -> bool:
    """Whether spans are made."""
    return _tracer is not None


def accept_traceparent(traceparent: str | None) -> None:
    """Remember the traceparent that a call came with, for the rest of this task."""
    _incoming.set(traceparent)


def current_traceparent() -> str | None:
    """The traceparent to hand on: of the span under way, else the one that the call came with."""
    if _tracer is None:
        return _incoming.get()
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent")


@contextlib.contextmanager
def _made_span(
    tracer: trace.Tracer, name: str, parent: str | None, links: Iterable[str], kind: SpanKind
) -> Iterator[Span]:
    context = _propagator.extract({"traceparent": parent}) if parent else None
    linked = [
        Link(trace.get_current_span(_propagator.extract({"traceparent": link})).get_span_context()) for link in links
    ]
    # An error is recorded here, because the library records its text, which may quote a row.
    with tracer.start_as_current_span(
        name, context=context, kind=kind, links=linked, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except Exception as error:
            mark_failed(span, error)
            raise


def mark_failed(span: Span, error: Exception) -> None:
    """Record ``error`` in ``span``, in words that quote no row."""
    kind = type(error).__name__
    span.add_event("exception", {"exception.type": kind, "exception.message": told(error)})
    span.set_status(StatusCode.ERROR, kind)


_NO_SPAN = contextlib.nullcontext(trace.INVALID_SPAN)


def span(
    name: str, *, parent: str | None = None, links: Iterable[str] = (), kind: SpanKind = SpanKind.INTERNAL
) -> contextlib.AbstractContextManager[Span]:
    """A span around a block of code.

    ``parent`` is the traceparent that it goes on from (None: the span under way), as the inbox row keeps it;
    ``links`` are traceparents of others that it works for, as a group commit works for many batches.
    """
    if _tracer is None:
        return _NO_SPAN
    return _made_span(_tracer, name, parent, links, kind)


def call_span(method: str) -> contextlib.AbstractContextManager[Span]:
    """The span of the RPC under way, going on from the traceparent that it came with."""
    if _tracer is None:
        return _NO_SPAN
    return _made_span(_tracer, method.removeprefix("/"), _incoming.get(), (), SpanKind.SERVER)


def fault_id() -> str:
    """Return an id by which a fault is found in the logs: the trace's id, or a random one where there is no trace."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        return trace.format_trace_id(context.trace_id)
    incoming = (_incoming.get() or "").split("-")
    return incoming[1] if len(incoming) == 4 else secrets.token_hex(16)
