"""A stack holds its services to the chart's limits of memory."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from tests.notes import notes_url

from anabranch.testkit import process_memory
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.memory_limits import MIB, MemoryLimitError
from anabranch.testkit.stack import Stack
from anabranch.testkit.waiting import until
from anabranch.v1 import batch_pb2, ingest_pb2, position_pb2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not process_memory.KNOWN, reason="this machine does not report a process's memory"),
]
ROOM = 30 * MIB
REQUEST_BYTES = 3_900_000
CALLS = 24


def test_a_service_that_grows_above_its_limit_is_killed_and_named(databases: TestDatabases, tmp_path: Path) -> None:
    url = notes_url(databases)
    with pytest.raises(MemoryLimitError, match=r"^ingest had \d+ MiB of memory and was killed; its limit is \d+ MiB$"):
        _grow(url, tmp_path)
    databases.release(url)


def _grow(url: str, folder: Path) -> None:
    with Stack(url, folder=folder) as stack:
        assert set(stack.memory.limits.values()) == {1024 * MIB}
        pid = stack.pid("ingest")
        assert pid is not None
        stack.memory.limits["ingest"] = process_memory.peak_bytes(pid) + ROOM
        request = ingest_pb2.SendRequest(
            db_name="notes",
            node_state=position_pb2.NodeState(node=batch_pb2.Node(id="01ARZ3NDEKTSV4RRFFQ69G5FAV", name="a")),
            envelopes=[batch_pb2.Envelope(payload=b"x" * REQUEST_BYTES)],
        ).SerializeToString()
        metadata = (("authorization", f"Bearer {stack.key}"),)
        with grpc.insecure_channel(stack.addresses["ingest"]) as channel:
            send = channel.unary_unary("/anabranch.v1.IngestService/Send", lambda raw: raw, lambda raw: raw)
            for call in [send.future(request, timeout=20, metadata=metadata) for _ in range(CALLS)]:
                call.exception()
        until(lambda: stack.pid("ingest") is None)
        assert all(stack.pid(name) for name in stack.addresses if name != "ingest")


def test_one_that_is_too_large_from_the_start_is_named_with_the_failure(migrated_url: str, tmp_path: Path) -> None:
    stack = Stack(migrated_url, folder=tmp_path, memory_limits={"snapshot": 20 * MIB})
    with pytest.raises(Exception, match="snapshot ended") as caught, stack:
        pytest.fail("it started")
    assert any("snapshot had" in note and "its limit is 20 MiB" in note for note in caught.value.__notes__)
