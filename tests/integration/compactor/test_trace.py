"""A run is one trace: the driver's steps, and Spark's tasks as their children."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent import futures
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from tests.integration.compactor.conftest import Lake

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans in, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


class Gauges(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Takes metrics in."""

    def __init__(self) -> None:
        self.metrics: dict[str, list[float]] = {}

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = getattr(metric, metric.WhichOneof("data")).data_points
                    self.metrics[metric.name] = [getattr(p, p.WhichOneof("value")) for p in points]
        return metrics_service_pb2.ExportMetricsServiceResponse()


@pytest.mark.long
def test_a_run_is_one_trace_down_to_its_tasks(lake: Lake) -> None:
    lake.writer().insert("todo", [("a", "t", None, 1)])
    collector, gauges = Collector(), Gauges()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(gauges, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    environment = {
        **os.environ,
        "ANABRANCH_POSTGRES_URL": lake.url,
        "ANABRANCH_LAKE_ROOT": str(lake.folder),
        "ANABRANCH_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
    }
    arguments = [sys.executable, "-m", "anabranch_compactor"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=250, check=False)
    server.stop(1).wait()
    assert done.returncode == 0, done.stderr[-3000:]
    by_id = {span.span_id: span for span in collector.spans}
    assert len({span.trace_id for span in collector.spans}) == 1
    parents = {(span.name, by_id[span.parent_span_id].name if span.parent_span_id else "") for span in collector.spans}
    assert parents == {
        ("compact", ""),
        ("plan", "compact"),
        ("write", "compact"),
        ("write task", "write"),
        ("read", "write"),
        ("read task", "read"),
        ("pull task", "read"),
        ("prove", "compact"),
        ("prove task", "prove"),
        ("publish", "compact"),
    }
    for span in collector.spans:
        parent = by_id.get(span.parent_span_id)
        if parent is not None:
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano
    told = {name: values for name, values in gauges.metrics.items() if name.startswith("anabranch_comp")}
    assert told.pop("anabranch_compaction_bytes")[0] > 0
    assert told == {
        "anabranch_compacted_changes": [1],
        "anabranch_compaction_files": [2],  # one of changes, one of the base
        "anabranch_compaction_lag": [0],
    }
