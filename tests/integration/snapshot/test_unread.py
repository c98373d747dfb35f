"""Subscribers and readers that take nothing hold a bounded number of bytes, and nobody else is sent away for them."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest
from tests.integration.snapshot.pulled import MIB, rows
from ulid import ULID

from anabranch.testkit import process_memory
from anabranch.testkit.ingest_rig import failed
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.snapshot_rig import SnapshotRig
from anabranch.testkit.waiting import until
from anabranch.v1 import change_pb2

STREAMS = 100
SHARE = 8 * MIB
MOST = 16 * MIB
PATIENCE_MS = 300
ROW = 900_000
"""Two of them are a group's page and its copy."""
FULL = SHARE // (2 * MIB)
"""Calls that use up a principal's share."""
BASE = 250_000
"""The bytes that a stream costs in any case, with a small page of its own."""
UNREAD = "anabranch_unread_bytes"


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {
        "ANABRANCH_UNREAD_MAX_BYTES": str(MOST),
        "ANABRANCH_UNREAD_MAX_BYTES_PER_PRINCIPAL": str(SHARE),
        "ANABRANCH_UNREAD_PATIENCE_MS": str(PATIENCE_MS),
        "ANABRANCH_PAGE_BYTES": str(MIB),
    }


@pytest.fixture
def greedy(place: Any) -> Reader:
    """A client that asks and takes nothing."""
    made: Reader = place.make_reader()
    return made


def ended(rig: SnapshotRig) -> float:
    """How many calls were ended for want of room."""
    return rig.metric("anabranch_calls_dropped_total", why="unread")


def reached(stream: Any, position: int) -> None:
    """Read a subscription up to a position."""
    for response in stream:
        if response.state.settled.server_timestamp_ms >= position:
            return


@pytest.mark.slow
@pytest.mark.skipif(not process_memory.KNOWN, reason="this machine does not report it")
def test_subscriptions_that_take_nothing_are_bounded_in_memory_and_others_stay(
    place: Any, writer: LogWriter, greedy: Reader, reader: Reader
) -> None:
    rig: SnapshotRig = place.rig
    head = [writer.insert("item", rows(1, ROW)) for _ in range(4)][-1]
    live = reader.subscribe()
    reached(live, head)
    pid = rig.children[0].pid
    assert pid is not None
    before = process_memory.has_bytes(pid)
    process_memory.forget_peak(pid)
    streams = [greedy.subscribe() for _ in range(STREAMS)]
    # On a busy machine some are ended before the last one has come.
    until(lambda: rig.metric("anabranch_open_streams") + ended(rig) > STREAMS, 30)
    until(lambda: rig.metric(UNREAD) >= FULL * 2 * ROW, 20)
    # A device that takes what it gets is served all the while.
    for _ in range(5):
        head = writer.insert("item", rows(1, ROW))
        reached(live, head)
        assert reader.get().page.groups
    assert rig.metric(UNREAD) < MOST
    assert process_memory.peak_bytes(pid) - before < MOST + STREAMS * BASE + 40 * MIB
    for stream in streams:
        stream.cancel()
    reached(live, writer.insert("item", rows(1)))
    live.cancel()
    until(lambda: rig.metric(UNREAD) == 0, 10, lambda: f"{rig.metric(UNREAD)} are not forgotten")


def of_one(place: Any, count: int) -> list[Reader]:
    """Readers of one principal, each with a connection of its own: unread streams use up what they have in common."""
    subject = f"user-{ULID()}"
    return [place.make_reader(subject=subject) for _ in range(count)]


@pytest.mark.slow
def test_the_slowest_subscriber_is_told_and_goes_on_by_paging(place: Any, writer: LogWriter) -> None:
    head = [writer.insert("item", rows(1, ROW)) for _ in range(4)][-1]
    slow, *readers, late = of_one(place, FULL + 1)
    slowest = slow.subscribe()
    until(lambda: place.rig.metric(UNREAD) > MIB, 10)
    others = [one.subscribe() for one in readers]
    until(lambda: place.rig.metric(UNREAD) >= FULL * 2 * ROW, 10)
    time.sleep(PATIENCE_MS / 1000)
    # One more that wants room.
    last = late.subscribe()
    next(last)
    got: list[change_pb2.SubscribeResponse] = []
    with pytest.raises(grpc.RpcError) as caught:
        got.extend(slowest)
    assert (failed(caught.value).reason, caught.value.code()) == ("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED)
    # It pages, and subscribes again.
    assert list(slow.pages())[-1].reached.server_timestamp_ms == head
    again = slow.subscribe(head)
    assert next(again).state.settled.server_timestamp_ms == head
    for stream in (again, last, *others):
        stream.cancel()


@pytest.mark.slow
def test_one_that_does_not_even_take_the_reason_is_dropped(place: Any, writer: LogWriter) -> None:
    rig: SnapshotRig = place.rig
    for _ in range(4):
        writer.insert("item", rows(1, ROW))
    until(lambda: rig.metric("anabranch_open_streams") == 0, 10)
    *readers, late = of_one(place, FULL + 1)
    streams = [one.subscribe() for one in readers]
    until(lambda: rig.metric(UNREAD) >= FULL * 2 * ROW, 10)
    time.sleep(PATIENCE_MS / 1000)
    last = late.subscribe()
    next(last)
    until(lambda: rig.metric(UNREAD) < (2 * FULL - 1) * ROW, 15, "the call is not dropped")
    codes = []
    for stream in streams:
        try:
            next(stream)
        except grpc.RpcError as error:
            codes.append(error.code())
    assert codes == [grpc.StatusCode.CANCELLED], "one is dropped, and a client tries again then"
    for stream in (last, *streams):
        stream.cancel()


@pytest.mark.slow
def test_pages_that_are_asked_for_and_not_taken_are_bounded_as_well(
    place: Any, writer: LogWriter, greedy: Reader, reader: Reader
) -> None:
    """gRPC itself reads a unary answer, as fast as its connection's window; so they are asked for as streams are."""
    rig: SnapshotRig = place.rig
    head = [writer.insert("item", rows(1, ROW)) for _ in range(4)][-1]
    ask = greedy.channel.unary_stream(
        "/anabranch.v1.ChangeService/Get",
        request_serializer=change_pb2.GetRequest.SerializeToString,
        response_deserializer=change_pb2.GetResponse.FromString,
    )
    request = change_pb2.GetRequest(db_name=place.name, max_bytes=2 * MIB)
    calls = [ask(request, metadata=greedy.credentials) for _ in range(STREAMS)]
    until(lambda: rig.metric(UNREAD) >= SHARE - 4 * MIB, 20)
    assert rig.metric(UNREAD) < MOST
    assert [page.reached.server_timestamp_ms for page in reader.pages()][-1] == head
    for call in calls:
        call.cancel()
    until(lambda: rig.metric(UNREAD) == 0, 10, lambda: f"{rig.metric(UNREAD)} are not forgotten")
