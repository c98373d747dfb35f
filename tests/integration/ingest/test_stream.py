"""SendStream: a flush in one stream, in parts, held back where it is too fast."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from anabranch import limits
from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import Device, FailedCallError, IngestRig, batch_id, failed
from anabranch.testkit.verdict_writer import VerdictWriter
from anabranch.v1 import batch_pb2, errors_pb2, ingest_pb2, verdict_pb2

APPLIED = verdict_pb2.VERDICT_STATUS_APPLIED
PENDING = verdict_pb2.VERDICT_STATUS_PENDING
REJECTED = verdict_pb2.VERDICT_STATUS_REJECTED
Devices = Callable[..., Device]
Requests = Iterator[ingest_pb2.SendStreamRequest]


def flush(device: Device, requests: Requests, timeout_s: float = 20) -> list[verdict_pb2.Verdict]:
    """All verdicts of a stream; the device takes the token."""
    verdicts: list[verdict_pb2.Verdict] = []
    try:
        with grpc.insecure_channel(device.address) as channel:
            for number, response in enumerate(device.stream(channel, requests, timeout_s)):
                assert (number == 0) == (len(response.node_token) == 16)
                assert response.state.server_time_ms
                if response.node_token:
                    device.token = response.node_token
                verdicts.extend(response.verdicts)
    except grpc.RpcError as error:
        raise failed(error) from error
    return verdicts


@pytest.mark.slow
def test_a_long_flush(device: Device, resolver: VerdictWriter) -> None:
    payloads = [device.payload() for _ in range(3_000)]

    def requests() -> Requests:
        yield device.stream_request(*payloads[:100], first=True)
        for start in range(100, len(payloads), 100):
            yield device.stream_request(*payloads[start : start + 100])

    verdicts = flush(device, requests())
    assert {v.batch_id for v in verdicts} == {batch_id(p) for p in payloads}
    assert len(verdicts) == len(payloads)
    assert {v.status for v in verdicts} == {APPLIED}
    # The stream's token is the next call's.
    assert device.send(payloads[7]).verdicts[0].status == APPLIED


def test_the_first_response_comes_at_once_with_the_token(device: Device, resolver: VerdictWriter) -> None:
    to_send: queue.Queue[ingest_pb2.SendStreamRequest | None] = queue.Queue()
    to_send.put(device.stream_request(first=True))
    with grpc.insecure_channel(device.address) as channel:
        responses = iter(device.stream(channel, iter(to_send.get, None)))
        first = next(responses)
        assert len(first.node_token) == 16
        assert not first.verdicts
        payload = device.payload()
        to_send.put(device.stream_request(payload))
        assert [v.batch_id for v in next(responses).verdicts] == [batch_id(payload)]
        to_send.put(None)
        assert list(responses) == []


def test_a_batch_in_parts(device: Device, resolver: VerdictWriter, rig: IngestRig) -> None:
    """Larger than any message: it goes through whole, with what travels beside it taken from its first part."""
    resolver.paused.set()

    def enlarge(batch: batch_pb2.DbMutationBatch) -> None:
        batch.mutations[0].rows[0].values[1].string_value = "x" * (3 * limits.MAX_REQUEST_BYTES)

    large, before, after = device.payload(change=enlarge), device.payload(), device.payload()
    size = limits.MAX_REQUEST_BYTES - 100_000
    parts = [large[start : start + size] for start in range(0, len(large), size)]
    assert len(parts) >= 4

    def requests() -> Requests:
        yield device.stream_request(
            before, batch_pb2.Envelope(payload=parts[0], basis=5, payload_incomplete=True), first=True
        )
        for part in parts[1:-1]:
            yield device.stream_request(batch_pb2.Envelope(payload=part, payload_incomplete=True))
        yield device.stream_request(parts[-1], after)

    timer = threading.Timer(1.0, resolver.paused.clear)
    timer.start()
    verdicts = flush(device, requests())
    timer.join()
    assert {v.batch_id: v.status for v in verdicts} == {
        batch_id(payload): APPLIED for payload in (before, large, after)
    }
    # The whole has the same bytes as any other way of sending it.
    assert device.send(device.payload(batch_id(large))).verdicts[0].reason == errors_pb2.REASON_ID_REUSED


def test_a_batch_above_the_limit_is_refused_for_itself_alone(device: Device, resolver: VerdictWriter) -> None:
    start, other = device.payload(), device.payload()
    part = bytes(limits.MAX_REQUEST_BYTES - 10_000)
    count = limits.MAX_BATCH_BYTES // len(part) + 1

    def requests() -> Requests:
        yield device.stream_request(batch_pb2.Envelope(payload=start, payload_incomplete=True), first=True)
        for _ in range(count):
            yield device.stream_request(batch_pb2.Envelope(payload=part, payload_incomplete=True))
        yield device.stream_request(b"the end", other)

    verdicts = {v.batch_id: v for v in flush(device, requests(), 60)}
    assert verdicts[batch_id(other)].status == APPLIED
    assert verdicts[batch_id(start)].reason == errors_pb2.REASON_LIMIT_EXCEEDED


@pytest.mark.parametrize("case", ["nothing", "parts at the end", "parts inside", "another database"])
def test_a_stream_that_is_not_valid_fails_with_its_reason(device: Device, resolver: VerdictWriter, case: str) -> None:
    payload = device.payload()
    incomplete = batch_pb2.Envelope(payload=device.payload()[:20], payload_incomplete=True)

    def requests() -> Requests:
        if case == "nothing":
            return
        yield device.stream_request(payload, first=True)
        if case == "parts at the end":
            yield device.stream_request(incomplete)
        elif case == "parts inside":
            yield device.stream_request(incomplete, payload)
        else:
            yield ingest_pb2.SendStreamRequest(db_name="another")

    with pytest.raises(FailedCallError) as caught:
        flush(device, requests())
    assert caught.value.reason == "INVALID_REQUEST"
    if case != "nothing":
        assert device.send(payload).verdicts[0].status == APPLIED


def test_what_has_no_place_is_answered_in_a_stream_as_well(device: Device, resolver: VerdictWriter) -> None:
    payload = device.payload()
    other = device.payload(batch_id(payload))
    verdicts = flush(device, iter([device.stream_request(payload, b"\xff", payload, other, first=True)]))
    assert sorted((v.batch_id, v.reason) for v in verdicts) == sorted(
        [
            (batch_id(payload), 0),
            ("", int(errors_pb2.REASON_MALFORMED)),
            (batch_id(payload), int(errors_pb2.REASON_ID_REUSED)),
        ]
    )


def test_other_content_of_an_id_that_the_stream_waits_for(device: Device, resolver: VerdictWriter) -> None:
    """Both verdicts come: of the first content, and of the reuse."""
    resolver.paused.set()
    payload = device.payload()
    to_send: queue.Queue[ingest_pb2.SendStreamRequest | None] = queue.Queue()
    to_send.put(device.stream_request(payload, first=True))
    to_send.put(device.stream_request(device.payload(batch_id(payload))))
    to_send.put(None)
    with grpc.insecure_channel(device.address) as channel:
        responses = iter(device.stream(channel, iter(to_send.get, None)))
        next(responses)
        (reuse,) = next(responses).verdicts
        assert reuse.reason == errors_pb2.REASON_ID_REUSED
        resolver.paused.clear()
        (verdict,) = next(responses).verdicts
        assert verdict.status == APPLIED
        assert list(responses) == []


def test_at_the_deadline_the_rest_is_pending(device: Device, resolver: VerdictWriter) -> None:
    resolver.paused.set()
    payloads = [device.payload() for _ in range(3)]
    verdicts = flush(device, iter([device.stream_request(*payloads, first=True)]), timeout_s=1.0)
    assert [(v.batch_id, v.status) for v in verdicts] == [(batch_id(p), PENDING) for p in payloads]


def test_a_stream_checks_its_token(device: Device, resolver: VerdictWriter) -> None:
    device.send(device.payload())
    device.token = bytes(16)
    with pytest.raises(FailedCallError) as caught:
        flush(device, iter([device.stream_request(device.payload(), first=True)]))
    assert caught.value.reason == "NODE_FORKED"


@pytest.mark.parametrize("named", ["first request", "later request"])
def test_a_stream_whose_first_answer_was_lost_is_proved_by_a_batch_of_it(
    device: Device, resolver: VerdictWriter, named: str
) -> None:
    device.send(device.payload())
    token = device.token
    early, late = device.payload(), device.payload()
    flush(device, iter([device.stream_request(early, first=True), device.stream_request(late)]))
    device.token = token
    again = early if named == "first request" else late
    assert device.send(device.payload(), unanswered=[batch_id(again)]).verdicts[0].status == APPLIED


@pytest.mark.slow
def test_a_stream_without_a_first_request_ends(module_url: str, tmp_path: Path, device: Device) -> None:
    hold: queue.Queue[ingest_pb2.SendStreamRequest | None] = queue.Queue()
    with IngestRig(module_url, tmp_path, environment={"ANABRANCH_FIRST_REQUEST_MS": "200"}) as rig:
        with grpc.insecure_channel(rig.addresses[0]) as channel, pytest.raises(grpc.RpcError) as caught:
            next(device.stream(channel, iter(hold.get, None), 30))
        hold.put(None)
    found = failed(caught.value)
    assert (found.reason, found.details) == (
        "INVALID_REQUEST",
        "the stream's first request did not come within 0.2 s",
    )


@pytest.mark.slow
def test_a_stream_that_is_too_fast_is_held_back(module_url: str, tmp_path: Path, db_name: str, device: Device) -> None:
    """Without verdicts only the window is read, however much the client has to send; nothing is lost when they come."""
    window, total = 200, 2_000
    environment = {"ANABRANCH_STREAM_WINDOW_BATCHES": str(window)}
    title = "x" * 20_000

    def enlarge(batch: batch_pb2.DbMutationBatch) -> None:
        batch.mutations[0].rows[0].values[1].string_value = title

    taken = 0

    def requests() -> Requests:
        nonlocal taken
        yield device.stream_request(first=True)
        for _ in range(total // 100):
            yield device.stream_request(*[device.payload(change=enlarge) for _ in range(100)])
            taken += 100

    with IngestRig(module_url, tmp_path, environment=environment) as rig:
        device.address = rig.addresses[0]
        verdicts: list[verdict_pb2.Verdict] = []
        resolver = VerdictWriter(module_url)
        resolver.paused.set()
        with resolver, grpc.insecure_channel(device.address) as channel:
            responses = iter(device.stream(channel, requests(), 60))
            next(responses)
            settled_at = taken
            quiet_since = time.monotonic()
            deadline = time.monotonic() + 30
            while taken < window or time.monotonic() - quiet_since < 1.0:
                assert time.monotonic() < deadline, "never held back, or held back too early"
                if taken != settled_at:
                    settled_at, quiet_since = taken, time.monotonic()
                time.sleep(0.01)
            # The batches in gRPC's own buffers come on top of the window: 100 batches here are two megabytes.
            assert settled_at <= window + 600
            resolver.paused.clear()
            for response in responses:
                verdicts.extend(response.verdicts)
    assert len(verdicts) == total
    assert {v.status for v in verdicts} == {APPLIED}
    assert len({v.batch_id for v in verdicts}) == total


def test_ids_of_a_long_stream_do_not_pile_up_in_its_node(
    rig: IngestRig, device: Device, resolver: VerdictWriter
) -> None:
    def requests() -> Requests:
        yield device.stream_request(first=True)
        for _ in range(25):
            yield device.stream_request(*[device.payload() for _ in range(100)])

    assert len(flush(device, requests())) == 2_500
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        row = conn.execute(
            "select cardinality(last_call) from anabranch.nodes where node_id = %s", (device.node_id,)
        ).fetchone()
    assert row == (1_000,)


def test_a_stream_left_by_its_client_leaves_nothing_behind(
    rig: IngestRig, device: Device, resolver: VerdictWriter
) -> None:
    resolver.paused.set()
    payload = device.payload()
    with grpc.insecure_channel(device.address) as channel:
        to_send: queue.Queue[ingest_pb2.SendStreamRequest | None] = queue.Queue()
        to_send.put(device.stream_request(payload, first=True))
        responses = device.stream(channel, iter(to_send.get, None))
        device.token = next(iter(responses)).node_token
        responses.cancel()
        to_send.put(None)
    resolver.paused.clear()
    assert device.send(payload).verdicts[0].status == APPLIED
    assert "Task exception was never retrieved" not in rig.log()


@pytest.mark.slow
def test_streams_that_hold_too_many_bytes_are_told_to_come_later(
    module_url: str, tmp_path: Path, device: Device, new_device: Devices, resolver: VerdictWriter
) -> None:
    """Payloads in parts count while they are incomplete, and no longer when their stream has gone."""
    part = batch_pb2.Envelope(payload=device.payload() + bytes(3_000_000), payload_incomplete=True)
    with IngestRig(module_url, tmp_path, environment={"ANABRANCH_MEMORY_MAX_BYTES": "12500000"}) as rig:
        device.address = rig.addresses[0]
        other = new_device(address=rig.addresses[0])
        hold: queue.Queue[ingest_pb2.SendStreamRequest | None] = queue.Queue()
        hold.put(device.stream_request(part, first=True))
        hold.put(device.stream_request(part))
        hold.put(device.stream_request(part))
        with grpc.insecure_channel(device.address) as channel:
            responses = device.stream(channel, iter(hold.get, None))
            next(iter(responses))
            deadline = time.monotonic() + 10
            reason = ""
            while reason != "OVERLOADED" and time.monotonic() < deadline:
                try:
                    other.send(bytes(3_900_000))
                except FailedCallError as error:
                    reason = error.reason
            assert reason == "OVERLOADED"
            responses.cancel()
            hold.put(None)
        status = -1
        while status != APPLIED and time.monotonic() < deadline:
            with contextlib.suppress(FailedCallError):
                status = other.send(other.payload(), bytes(3_900_000)).verdicts[0].status
        assert status == APPLIED


@pytest.mark.slow
def test_a_payload_that_came_in_parts_no_longer_counts_when_it_is_appended(
    module_url: str, tmp_path: Path, device: Device, new_device: Devices, resolver: VerdictWriter
) -> None:
    def enlarge(batch: batch_pb2.DbMutationBatch) -> None:
        batch.mutations[0].rows[0].values[1].string_value = "x" * 9_000_000

    large = device.payload(change=enlarge)
    parts = [large[start : start + 3_500_000] for start in range(0, len(large), 3_500_000)]
    with IngestRig(module_url, tmp_path, environment={"ANABRANCH_MEMORY_MAX_BYTES": "12500000"}) as rig:
        device.address = rig.addresses[0]
        other = new_device(address=rig.addresses[0])
        to_send: queue.Queue[ingest_pb2.SendStreamRequest | None] = queue.Queue()
        to_send.put(device.stream_request(batch_pb2.Envelope(payload=parts[0], payload_incomplete=True), first=True))
        to_send.put(device.stream_request(batch_pb2.Envelope(payload=parts[1], payload_incomplete=True)))
        to_send.put(device.stream_request(parts[2]))
        with grpc.insecure_channel(device.address) as channel:
            responses = iter(device.stream(channel, iter(to_send.get, None)))
            next(responses)
            assert [v.batch_id for v in next(responses).verdicts] == [batch_id(large)]
            # The next request is only read when the one before is done with.
            after = device.payload()
            to_send.put(device.stream_request(after))
            assert [v.batch_id for v in next(responses).verdicts] == [batch_id(after)]
            other.send(bytes(3_900_000))
            to_send.put(None)
