"""Whose node: what a call may do with which token, over a real service."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc
import pytest
from ulid import ULID

from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import Device, FailedCallError, IngestRig, batch_id
from anabranch.v1 import verdict_pb2

APPLIED = verdict_pb2.VERDICT_STATUS_APPLIED
Devices = Callable[..., Device]

pytestmark = pytest.mark.usefixtures("resolver")


def refused(device: Device, *payloads: bytes, **how: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(FailedCallError) as caught:
        device.send(*payloads, **how)  # type: ignore[arg-type]
    return caught.value.code, caught.value.reason


FORKED = (grpc.StatusCode.FAILED_PRECONDITION, "NODE_FORKED")


def test_each_answer_brings_the_token_of_the_next_call(device: Device) -> None:
    tokens = set()
    for _ in range(5):
        device.send(device.payload())
        tokens.add(device.token)
    assert len(tokens) == 5


def test_a_node_belongs_to_who_used_it_first(new_device: Devices) -> None:
    owner, thief = new_device(), new_device()
    owner.send(owner.payload())
    thief.node_id = owner.node_id
    wrong = (grpc.StatusCode.PERMISSION_DENIED, "WRONG_PRINCIPAL")
    assert refused(thief, thief.payload()) == wrong
    assert refused(thief, thief.payload(), token=owner.token) == wrong
    assert owner.send(owner.payload()).verdicts[0].status == APPLIED


def test_a_refused_call_appends_nothing(rig: IngestRig, new_device: Devices) -> None:
    owner, thief = new_device(), new_device()
    owner.send(owner.payload())
    thief.node_id = owner.node_id
    payload = thief.payload()
    refused(thief, payload)
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        for table in ("inbox", "batches"):
            row = conn.execute(
                f"select count(*) from anabranch.{table} where batch_id = %s", (batch_id(payload),)
            ).fetchone()
            assert row == (0,)


def test_the_same_node_id_in_another_database_is_another_node(
    rig: IngestRig, new_device: Devices, db_name: str
) -> None:
    first, second = new_device(), new_device()
    rig.new_database(f"{db_name}y")
    second.node_id, second.db_name = first.node_id, f"{db_name}y"
    assert first.send(first.payload()).verdicts[0].status == APPLIED
    assert second.send(second.payload()).verdicts[0].status == APPLIED


@pytest.mark.parametrize("named", ["unanswered", "envelopes"])
def test_a_lost_answer_is_proved_by_naming_a_batch_of_its_call(device: Device, named: str) -> None:
    device.send(device.payload())
    lost = [device.payload(), device.payload()]
    device.send(*lost, keep_token=True)
    if named == "unanswered":
        response = device.send(device.payload(), unanswered=[batch_id(lost[1])])
    else:
        response = device.send(lost[0])
    assert response.verdicts[0].status == APPLIED
    # And again from there.
    assert device.send(device.payload()).verdicts[0].status == APPLIED


def test_several_answers_in_a_row_may_be_lost(device: Device) -> None:
    device.send(device.payload())
    sent: list[str] = []
    for _ in range(4):
        payload = device.payload()
        device.send(payload, keep_token=True, unanswered=sent)
        sent.append(batch_id(payload))
    assert device.send(device.payload(), unanswered=sent).verdicts[0].status == APPLIED


def test_a_repetition_that_comes_late_does_not_make_its_node_a_fork(device: Device) -> None:
    """The network holds a copy of a call back until its node has sent it again and got an answer."""
    device.send(device.payload())
    before = device.token
    payload = device.payload()
    device.send(payload, keep_token=True)
    answered = device.send(payload)
    assert answered.verdicts[0].status == APPLIED
    held = device.token
    assert held != before
    late = Device(device.address, device.key, device.db_name, device.node_id, before)
    assert late.send(payload).verdicts[0].status == APPLIED
    assert late.token == held, "it gets the token that its node has"
    assert device.send(device.payload()).verdicts[0].status == APPLIED


def test_the_answer_of_the_first_call_may_be_lost(device: Device) -> None:
    payload = device.payload()
    device.send(payload, keep_token=True)
    assert device.token == b""
    assert device.send(payload).verdicts[0].status == APPLIED
    assert device.send(device.payload()).verdicts[0].status == APPLIED


def test_an_empty_token_of_a_known_node_is_a_fork(device: Device) -> None:
    device.send(device.payload())
    assert refused(device, device.payload(), token=b"") == FORKED
    device.send(device.payload())
    assert refused(device, device.payload(), token=b"") == FORKED


def test_a_restored_device_is_told_apart(device: Device) -> None:
    """Two calls have gone since the copy was made: its token is older than the last."""
    device.send(device.payload())
    copy = Device(device.address, device.key, device.db_name, device.node_id, device.token)
    device.send(device.payload())
    named = device.payload()
    device.send(named)
    assert refused(copy, copy.payload()) == FORKED
    # Not even by naming: the answer that brought the current token was to another call than the copy's last.
    assert refused(copy, copy.payload(), unanswered=[batch_id(named)]) == FORKED


def test_of_a_device_and_its_copy_the_second_is_told(device: Device) -> None:
    device.send(device.payload())
    copy = Device(device.address, device.key, device.db_name, device.node_id, device.token)
    device.send(device.payload())
    assert refused(copy, copy.payload()) == FORKED
    # Its queue is not lost: a new node id takes it on.
    copy.node_id, copy.token = str(ULID()), b""
    assert copy.send(copy.payload()).verdicts[0].status == APPLIED


def test_a_token_never_given_is_a_fork(device: Device) -> None:
    device.send(device.payload())
    assert refused(device, device.payload(), token=bytes(16)) == FORKED


def test_a_call_without_batches_keeps_the_token(device: Device) -> None:
    first = device.send()
    assert len(first.node_token) == 16
    assert device.send().node_token == first.node_token
    # Its answer may be lost without harm, the first one's as well.
    device.token = b""
    assert len(device.send().node_token) == 16
    assert device.send(device.payload()).verdicts[0].status == APPLIED


def test_a_node_that_the_server_forgot_is_new_again(rig: IngestRig, device: Device) -> None:
    device.send(device.payload())
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        conn.execute("delete from anabranch.nodes where node_id = %s", (device.node_id,))
    assert device.send(device.payload()).verdicts[0].status == APPLIED
    assert device.send(device.payload()).verdicts[0].status == APPLIED


@pytest.mark.parametrize("token", [b"", b"0123456789abcdef"])
def test_a_node_that_has_only_read_gets_its_first_token(
    rig: IngestRig, new_device: Devices, db_name: str, token: bytes
) -> None:
    """The read side makes a node's row without a token, also where the node has one from before it was forgotten."""
    device = new_device("reader")
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        conn.execute(
            "insert into anabranch.nodes (database_id, node_id, name, principal, epoch, token, last_seen_ms)"
            " select id, %s, 'n', 'reader', epoch, '', 1 from anabranch.databases where name = %s",
            (device.node_id, db_name),
        )
    assert device.send(device.payload(), token=token).verdicts[0].status == APPLIED
    assert device.send(device.payload()).verdicts[0].status == APPLIED
    assert refused(device, device.payload(), token=b"") == FORKED


def test_after_a_rewind_any_token_is_taken_once(rig: IngestRig, device: Device, db_name: str) -> None:
    device.send(device.payload())
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        conn.execute("update anabranch.databases set epoch = 'another' where name = %s", (db_name,))
        conn.execute(
            "select pg_notify('anabranch_catalog', id::text) from anabranch.databases where name = %s", (db_name,)
        )
    # The service hears of it, and says so in its answers.
    for _ in range(200):
        if device.send().state.settled.epoch == "another":
            break
    else:
        pytest.fail("the new epoch was not noticed")
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        conn.execute(
            "update anabranch.nodes set epoch = 'lost', token = %s where node_id = %s", (bytes(16), device.node_id)
        )
    stale = b"0123456789abcdef"
    device.send(device.payload(), token=stale)
    assert refused(device, device.payload(), token=stale) == FORKED
    assert device.send(device.payload()).verdicts[0].status == APPLIED


def test_of_many_calls_at_once_with_one_token_one_is_let_in(device: Device) -> None:
    device.send(device.payload())
    token = device.token
    outcomes: list[str] = []
    barrier = threading.Barrier(5)

    def send() -> None:
        one = Device(device.address, device.key, device.db_name, device.node_id, token)
        payload = one.payload()
        barrier.wait(10)
        try:
            outcomes.append(verdict_pb2.VerdictStatus.Name(one.send(payload).verdicts[0].status))
        except FailedCallError as error:
            outcomes.append(error.reason)

    threads = [threading.Thread(target=send) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == ["NODE_FORKED"] * 4 + ["VERDICT_STATUS_APPLIED"]
