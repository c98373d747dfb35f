"""One trace from the call that sends a batch to the page that brings it to a subscriber."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from ulid import ULID

from anabranch.store import migrate
from anabranch.store.engine import connect
from anabranch.store.registration import add_table, create_database
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.echo import bearer
from anabranch.testkit.stack import Stack
from anabranch.v1 import batch_pb2, change_pb2, change_pb2_grpc, ingest_pb2, ingest_pb2_grpc, position_pb2, value_pb2

TRACE, SENDER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SPANS = {"anabranch.v1.IngestService/Send", "group", "deliver"}


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans in, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        self.complete = threading.Event()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans |= {span.name: span for span in scope.spans if span.trace_id.hex() == TRACE}
        if self.spans.keys() >= SPANS:
            self.complete.set()
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, int]]:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, port
    server.stop(0).wait()


def prepare(url: str) -> None:
    migrate.upgrade(url)
    with connect(url, application_name="test", autocommit=True) as conn:
        conn.execute("create table public.note (id text primary key)")
        create_database(conn, "notes", "public")
        add_table(conn, "notes", "note")


def test_a_trace_goes_from_the_sender_to_the_subscriber(
    databases: TestDatabases, tmp_path: Path, collector: tuple[Collector, int]
) -> None:
    collected, port = collector
    url = databases.prepared("traced-notes", prepare)
    node = batch_pb2.Node(id=str(ULID()), name="a")
    batch = batch_pb2.DbMutationBatch(id=str(ULID()), db_name="notes", node=node)
    row = value_pb2.Row(values=[value_pb2.Value(string_value="milk")])
    batch.mutations.add(table="note", type=batch_pb2.MUTATION_TYPE_INSERT, columns=["id"], rows=[row])
    environment = {"ANABRANCH_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    with (
        Stack(url, folder=tmp_path, environment=environment) as stack,
        grpc.insecure_channel(stack.addresses["snapshot"]) as to_snapshot,
        grpc.insecure_channel(stack.addresses["ingest"]) as to_ingest,
    ):
        follow = change_pb2.SubscribeRequest(db_name="notes")
        stream = change_pb2_grpc.ChangeServiceStub(to_snapshot).Subscribe(
            follow, timeout=60, metadata=bearer(stack.key)
        )
        pages = iter(stream)
        # Live from here on: the first heartbeat came.
        while not next(pages).sums:
            pass
        send = ingest_pb2.SendRequest(db_name="notes", node_state=position_pb2.NodeState(node=node))
        send.envelopes.add(payload=batch.SerializeToString())
        traceparent = ("traceparent", f"00-{TRACE}-{SENDER}-01")
        ingest_pb2_grpc.IngestServiceStub(to_ingest).Send(send, timeout=30, metadata=bearer(stack.key, traceparent))
        deadline = time.monotonic() + 30
        while not any(group.batches for group in next(pages).page.groups):
            assert time.monotonic() < deadline
        stream.cancel()
    # Stopping the services has sent what was left.
    assert collected.complete.wait(10), collected.spans.keys()
    spans = collected.spans
    sent, group, deliver = (spans[name] for name in ("anabranch.v1.IngestService/Send", "group", "deliver"))
    assert sent.parent_span_id.hex() == SENDER
    assert group.parent_span_id == sent.span_id
    assert deliver.parent_span_id == group.span_id
    databases.release(url)
