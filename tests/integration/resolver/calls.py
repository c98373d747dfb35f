"""A resolver's calls, for tests of them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from anabranch.clock import Clock
from anabranch.runtime.children import Child, Program
from anabranch.store.nodes import key_administration
from anabranch.testkit import preforked
from anabranch.testkit.resolver_rig import Made, ResolverRig, RigNode
from anabranch.v1 import batch_pb2, resolver_pb2, resolver_pb2_grpc, verdict_pb2


class Service:
    """A running resolver and keys for it."""

    def __init__(self, rig: ResolverRig, port: int) -> None:
        self.rig = rig
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.stub = resolver_pb2_grpc.ConflictResolverServiceStub(self.channel)
        self._keys: dict[str, str] = {}

    def _metadata(self, subject: str) -> tuple[tuple[str, str], ...]:
        if subject not in self._keys:
            self._keys[subject] = key_administration.create(
                self.rig.conn, subject=subject, role="device", database="app", now_ms=Clock().now_ms()
            )
        return (("authorization", f"Bearer {self._keys[subject]}"),)

    def verdicts(self, subject: str, *batch_ids: str, database: str = "app") -> resolver_pb2.GetVerdictResponse:
        request = resolver_pb2.GetVerdictRequest(db_name=database, batch_ids=batch_ids)
        return self.stub.GetVerdict(request, metadata=self._metadata(subject), timeout=10)

    def explain(self, node: RigNode, made: Made, *, prev: str = "", subject: str = "") -> resolver_pb2.ExplainResponse:
        request = resolver_pb2.ExplainRequest(
            db_name="app", envelope=batch_pb2.Envelope(payload=made.payload, basis=made.basis, prev=prev)
        )
        request.node_state.node.id = node.id
        return self.stub.Explain(request, metadata=self._metadata(subject or node.principal), timeout=10)

    def conflicts(self, **filters: Any) -> resolver_pb2.ListConflictsResponse:
        request = resolver_pb2.ListConflictsRequest(**{"db_name": "app", **filters})
        return self.stub.ListConflicts(request, metadata=self._metadata("user-a"), timeout=10)

    def all_conflicts(self, **filters: Any) -> list[resolver_pb2.Conflict]:
        """All pages, values put together."""
        found: list[resolver_pb2.Conflict] = []
        parts: list[bytes] = []
        token = b""
        for _ in range(1_000):
            page = self.conflicts(page_token=token, **filters)
            for conflict in page.conflicts:
                parts.append(conflict.losing_value)
                if not conflict.losing_value_incomplete:
                    conflict.losing_value = b"".join(parts)
                    parts.clear()
                    found.append(conflict)
            token = page.next_page_token
            if not token:
                assert not parts
                return found
        raise AssertionError("pages without end")


@contextmanager
def resolver_process(rig: ResolverRig, url: str, folder: Path) -> Iterator[Service]:
    """A resolver process on the rig's database, at ``url``; ``folder`` takes its log."""
    log = folder / "resolver.log"
    environment = {**os.environ, "ANABRANCH_POSTGRES_URL": url, "ANABRANCH_END_WITH_STDIN": "true"}
    arguments = (sys.executable, "-m", "anabranch_conflict_resolver")
    process = Child(
        Program("resolver", arguments, environment, log), restarts=False, say=print, launch=preforked.launch
    )
    process.start()
    made = None
    try:
        end = time.monotonic() + 30
        while made is None:
            assert process.pid is not None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            lines = [json.loads(line) for line in log.read_text().splitlines() if '"port"' in line]
            if lines:
                made = Service(rig, lines[0]["port"])
            time.sleep(0.05)
        yield made
    finally:
        if made is not None:
            made.channel.close()
        process.kill()


def decided(service: Service, subject: str, batch_id: str) -> verdict_pb2.Verdict:
    """The verdict, once there is one."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for verdict in service.verdicts(subject, batch_id).verdicts:
            if verdict.status != verdict_pb2.VERDICT_STATUS_PENDING:
                return verdict
        time.sleep(0.02)
    raise AssertionError("no verdict in time")
