"""The trace of a run goes on into Spark's tasks: each is a child of the driver's span under way when it was made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from opentelemetry.trace import Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from anabranch.runtime import telemetry

ENDPOINT_VARIABLE = "ANABRANCH_OTLP_ENDPOINT"
Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """The data by which tasks go on with a trace: where spans go, and the span that they are children of."""

    endpoint: str
    parent: str


def task_trace() -> TaskTrace | None:
    """That of the span under way; None where the driver makes no spans."""
    endpoint, parent = os.environ.get(ENDPOINT_VARIABLE), telemetry.current_traceparent()
    return None if not telemetry.tracing() or endpoint is None or parent is None else TaskTrace(endpoint, parent)


def in_task_span(name: str, trace: TaskTrace | None, batches: Batches) -> Batches:
    """The batches, with a span from the first to behind the last."""
    if trace is None:
        yield from batches
        return
    context = TraceContextTextMapPropagator().extract({"traceparent": trace.parent})
    tracer = _tracer(trace.endpoint)
    with tracer.start_as_current_span(
        name, context=context, record_exception=False, set_status_on_exception=False
    ) as span:
        rows = 0
        try:
            for batch in batches:
                rows += batch.num_rows
                yield batch
        except Exception as error:
            telemetry.mark_failed(span, error)
            raise
        span.set_attribute("anabranch.rows", rows)


def traced(name: str, work: Work) -> Work:
    """``work`` for ``mapInArrow``, with a span around each task where the driver makes spans."""
    trace = task_trace()
    return work if trace is None else lambda batches: in_task_span(name, trace, work(batches))


@lru_cache(maxsize=1)
def _tracer(endpoint: str) -> Tracer:
    """A worker's own tracer. It sends each span at its end, because a worker does not learn which task is its last."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    resource = Resource.create({"service.name": "anabranch-compactor", "service.namespace": "anabranch"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(
        SimpleSpanProcessor(OTLPSpanExporter(endpoint, insecure=endpoint.startswith("http://"), timeout=5))
    )
    return provider.get_tracer("anabranch")
