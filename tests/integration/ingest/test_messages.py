"""SendStream as the open line of a device: each of its messages is judged as a call of its own."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from ulid import ULID

from anabranch import limits
from anabranch.store.session.engine import connect
from anabranch.testkit.echo import revoke_key
from anabranch.testkit.exposition import shown
from anabranch.testkit.ingest_rig import Device, FailedCallError, IngestRig, batch_id, failed
from anabranch.testkit.verdict_writer import VerdictWriter
from anabranch.testkit.waiting import until
from anabranch.v1 import batch_pb2, ingest_pb2, position_pb2, verdict_pb2

APPLIED = verdict_pb2.VERDICT_STATUS_APPLIED
PENDING = verdict_pb2.VERDICT_STATUS_PENDING
Devices = Callable[..., Device]


class Line:
    """A stream that a device keeps open. ``say`` sends a message; ``hear`` waits for so many verdicts."""

    def __init__(self, device: Device, timeout_s: float = 30.0) -> None:
        self.device = device
        self.channel = grpc.insecure_channel(device.address)
        self._outgoing: queue.SimpleQueue[ingest_pb2.SendStreamRequest | None] = queue.SimpleQueue()
        self._call: Any = device.stream(self.channel, iter(self._outgoing.get, None), timeout_s)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._outgoing.put(None)
        self.channel.close()

    def say(self, *payloads: batch_pb2.Envelope | bytes) -> None:
        self._outgoing.put(self.device.stream_request(*payloads, first=True))

    def next(self) -> ingest_pb2.SendStreamResponse:
        try:
            response: ingest_pb2.SendStreamResponse = next(self._call)
        except grpc.RpcError as error:
            raise failed(error) from error
        if response.node_token:
            self.device.token = response.node_token
        return response

    def hear(self, count: int = 1) -> list[verdict_pb2.Verdict]:
        found: list[verdict_pb2.Verdict] = []
        while len(found) < count:
            found += self.next().verdicts
        return found

    def ask(self, *payloads: batch_pb2.Envelope | bytes) -> list[verdict_pb2.Verdict]:
        self.say(*payloads)
        return self.hear(len(payloads))

    def failure(self) -> FailedCallError:
        with pytest.raises(FailedCallError) as caught:
            self.hear(2**31)
        return caught.value

    def rest(self) -> list[verdict_pb2.Verdict]:
        """The verdicts until the server ends the stream, in good order."""
        return [verdict for response in self._call for verdict in response.verdicts]


@pytest.fixture
def line(device: Device) -> Iterator[Line]:
    with Line(device) as opened:
        yield opened


def copy_of(device: Device) -> Device:
    return Device(device.address, device.key, device.db_name, device.node_id, device.token)


def node(rig: IngestRig, device: Device) -> tuple[Any, ...]:
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        row = conn.execute(
            "select token, cardinality(last_call), acknowledged, last_seen_ms from anabranch.nodes where node_id = %s",
            (device.node_id,),
        ).fetchone()
    assert row is not None
    return tuple(row)


def arrived(rig: IngestRig, device: Device) -> list[str]:
    """The batches of a node in the order in which they were taken in and decided."""
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        rows = conn.execute(
            "select batch_id from anabranch.batches where node_id = %s order by position, batch_id", (device.node_id,)
        ).fetchall()
    return [row[0] for row in rows]


def test_messages_are_answered_one_by_one_and_taken_in_in_order(
    rig: IngestRig, device: Device, line: Line, resolver: VerdictWriter
) -> None:
    payloads = [device.payload() for _ in range(20)]
    for payload in payloads:
        (verdict,) = line.ask(payload)
        assert (verdict.batch_id, verdict.status) == (batch_id(payload), APPLIED)
    assert arrived(rig, device) == [batch_id(p) for p in payloads]
    # The same again has the same verdict, and no second effect.
    assert line.ask(payloads[3])[0].batch_id == batch_id(payloads[3])
    assert len(arrived(rig, device)) == 20


def test_the_opening_gives_a_token_that_its_messages_leave_as_it_is(
    rig: IngestRig, device: Device, line: Line, resolver: VerdictWriter
) -> None:
    line.ask(device.payload())
    given, ids, _, seen_ms = node(rig, device)
    assert (device.token, ids) == (given, 1)
    device.acknowledged = 0
    for number in range(5):
        line.say(device.payload())
        response = line.next()
        assert response.node_token == given, f"message {number} is judged as a call, and says so"
    assert node(rig, device)[:2] == (given, 1), "the ids of messages do not pile up"
    assert node(rig, device)[3] >= seen_ms
    assert device.send(device.payload()).verdicts[0].status == APPLIED, "calls and messages may take turns"
    assert line.ask(device.payload())[0].status == APPLIED


def test_a_copy_of_the_node_is_found_out_by_the_next_message(
    rig: IngestRig, device: Device, line: Line, resolver: VerdictWriter
) -> None:
    line.ask(device.payload())
    copy_of(device).send(device.payload())
    refused = device.payload()
    line.say(refused)
    assert line.failure().reason == "NODE_FORKED"
    assert batch_id(refused) not in arrived(rig, device)


def test_a_call_in_place_of_a_message_that_is_still_under_way_is_no_copy(
    device: Device, line: Line, resolver: VerdictWriter
) -> None:
    line.ask(device.payload())
    resolver.paused.set()
    payload = device.payload()
    line.say(payload)
    other = copy_of(device)
    assert other.send(payload, timeout_s=1.0).verdicts[0].status == PENDING
    resolver.paused.clear()
    assert line.hear()[0].status == APPLIED
    assert other.send(payload).verdicts[0].status == APPLIED


@pytest.mark.parametrize("what", ["another node", "another database", "a foreign position"])
def test_a_message_that_names_something_else_fails_with_its_reason(
    rig: IngestRig, device: Device, line: Line, resolver: VerdictWriter, what: str
) -> None:
    settled = device.send(device.payload()).state.settled
    line.ask(device.payload())
    if what == "another node":
        device.node_id = str(ULID())
    elif what == "another database":
        device.db_name = f"d{str(ULID()).lower()}"
        rig.new_database(device.db_name)
    else:
        device.seen = position_pb2.Position(
            epoch=settled.epoch, server_timestamp_ms=settled.server_timestamp_ms + 10_000_000, token=settled.token
        )
    line.say(device.payload())
    expected = {"a foreign position": {"INVALID_POSITION", "HISTORY_REWOUND"}}.get(what, {"INVALID_REQUEST"})
    assert line.failure().reason in expected


def test_a_message_that_is_too_large_fails_and_what_was_answered_stands(
    rig: IngestRig, device: Device, line: Line, resolver: VerdictWriter
) -> None:
    good = device.payload()
    line.ask(good)
    line.say(bytes(limits.MAX_REQUEST_BYTES + 1))
    assert line.failure().reason == "MESSAGE_TOO_LARGE"
    assert arrived(rig, device) == [batch_id(good)]


def test_each_message_is_counted_once_and_its_wait_is_measured(
    rig: IngestRig, device: Device, line: Line, resolver: VerdictWriter
) -> None:
    own = {"database": device.db_name}
    for _ in range(7):
        line.ask(device.payload())

    def waits() -> float:
        return shown(rig.metrics_addresses[0], "anabranch_verdict_wait_seconds_count", **own)

    assert shown(rig.metrics_addresses[0], "anabranch_batches_received_total", **own) == 7
    assert waits() == 6, "of all but the first, which is the stream's opening"


@pytest.mark.slow
def test_a_quota_refuses_a_message_and_takes_it_when_there_is_room(
    module_url: str, tmp_path: Path, device: Device
) -> None:
    environment = {"ANABRANCH_PRINCIPAL_MAX_WAITING_BATCHES": "4"}
    with IngestRig(module_url, tmp_path, environment=environment) as rig:
        device.address = rig.addresses[0]
        payloads = [device.payload() for _ in range(4)]
        refused = device.payload()
        with Line(device) as line:
            line.say(*payloads)
            line.next()
            line.say(refused)
            assert line.failure().reason == "OVERLOADED"
        with VerdictWriter(module_url), Line(device) as line:
            until(lambda: len(arrived(rig, device)) == 4)
            assert line.ask(refused)[0].status == APPLIED


@pytest.mark.slow
def test_a_rate_refuses_a_message_as_it_does_a_call(module_url: str, tmp_path: Path, device: Device) -> None:
    environment = {"ANABRANCH_PRINCIPAL_BATCHES_PER_S": "0.01", "ANABRANCH_PRINCIPAL_BATCHES_BURST": "3"}
    with IngestRig(module_url, tmp_path, environment=environment) as rig, VerdictWriter(module_url):
        device.address = rig.addresses[0]
        with Line(device) as line:
            for _ in range(3):
                assert line.ask(device.payload())[0].status == APPLIED
            line.say(device.payload())
            failure = line.failure()
        assert (failure.reason, "retry_after_ms" in failure.metadata) == ("OVERLOADED", True)


@pytest.mark.slow
def test_a_revoked_key_ends_an_open_line_within_a_second(
    rig: IngestRig, device: Device, line: Line, resolver: VerdictWriter
) -> None:
    line.ask(device.payload())
    revoke_key(rig.url, device.key)
    began = time.monotonic()
    assert line.failure().reason == "CREDENTIALS_EXPIRED"
    assert time.monotonic() - began < 2.0
    line = Line(device)
    line.say(device.payload())
    assert line.failure().reason in ("CREDENTIALS_EXPIRED", "UNAUTHENTICATED")
    assert len(arrived(rig, device)) == 1


@pytest.mark.slow
def test_a_server_that_drains_ends_an_open_line_and_loses_nothing(
    module_url: str, tmp_path: Path, device: Device, new_device: Devices
) -> None:
    """One line is idle, the other has a message without a verdict: both end in good order."""
    with IngestRig(module_url, tmp_path, count=2) as rig:
        device.address = rig.addresses[0]
        idle = new_device(address=rig.addresses[0])
        resolver = VerdictWriter(module_url)
        with resolver, Line(device) as line, Line(idle) as other:
            other.ask(idle.payload())
            line.ask(device.payload())
            resolver.paused.set()
            payload = device.payload()
            line.say(payload)
            until(lambda: shown(rig.metrics_addresses[0], "anabranch_batches_received_total") == 3)
            rig.signal(signal.SIGTERM)
            assert [v.status for v in line.rest()] == [PENDING]
            assert other.rest() == []
            device.address = rig.addresses[1]
            resolver.paused.clear()
            with Line(device) as line:
                assert line.ask(payload)[0].status == APPLIED
            assert len(arrived(rig, device)) == 2
