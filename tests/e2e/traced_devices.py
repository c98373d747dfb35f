"""Two devices whose process sends its spans: one writes, each write under a span of the app's own, and the other one
follows. For every write it prints the trace's id, until its input ends.

Usage: ``python traced_devices.py ENDPOINT FOLDER INGEST SNAPSHOT KEY``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from anabranch.client import RemoteDb, SyncedDb
from anabranch.client.events import Change


def main() -> None:
    endpoint, folder, ingest, snapshot, key = sys.argv[1:]
    provider = TracerProvider(resource=Resource.create({"service.name": "app"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint, insecure=True)))
    trace.set_tracer_provider(provider)

    def device(name: str) -> SyncedDb:
        remote = RemoteDb(ingest=ingest, snapshot=snapshot, resolver=ingest, token=key)
        return SyncedDb(Path(folder) / f"{name}.db", remote, "notes", name)

    arrived = threading.Event()

    def on_change(change: Change) -> None:
        if change.origin == "remote":
            arrived.set()

    writer, reader = device("writer"), device("reader")
    reader.on_change(on_change)
    reader.start()
    writer.start(background=False)
    for number, _ in enumerate(sys.stdin):
        arrived.clear()
        with trace.get_tracer("app").start_as_current_span("app") as span:
            writer.table("note").insert({"id": f"note-{number}"})
            writer.flush()
        assert arrived.wait(30), "the other device has not got it"
        print(trace.format_trace_id(span.get_span_context().trace_id), flush=True)
    writer.close()
    reader.close()
    provider.shutdown()


if __name__ == "__main__":
    main()
