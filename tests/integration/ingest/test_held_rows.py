"""A group commit holds rows of nodes and batches until its end; so may anybody. That holds up no other call."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import psycopg
import pytest

from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import Device, FailedCallError, IngestRig, batch_id
from anabranch.testkit.verdict_writer import VerdictWriter
from anabranch.v1 import ingest_pb2, verdict_pb2

APPLIED = verdict_pb2.VERDICT_STATUS_APPLIED
PENDING = verdict_pb2.VERDICT_STATUS_PENDING
Devices = Callable[..., Device]


@contextlib.contextmanager
def holding(url: str, statement: str, *parameters: object) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has changed rows and is not committed; it is rolled back at the end."""
    with connect(url, application_name="test") as conn:
        assert conn.execute(statement, parameters).rowcount > 0
        yield conn
        conn.rollback()


def holding_node(rig: IngestRig, device: Device) -> contextlib.AbstractContextManager[psycopg.Connection[Any]]:
    return holding(rig.url, "update anabranch.nodes set last_accepted = 'x' where node_id = %s", device.node_id)


def in_background(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except FailedCallError as error:
            outcome.append(error.reason)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_a_call_waits_for_its_own_node_and_others_do_not(
    rig: IngestRig, new_device: Devices, resolver: VerdictWriter
) -> None:
    held, others = new_device(), [new_device() for _ in range(3)]
    held.send(held.payload())
    payload = held.payload()
    with holding_node(rig, held):
        thread, outcome = in_background(lambda: held.send(payload).verdicts[0].status)
        started = time.monotonic()
        for one in others * 3:
            assert one.send(one.payload()).verdicts[0].status == APPLIED
        assert time.monotonic() - started < 2.5, "held rows are waited for no longer than this by Postgres itself"
        assert not outcome
    thread.join(10)
    assert outcome == [APPLIED]


def test_a_call_in_the_name_of_anothers_node_is_refused_and_never_locks_its_row(
    rig: IngestRig, new_device: Devices, resolver: VerdictWriter
) -> None:
    """Locked, it would hold up the groups and the calls of that node as often as a stranger likes."""
    owner, stranger = new_device(), new_device()
    owner.send(owner.payload())
    stranger.node_id = owner.node_id
    with holding_node(rig, owner), pytest.raises(FailedCallError) as caught:
        stranger.send(stranger.payload(), token=bytes(len(owner.token)), timeout_s=3.0)
    assert caught.value.reason == "WRONG_PRINCIPAL"


@pytest.mark.slow
def test_a_node_that_stays_held_is_given_up_at_the_deadline(
    rig: IngestRig, device: Device, resolver: VerdictWriter
) -> None:
    device.send(device.payload())
    payload = device.payload()
    with holding_node(rig, device), pytest.raises(FailedCallError) as caught:
        device.send(payload, timeout_s=1)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
    # Nothing was done, and the token is still the current one.
    assert device.send(payload).verdicts[0].status == APPLIED


def test_a_lost_answers_call_waits_for_its_own_node_as_well(
    rig: IngestRig, device: Device, resolver: VerdictWriter
) -> None:
    device.send(device.payload())
    lost = device.payload()
    device.send(lost, keep_token=True)
    with holding_node(rig, device):
        thread, outcome = in_background(lambda: device.send(lost).verdicts[0].status)
        time.sleep(0.3)
        assert not outcome
    thread.join(10)
    assert outcome == [APPLIED]


@pytest.mark.slow
def test_a_batch_that_is_being_decided_is_waited_for_by_its_own_call_only(rig: IngestRig, new_device: Devices) -> None:
    sender, other = new_device(), new_device()
    payload = sender.payload()
    assert sender.send(payload, timeout_s=1.0).verdicts[0].status == PENDING
    with holding(rig.url, "delete from anabranch.inbox where batch_id = %s", batch_id(payload)):
        thread, outcome = in_background(lambda: sender.send(payload, timeout_s=1.5).verdicts[0].status)
        # Appended, or it would have failed: Postgres itself waits longer for a lock than this call.
        assert other.send(other.payload(), timeout_s=1.0).verdicts[0].status == PENDING
        thread.join(10)
    assert outcome == [PENDING]
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        conn.execute("delete from anabranch.inbox")


def test_a_stream_waits_for_its_own_node(rig: IngestRig, device: Device, resolver: VerdictWriter) -> None:
    payloads = [device.payload() for _ in range(2)]

    def requests() -> Iterator[ingest_pb2.SendStreamRequest]:
        yield device.stream_request(first=True)
        opened.wait(10)
        yield device.stream_request(*payloads)

    opened = threading.Event()
    with grpc.insecure_channel(device.address) as channel:
        responses = iter(device.stream(channel, requests()))
        next(responses)
        with holding_node(rig, device):
            opened.set()
            # Its batches are in, though the node's row is not to be had.
            (first, *_) = [next(responses).verdicts[0]]
            assert first.status == APPLIED
        list(responses)
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        row = conn.execute("select last_call from anabranch.nodes where node_id = %s", (device.node_id,)).fetchone()
    assert row == ([batch_id(p) for p in payloads],)


@pytest.mark.slow
def test_nodes_that_are_written_all_the_time_lose_no_call(
    rig: IngestRig, new_device: Devices, resolver: VerdictWriter
) -> None:
    """Like many group commits at once: every call is let in, none is taken for a copy, each batch is there once."""
    devices = [new_device() for _ in range(4)]
    for one in devices:
        one.send(one.payload())
    ids = [one.node_id for one in devices]
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        with connect(rig.url, application_name="test", autocommit=True) as conn:
            while not stop.is_set():
                conn.execute(
                    "update anabranch.nodes set last_accepted = %s where node_id = any(%s)", (str(written), ids)
                )
                written += 1

    outcomes: list[object] = []

    def send(one: Device) -> None:
        for _ in range(40):
            try:
                outcomes.append(one.send(one.payload()).verdicts[0].status)
            except FailedCallError as error:
                outcomes.append(error.reason)

    writer = threading.Thread(target=write)
    senders = [threading.Thread(target=send, args=(one,)) for one in devices]
    writer.start()
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join(60)
    stop.set()
    writer.join(10)
    assert outcomes == [APPLIED] * 160
    assert written > 50
