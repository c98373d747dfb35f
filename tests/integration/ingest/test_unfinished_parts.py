"""Payloads in parts that are never finished: each principal holds so much of them, and not for ever."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.ingest.conftest import Devices

from anabranch import limits
from anabranch.runtime.errors import error_info
from anabranch.testkit import process_memory
from anabranch.testkit.ingest_rig import Device, IngestRig, batch_id
from anabranch.testkit.verdict_writer import VerdictWriter
from anabranch.testkit.waiting import until
from anabranch.v1 import batch_pb2, errors_pb2, ingest_pb2, verdict_pb2

pytestmark = pytest.mark.slow
PART_BYTES = 3_900_000


def reason_of(error: grpc.RpcError) -> str:
    info = error_info(error)
    return "" if info is None else info.reason


class Unfinished:
    """A stream that has sent parts of a payload, and keeps silent then. ``why`` it ended: None while it is open."""

    def __init__(self, channel: grpc.Channel, device: Device, parts: int) -> None:
        self.why: str | None = None
        self.token = b""
        self._requests: queue.Queue[ingest_pb2.SendStreamRequest | None] = queue.Queue()
        part = batch_pb2.Envelope(payload=device.payload() + bytes(PART_BYTES), payload_incomplete=True)
        self._requests.put(device.stream_request(part, first=True))
        for _ in range(parts - 1):
            self._requests.put(device.stream_request(part))
        self._responses: Any = device.stream(channel, iter(self._requests.get, None), 120)
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        why = ""
        try:
            for response in self._responses:
                self.token = response.node_token or self.token
        except grpc.RpcError as error:
            why = reason_of(error)
        self.why = why

    def close(self) -> None:
        self._responses.cancel()
        self._requests.put(None)


@contextmanager
def ingest(url: str, folder: Path, **settings: str) -> Iterator[IngestRig]:
    environment = {f"ANABRANCH_{name.upper()}": value for name, value in settings.items()}
    with IngestRig(url, folder, environment=environment) as rig:
        yield rig


def test_a_principal_holds_so_much_of_unfinished_payloads_and_others_have_room(
    module_url: str, tmp_path: Path, new_device: Devices, resolver: VerdictWriter
) -> None:
    most = 40_000_000
    with ingest(module_url, tmp_path, principal_max_parts_bytes=str(most)) as rig, ExitStack() as stack:
        channel = stack.enter_context(grpc.insecure_channel(rig.addresses[0]))
        pid = rig.children[0].pid
        assert pid is not None
        before = process_memory.has_bytes(pid)
        held = [Unfinished(channel, new_device("greedy", rig.addresses[0]), 8) for _ in range(20)]
        for one in held:
            stack.callback(one.close)
        # 20 streams of 31 MB each: one fits.
        until(lambda: sum(one.why is not None for one in held) >= len(held) - 1, 60)
        assert {one.why for one in held} <= {"OVERLOADED", None}
        assert process_memory.peak_bytes(pid) - before < 5 * most
        other = new_device("modest", rig.addresses[0])
        own = Unfinished(channel, other, 2)
        stack.callback(own.close)
        until(lambda: bool(own.token), 20)
        other.token = own.token
        assert other.send(other.payload()).verdicts[0].status == verdict_pb2.VERDICT_STATUS_APPLIED


@pytest.mark.parametrize(("part_wait_ms", "parts_max_ms"), [("300", "60000"), ("60000", "300")], ids=["next", "last"])
def test_a_payload_that_is_not_finished_in_time_ends_its_stream(
    module_url: str, tmp_path: Path, new_device: Devices, part_wait_ms: str, parts_max_ms: str
) -> None:
    with (
        ingest(module_url, tmp_path, part_wait_ms=part_wait_ms, parts_max_ms=parts_max_ms) as rig,
        grpc.insecure_channel(rig.addresses[0]) as channel,
    ):
        one = Unfinished(channel, new_device("slow", rig.addresses[0]), 1)
        try:
            until(lambda: one.why is not None, 20)
            assert one.why == "INVALID_REQUEST"
        finally:
            one.close()


def test_mutations_without_content_are_refused_before_they_are_parsed(
    rig: IngestRig, device: Device, resolver: VerdictWriter
) -> None:
    start = device.payload()
    payload = start + b"\x1a\x00" * ((limits.MAX_REQUEST_BYTES - 10_000 - len(start)) // 2)
    pid = rig.children[0].pid
    assert pid is not None
    process_memory.forget_peak(pid)
    before = process_memory.has_bytes(pid)
    [verdict] = device.send(payload).verdicts
    assert (verdict.batch_id, verdict.reason) == (batch_id(start), errors_pb2.REASON_LIMIT_EXCEEDED)
    assert process_memory.peak_bytes(pid) - before < 60_000_000
