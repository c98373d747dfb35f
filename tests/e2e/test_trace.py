"""One trace from the app's write on one device, through Postgres, to its application on another device."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from tests.notes import notes_url

from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.stack import Stack

PARENTS = {
    "anabranch.client.send": "app",
    "anabranch.v1.IngestService/Send": "anabranch.client.send",
    "group": "anabranch.v1.IngestService/Send",
    "deliver": "group",
    "anabranch.client.reading.apply": "deliver",
}
"""The span tree of one batch: each span and its parent."""
WRITES = 30


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans in, as an OpenTelemetry collector does. ``spans``: by trace, then by name."""

    def __init__(self) -> None:
        self.spans: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.services: dict[str, str] = {}
        self._changed = threading.Condition()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._changed:
            for resource in request.resource_spans:
                (name,) = [a.value.string_value for a in resource.resource.attributes if a.key == "service.name"]
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.spans[span.trace_id.hex()][span.name] = span
                        self.services[span.span_id.hex()] = name
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def complete(self, timeout_s: float) -> dict[str, Any]:
        """The spans of the first trace that has them all. Raises TimeoutError."""

        def whole() -> list[dict[str, Any]]:
            return [spans for spans in self.spans.values() if spans.keys() >= PARENTS.keys()]

        with self._changed:
            if not self._changed.wait_for(whole, timeout_s):
                raise TimeoutError([sorted(spans) for spans in self.spans.values()])
            return whole()[0]


@pytest.fixture
def collector() -> Iterator[tuple[Collector, int]]:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, port
    server.stop(0).wait()


@pytest.mark.slow
def test_a_trace_goes_from_one_device_to_the_other(
    databases: TestDatabases, tmp_path: Path, collector: tuple[Collector, int]
) -> None:
    """Each process makes its spans, and each span is the child of the one before it. A write that comes to the reader
    before it follows live is read by pages, which are no group's: so it is written again."""
    collected, port = collector
    url = notes_url(databases)
    endpoint = f"http://127.0.0.1:{port}"
    with Stack(url, folder=tmp_path, environment={"ANABRANCH_OTLP_ENDPOINT": endpoint}) as stack:
        script = Path(__file__).with_name("traced_devices.py")
        where = [endpoint, str(tmp_path), stack.addresses["ingest"], stack.addresses["snapshot"], stack.key]
        with subprocess.Popen(
            [sys.executable, str(script), *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as devices:
            assert devices.stdin is not None
            assert devices.stdout is not None
            for _ in range(WRITES):
                devices.stdin.write("write\n")
                devices.stdin.flush()
                trace_id = devices.stdout.readline().strip()
                assert trace_id, "the devices ended"
                if "anabranch.client.reading.apply" in collected.spans[trace_id]:
                    break
            devices.stdin.close()
            assert devices.wait(60) == 0
    # Stopping the services has sent what was left.
    spans = collected.complete(10)
    for name, parent in PARENTS.items():
        assert spans[name].parent_span_id == spans[parent].span_id, f"{name} is no child of {parent}"
    assert spans["app"].parent_span_id == b""
    processes = {name: collected.services[span.span_id.hex()] for name, span in spans.items()}
    assert processes["anabranch.client.send"] == processes["anabranch.client.reading.apply"] == "app"
    assert processes["anabranch.v1.IngestService/Send"] == "anabranch-ingest"
    assert processes["group"] == "anabranch-conflict-resolver"
    assert processes["deliver"] == "anabranch-snapshot"
    databases.release(url)
