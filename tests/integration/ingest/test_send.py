"""Send: batches go in once, whatever they are, and come back with verdicts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import grpc
import pytest
from ulid import ULID

from anabranch import limits
from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import Device, FailedCallError, IngestRig, batch_id, envelope, failed
from anabranch.testkit.verdict_writer import VerdictWriter
from anabranch.v1 import batch_pb2, errors_pb2, ingest_pb2, ingest_pb2_grpc, verdict_pb2

APPLIED = verdict_pb2.VERDICT_STATUS_APPLIED
REJECTED = verdict_pb2.VERDICT_STATUS_REJECTED
PENDING = verdict_pb2.VERDICT_STATUS_PENDING
Devices = Callable[..., Device]


def count(url: str, statement: str, *parameters: object) -> int:
    with connect(url, application_name="test", autocommit=True) as conn:
        row = conn.execute(statement, parameters).fetchone()
        assert row is not None
        return int(row[0])


def test_a_batch_gets_its_verdict(device: Device, resolver: VerdictWriter) -> None:
    payload = device.payload()
    response = device.send(payload)
    (verdict,) = response.verdicts
    assert verdict.batch_id == batch_id(payload)
    assert verdict.status == APPLIED
    assert verdict.position == 1
    assert len(response.node_token) == 16
    state = response.state
    assert state.settled.epoch
    assert len(state.settled.token) == 32
    assert state.schema_version == 1
    assert abs(state.server_time_ms - time.time() * 1000) < 60_000


def test_verdicts_come_in_the_order_of_the_envelopes(device: Device, resolver: VerdictWriter) -> None:
    payloads = [device.payload() for _ in range(200)]
    payloads.reverse()
    response = device.send(*payloads)
    assert [v.batch_id for v in response.verdicts] == [batch_id(p) for p in payloads]
    assert {v.status for v in response.verdicts} == {APPLIED}


def test_promise_3_the_same_batch_again_gets_the_same_verdict(device: Device, resolver: VerdictWriter) -> None:
    payload = device.payload()
    first = device.send(payload).verdicts[0]
    for _ in range(3):
        assert device.send(payload).verdicts[0] == first


def test_a_batch_that_waits_is_waited_for_again(device: Device, resolver: VerdictWriter, rig: IngestRig) -> None:
    resolver.paused.set()
    payload = device.payload()
    assert device.send(payload, timeout_s=1.0).verdicts[0].status == PENDING
    timer = threading.Timer(0.3, resolver.paused.clear)
    timer.start()
    assert device.send(payload).verdicts[0].status == APPLIED
    timer.join()
    stored = count(rig.url, "select count(*) from anabranch.batches where batch_id = %s", batch_id(payload))
    assert stored == 1


@pytest.mark.parametrize("decided", [True, False])
def test_promise_3_other_content_under_a_known_id_is_a_reuse(
    device: Device, resolver: VerdictWriter, decided: bool
) -> None:
    if not decided:
        resolver.paused.set()
    payload = device.payload()
    first = device.send(payload, timeout_s=10 if decided else 1.0).verdicts[0]
    other = device.send(device.payload(batch_id(payload))).verdicts[0]
    assert (other.status, other.reason) == (REJECTED, errors_pb2.REASON_ID_REUSED)
    assert other.batch_id == batch_id(payload)
    assert other.position == 0
    resolver.paused.clear()
    # The id keeps the verdict of its first content.
    again = device.send(payload).verdicts[0]
    assert again.status == APPLIED
    if decided:
        assert again == first


@pytest.mark.parametrize("decided", [True, False])
def test_another_principal_learns_nothing_of_a_known_id(
    new_device: Devices, resolver: VerdictWriter, decided: bool
) -> None:
    owner, stranger = new_device(), new_device()
    if not decided:
        resolver.paused.set()
    payload = owner.payload()
    owner.send(payload, timeout_s=10 if decided else 1.0)
    same_bytes = stranger.send(payload).verdicts[0]
    other_bytes = stranger.send(stranger.payload(batch_id(payload))).verdicts[0]
    assert same_bytes == other_bytes
    assert same_bytes.reason == errors_pb2.REASON_ID_REUSED


def test_an_id_twice_in_one_call(device: Device, resolver: VerdictWriter) -> None:
    payload = device.payload()
    other = device.payload(batch_id(payload))
    verdicts = device.send(payload, payload, other, payload).verdicts
    assert [v.status for v in verdicts] == [APPLIED, APPLIED, REJECTED, APPLIED]
    assert verdicts[2].reason == errors_pb2.REASON_ID_REUSED
    assert verdicts[0] == verdicts[1] == verdicts[3]


def test_the_same_batch_in_many_calls_at_once_is_decided_once(
    device: Device, new_device: Devices, resolver: VerdictWriter, rig: IngestRig
) -> None:
    """Many nodes of one principal send the same bytes at the same time: one of them brings it."""
    devices = [Device(device.address, device.key, device.db_name) for _ in range(6)]
    payload = device.payload()
    verdicts: list[verdict_pb2.Verdict] = []
    barrier = threading.Barrier(len(devices))

    def send(one: Device) -> None:
        barrier.wait(10)
        verdicts.append(one.send(payload).verdicts[0])

    threads = [threading.Thread(target=send, args=(one,)) for one in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(verdicts) == len(devices)
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert verdicts[0].status == APPLIED


def test_what_is_not_decided_at_the_deadline_is_pending(device: Device, resolver: VerdictWriter) -> None:
    resolver.paused.set()
    payload = device.payload()
    started = time.monotonic()
    response = device.send(payload, timeout_s=1.0)
    assert 0.7 < time.monotonic() - started < 1.0
    (verdict,) = response.verdicts
    assert (verdict.status, verdict.batch_id) == (PENDING, batch_id(payload))
    assert verdict.position == 0
    assert len(response.node_token) == 16
    resolver.paused.clear()
    assert device.send(payload).verdicts[0].status == APPLIED


def test_a_refused_batch_is_stored_like_any_other(device: Device, resolver: VerdictWriter, rig: IngestRig) -> None:
    good = device.payload()
    bad = device.payload(change=lambda batch: batch.ClearField("mutations"))
    verdicts = device.send(bad, good).verdicts
    assert (verdicts[0].status, verdicts[0].reason) == (REJECTED, errors_pb2.REASON_EMPTY)
    assert verdicts[0].message == "the batch has no mutation"
    assert verdicts[0].position == 1
    assert verdicts[1].status == APPLIED
    assert device.send(bad).verdicts[0] == verdicts[0]
    assert count(rig.url, "select reason from anabranch.batches where batch_id = %s", batch_id(bad)) == int(
        errors_pb2.REASON_EMPTY
    )


def test_a_payload_without_an_id_is_answered_in_its_place(
    device: Device, resolver: VerdictWriter, rig: IngestRig
) -> None:
    before, after = device.payload(), device.payload()
    verdicts = device.send(before, b"\xff\xff", after).verdicts
    assert [v.status for v in verdicts] == [APPLIED, REJECTED, APPLIED]
    assert (verdicts[1].batch_id, verdicts[1].reason) == ("", errors_pb2.REASON_MALFORMED)


def test_expired_comes_after_the_look_up(rig: IngestRig, device: Device, resolver: VerdictWriter) -> None:
    """A batch decided in time keeps its verdict; one that was never sent is too old."""
    now_ms = int(time.time() * 1000)
    day_ms = 86_400_000
    known = device.payload(str(ULID.from_timestamp((now_ms - 29 * day_ms) / 1000)))
    late = device.payload(str(ULID.from_timestamp((now_ms - 29 * day_ms) / 1000)))
    applied = device.send(known).verdicts[0]
    assert applied.status == APPLIED
    try:
        rig.set_clock_offset(2 * day_ms)
        assert device.send(known).verdicts[0] == applied
        verdict = device.send(late).verdicts[0]
    finally:
        rig.set_clock_offset(0)
    assert (verdict.status, verdict.reason) == (REJECTED, errors_pb2.REASON_EXPIRED)
    # It was stored, and stays what it is.
    assert device.send(late).verdicts[0] == verdict


def test_what_travels_beside_a_payload_is_kept(rig: IngestRig, device: Device) -> None:
    first, second = device.payload(), device.payload()
    beside = batch_pb2.Envelope(payload=second, basis=7, prev=batch_id(first))
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    device.send(first, beside, timeout_s=1.0, metadata=(("traceparent", trace),))
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        rows = conn.execute(
            "select batch_id, node_id, basis, prev, payload, traceparent, refusal, refusal_message, arrived_ms"
            " from anabranch.inbox where batch_id = any(%s) order by arrival",
            ([batch_id(first), batch_id(second)],),
        ).fetchall()
        conn.execute("delete from anabranch.inbox")
    assert [row[:8] for row in rows] == [
        (batch_id(first), device.node_id, 0, None, first, trace, None, None),
        (batch_id(second), device.node_id, 7, batch_id(first), second, trace, None, None),
    ]
    assert abs(rows[0][8] - time.time() * 1000) < 60_000


def test_a_batch_belongs_to_the_node_that_sends_it(rig: IngestRig, new_device: Devices) -> None:
    sender, maker = new_device(), new_device()
    payload = maker.payload()
    sender.send(payload, timeout_s=1.0)
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        rows = conn.execute("delete from anabranch.inbox returning node_id").fetchall()
    assert rows == [(sender.node_id,)]


def test_acknowledged_goes_up_only_and_never_beyond_the_head(
    rig: IngestRig, device: Device, resolver: VerdictWriter
) -> None:
    def acknowledged(value: int) -> int:
        device.acknowledged = value
        device.send(device.payload())
        return count(rig.url, "select acknowledged from anabranch.nodes where node_id = %s", device.node_id)

    device.acknowledged = 1
    head = device.send(*[device.payload() for _ in range(3)]).verdicts[0].position
    deadline = time.monotonic() + 10
    while device.send().state.settled.server_timestamp_ms < head:
        assert time.monotonic() < deadline
    assert acknowledged(1) == 1
    assert acknowledged(2) == 2
    assert acknowledged(1) == 2
    assert head <= acknowledged(2**60) < 1000


def test_a_node_that_has_read_nothing_has_acknowledged_what_it_is_answered(
    rig: IngestRig, device: Device, resolver: VerdictWriter
) -> None:
    """It would hold the log back for ever, and needs nothing of it."""
    stored = "select acknowledged from anabranch.nodes where node_id = %s"
    head = device.send(*[device.payload() for _ in range(3)]).verdicts[0].position
    settled = device.send(device.payload()).state.settled.server_timestamp_ms
    assert device.acknowledged == 0
    assert head <= count(rig.url, stored, device.node_id) <= settled
    assert head <= device.send().state.settled.server_timestamp_ms


BAD_CALLS: list[tuple[str, Callable[[ingest_pb2.SendRequest], object], grpc.StatusCode, str]] = [
    ("no node", lambda r: r.node_state.ClearField("node"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    (
        "node id in lower case",
        lambda r: setattr(r.node_state.node, "id", r.node_state.node.id.lower()),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
    ),
    (
        "node name too long",
        lambda r: setattr(r.node_state.node, "name", "x" * (limits.MAX_NODE_NAME_BYTES + 1)),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
    ),
    (
        "NUL in the node's name",
        lambda r: setattr(r.node_state.node, "name", "a\0b"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
    ),
    (
        "a token of another form",
        lambda r: setattr(r, "node_token", b"x"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
    ),
    (
        "acknowledged below zero",
        lambda r: setattr(r.node_state, "acknowledged", -1),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
    ),
    (
        "too many unanswered ids",
        lambda r: r.unanswered_batch_ids.extend(["x"] * (limits.MAX_UNANSWERED_IDS + 1)),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
    ),
    (
        "a payload in parts",
        lambda r: r.envelopes.add(payload=b"x", payload_incomplete=True),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
    ),
    (
        "too many envelopes",
        lambda r: [r.envelopes.add() for _ in range(limits.MAX_REQUEST_ENVELOPES + 1)],
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "MESSAGE_TOO_LARGE",
    ),
    (
        "too many bytes",
        lambda r: r.envelopes.add(payload=bytes(limits.MAX_REQUEST_BYTES)),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "MESSAGE_TOO_LARGE",
    ),
    ("no such database", lambda r: setattr(r, "db_name", "nowhere"), grpc.StatusCode.NOT_FOUND, "UNKNOWN_DATABASE"),
    ("no database", lambda r: setattr(r, "db_name", ""), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
]


@pytest.mark.parametrize(("spoil", "code", "reason"), [c[1:] for c in BAD_CALLS], ids=[c[0] for c in BAD_CALLS])
def test_a_call_that_is_not_valid_fails_with_its_reason(
    device: Device, spoil: Callable[[ingest_pb2.SendRequest], object], code: grpc.StatusCode, reason: str
) -> None:
    request = device.request([])
    spoil(request)
    with grpc.insecure_channel(device.address) as channel, pytest.raises(grpc.RpcError) as caught:
        ingest_pb2_grpc.IngestServiceStub(channel).Send(request, timeout=10, metadata=device.credentials())
    found = failed(caught.value)
    assert (found.code, found.reason) == (code, reason), found.details


def test_a_key_of_another_database_opens_nothing(rig: IngestRig, device: Device, db_name: str) -> None:
    other = f"{db_name}x"
    rig.new_database(other)
    stranger = Device(device.address, rig.new_key("someone", other), db_name)
    with pytest.raises(FailedCallError) as caught:
        stranger.send(stranger.payload())
    assert caught.value.reason == "PERMISSION_DENIED"


def test_a_database_made_a_moment_ago_is_known(rig: IngestRig, device: Device, resolver: VerdictWriter) -> None:
    name = f"n{str(ULID()).lower()}"
    fresh = Device(device.address, device.key, name)
    rig.new_database(name)
    deadline = time.monotonic() + 5
    found = "UNKNOWN_DATABASE"
    while found == "UNKNOWN_DATABASE" and time.monotonic() < deadline:
        try:
            found = verdict_pb2.VerdictStatus.Name(fresh.send(fresh.payload()).verdicts[0].status)
        except FailedCallError as error:
            found = error.reason
    assert found == "VERDICT_STATUS_APPLIED"


def test_an_answer_stays_below_what_a_channel_takes(rig: IngestRig, device: Device) -> None:
    """Large verdicts come over several calls; a single one that is too large comes without the server's rows."""
    payloads = [device.payload() for _ in range(6)]
    device.send(*payloads, timeout_s=1.0)
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        for number, payload in enumerate(payloads):
            verdict = verdict_pb2.Verdict(
                batch_id=batch_id(payload), status=REJECTED, reason=errors_pb2.REASON_ROW_EXISTS
            )
            mutation = verdict.mutations.add(table="todo")
            mutation.server_row.columns.append("body")
            mutation.server_row.values.add(string_value="x" * (5_000_000 if number == 0 else 900_000))
            conn.execute(
                "with gone as (delete from anabranch.inbox where batch_id = %s returning *)"
                " insert into anabranch.batches select database_id, batch_id, node_id, principal, payload_sha256,"
                " 2, 1, 1, 1, %s, 1 from gone",
                (batch_id(payload), verdict.SerializeToString()),
            )
    verdicts = device.send(*payloads).verdicts
    assert verdicts[0].status == REJECTED
    assert verdicts[0].mutations[0].table == "todo"
    assert not verdicts[0].mutations[0].HasField("server_row")
    assert [v.status for v in verdicts[1:]] == [REJECTED, REJECTED, REJECTED, PENDING, PENDING]
    assert len(verdicts[1].mutations[0].server_row.values[0].string_value) == 900_000
    assert [v.status for v in device.send(*payloads[4:]).verdicts] == [REJECTED, REJECTED]


def test_envelopes_without_a_payload_are_malformed(device: Device, resolver: VerdictWriter) -> None:
    (verdict,) = device.send(envelope(b"")).verdicts
    assert (verdict.status, verdict.reason) == (REJECTED, errors_pb2.REASON_INVALID_ID)
