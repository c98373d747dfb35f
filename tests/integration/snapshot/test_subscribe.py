"""Following the log: what comes at once, what everybody shares, and readers that are slow, cut off or sent away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import psutil
import pytest
from ulid import ULID

from anabranch.store.session.engine import connect
from anabranch.testkit import waiting
from anabranch.testkit.ingest_rig import failed
from anabranch.testkit.log_writer import Logged, LogWriter
from anabranch.testkit.snapshot_reader import Reader, whole_groups
from anabranch.testkit.snapshot_rig import SnapshotRig
from anabranch.v1 import change_pb2
from anabranch.wire.effects import EffectBuilder

until = partial(waiting.until, timeout_s=10.0)

MIB = 1024 * 1024
QUEUE_BYTES = 2 * MIB


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {
        "ANABRANCH_SUBSCRIBER_QUEUE_BYTES": str(QUEUE_BYTES),
        "ANABRANCH_RECENT_PAGES_BYTES": str(QUEUE_BYTES),
        "ANABRANCH_PAGE_BYTES": str(256 * 1024),
    }


def rows(count: int, size: int = 20) -> list[tuple[Any, ...]]:
    return [(str(ULID()), f"title {i}", i, bytes([i % 256]) * size) for i in range(count)]


def responses_until(stream: Any, position: int) -> Iterator[change_pb2.SubscribeResponse]:
    """Responses until one has brought the reader to ``position``."""
    for response in stream:
        yield response
        if response.state.settled.server_timestamp_ms >= position:
            return


def pages_until(stream: Any, position: int) -> list[change_pb2.Page]:
    return [response.page for response in responses_until(stream, position) if response.HasField("page")]


def positions(pages: list[change_pb2.Page]) -> list[int]:
    return [group.position for group in whole_groups(pages)]


def test_a_group_comes_at_once_by_its_notification(writer: LogWriter, reader: Reader) -> None:
    """The process polls every 30 s only."""
    first = writer.insert("item", rows(1))
    stream = reader.subscribe()
    assert positions(pages_until(stream, first)) == [first]
    started = time.monotonic()
    for _ in range(20):
        position = writer.insert("item", rows(1))
        (page,) = pages_until(stream, position)
        assert [group.position for group in page.groups] == [position]
        assert page.reached.server_timestamp_ms == position
    assert time.monotonic() - started < 5.0
    stream.cancel()


@pytest.mark.slow
def test_a_lost_notification_costs_a_poll_and_nothing_else(
    module_url: str, place: Any, writer: LogWriter, tmp_path: Any
) -> None:
    with SnapshotRig(module_url, tmp_path, environment={"ANABRANCH_POLL_INTERVAL_MS": "50"}) as polling:
        reader = polling.reader(place.name)
        stream = reader.subscribe()
        next(stream)
        effect = EffectBuilder(writer.table("item")).insert(rows(1)[0])
        position = writer.commit([Logged("item", [("k", effect)])], tell=False)
        assert positions(pages_until(stream, position)) == [position]
        reader.close()


@pytest.mark.slow
def test_the_first_response_says_where_the_reader_stands(writer: LogWriter, reader: Reader) -> None:
    position = writer.insert("item", rows(1))
    stream = reader.subscribe(position)
    response = next(stream)
    assert response.HasField("page")
    assert not response.page.groups
    assert response.page.reached.server_timestamp_ms == position
    assert response.state.settled == response.page.reached
    stream.cancel()


def test_heartbeats_move_the_settled_position_and_carry_all_sums(place: Any, writer: LogWriter, reader: Reader) -> None:
    place.add_table("create table {schema}.other (id text primary key)", "other")
    position = writer.insert("item", rows(3))
    stream = reader.subscribe(position)
    next(stream)
    # Nothing that anybody sees: a group without a change.
    moved = writer.commit([])
    heartbeat = next(response for response in stream if not response.HasField("page"))
    while heartbeat.state.settled.server_timestamp_ms < moved:
        heartbeat = next(response for response in stream if not response.HasField("page"))
    assert heartbeat.state.settled == reader.get(moved).state.settled
    assert [(total.table, total.count) for total in heartbeat.sums] == [("item", 3), ("other", 0)]
    stream.cancel()


def test_fifty_subscribers_get_the_same_bytes_and_each_change_is_encoded_once(place: Any, writer: LogWriter) -> None:
    rig: SnapshotRig = place.rig
    start = writer.insert("item", rows(1))
    shared = place.make_reader()
    request = change_pb2.SubscribeRequest(db_name=place.name, after=start)
    subscribe = shared.channel.unary_stream(
        "/anabranch.v1.ChangeService/Subscribe", request_serializer=change_pb2.SubscribeRequest.SerializeToString
    )
    streams = [subscribe(request, metadata=(("authorization", f"Bearer {shared.key}"),)) for _ in range(50)]
    for stream in streams:
        next(stream)
    encoded = rig.metric("anabranch_log_pages_total", database=place.name)
    written = [writer.insert("item", rows(2)) for _ in range(40)]
    got: list[list[bytes]] = []
    for stream in streams:
        pages: list[bytes] = []
        for data in stream:
            response = change_pb2.SubscribeResponse.FromString(data)
            if response.HasField("page"):
                pages.append(data)
            if response.state.settled.server_timestamp_ms >= written[-1]:
                break
        got.append(pages)
        stream.cancel()
    assert positions([change_pb2.SubscribeResponse.FromString(data).page for data in got[0]]) == written
    assert all(pages == got[0] for pages in got)
    assert rig.metric("anabranch_log_pages_total", database=place.name) - encoded == len(got[0])
    assert len(got[0]) <= len(written)
    until(lambda: rig.metric("anabranch_subscribers", database=place.name) == 0)


def test_subscribers_who_join_while_the_log_grows_miss_nothing(place: Any, writer: LogWriter) -> None:
    written: list[int] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            written.append(writer.insert("item", rows(5)))

    thread = threading.Thread(target=write)
    thread.start()
    readers = []
    for number in range(12):
        reader = place.make_reader()
        after = written[-1] if written and number % 2 else 0
        readers.append((after, reader.subscribe(after)))
        time.sleep(0.02)
    stop.set()
    thread.join()
    for after, stream in readers:
        assert positions(pages_until(stream, written[-1])) == [p for p in written if p > after]
        stream.cancel()


@pytest.mark.slow
def test_a_slow_subscriber_is_bounded_in_memory_and_goes_on_by_paging(place: Any, writer: LogWriter) -> None:
    rig: SnapshotRig = place.rig
    slow, quick = place.make_reader(), place.make_reader()
    start = writer.insert("item", rows(1))
    stalled, live = slow.subscribe(start), quick.subscribe(start)
    next(stalled)
    next(live)
    process = psutil.Process(rig.children[0].pid)
    overflows = rig.metric("anabranch_subscriber_overflows_total", database=place.name)
    written, most = [], 0
    before = process.memory_info().rss
    for i in range(60):
        # Some groups are larger than a page, so that the stream breaks off inside one of them.
        written.append(writer.insert("item", rows(1, MIB) if i % 3 else rows(40, 20_000)))
        most = max(most, process.memory_info().rss - before)
    assert positions(pages_until(live, written[-1])) == written
    assert sum(len(row) for row in written_bytes(place)) > 40 * MIB
    assert most < 30 * MIB
    assert rig.metric("anabranch_subscriber_overflows_total", database=place.name) > overflows
    found = whole_groups(pages_until(stalled, written[-1]))
    assert [group.position for group in found] == written
    assert [len(batch.effects) for group in found for batch in group.batches] == [1 if i % 3 else 40 for i in range(60)]
    assert not any(batch.effect_incomplete for group in found for batch in group.batches)
    # Caught up, it is live again.
    position = writer.insert("item", rows(1))
    assert positions(pages_until(stalled, position)) == [position]
    stalled.cancel()
    live.cancel()


def written_bytes(place: Any) -> list[bytes]:
    return [row[0] for row in place.conn.execute("select effect from anabranch.log").fetchall()]


def test_a_subscriber_who_stalls_holds_no_transaction(place: Any, writer: LogWriter, reader: Reader) -> None:
    start = writer.insert("item", rows(1))
    stream = reader.subscribe(start)
    next(stream)
    for _ in range(8):
        writer.insert("item", rows(1, MIB))
    query = """select count(*) from pg_stat_activity where application_name like 'anabranch-snapshot%'
               and datname = current_database() and (backend_xmin is not null or state like 'idle in%')"""
    until(lambda: place.conn.execute(query).fetchone() == (0,))
    stream.cancel()


def test_behind_the_floor_and_beyond_the_head_are_told_to_subscribers(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    first = writer.insert("item", rows(1))
    head = writer.insert("item", rows(1))
    place.conn.execute("update anabranch.databases set floor_ms = %s where name = %s", (head, place.name))
    for after, reason in ((first, "BEHIND_FLOOR"), (head + 1, "INVALID_POSITION"), (-1, "INVALID_POSITION")):
        with pytest.raises(grpc.RpcError) as caught:
            next(reader.subscribe(after))
        assert failed(caught.value).reason == reason
    stream = reader.subscribe(head)
    assert next(stream).state.floor == head
    stream.cancel()


def test_a_live_subscriber_is_told_when_history_is_rewound(place: Any, writer: LogWriter, reader: Reader) -> None:
    position = writer.insert("item", rows(1))
    stream = reader.subscribe(position)
    next(stream)
    place.conn.execute("update anabranch.databases set epoch = 'other' where name = %s", (place.name,))
    with pytest.raises(grpc.RpcError) as caught:
        for _ in stream:
            pass
    # A device that calls again presents what it has seen, and is told whether the history still has it.
    assert failed(caught.value).reason == "UNAVAILABLE"


def test_a_live_subscriber_is_not_led_into_another_history(place: Any, writer: LogWriter, reader: Reader) -> None:
    """The server was restored under the process: at the position where the subscriber stands is another group."""
    position = writer.insert("item", rows(1))
    stream = reader.subscribe(position)
    next(stream)
    lost = writer.insert("item", rows(1))
    assert pages_until(stream, lost)
    place.conn.execute(
        "update anabranch.groups set chain = %s where database_id = %s and position = %s",
        (b"x" * 16, writer.database.id, lost),
    )
    writer.insert("item", rows(1))
    got = []
    with pytest.raises(grpc.RpcError) as caught:
        got.extend(stream)
    assert failed(caught.value).reason == "UNAVAILABLE"
    assert not [response for response in got if response.page.groups]


@pytest.mark.slow
def test_two_processes_side_by_side_and_a_kill_lose_nothing(module_url: str, place: Any, tmp_path: Any) -> None:
    writer = place.make_writer()
    with SnapshotRig(module_url, tmp_path, count=2) as pair:
        first, second = (pair.reader(place.name, number=number) for number in range(2))
        streams = [reader.subscribe() for reader in (first, second)]
        written = [writer.insert("item", rows(3)) for _ in range(10)]
        pages = [pages_until(stream, written[-1]) for stream in streams]
        assert positions(pages[0]) == positions(pages[1]) == written
        pair.kill(0)
        with pytest.raises(grpc.RpcError) as caught:
            for _ in streams[0]:
                pass
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        written += [writer.insert("item", rows(3)) for _ in range(5)]
        assert positions(pages_until(streams[1], written[-1])) == written[10:]
        # Reconnected where it stood.
        again = first.subscribe(written[9])
        assert positions(pages_until(again, written[-1])) == written[10:]
        for reader in (first, second):
            reader.close()


@pytest.mark.slow
def test_a_session_that_postgres_ends_is_not_noticed_by_subscribers(place: Any, reader: Reader) -> None:
    writer = place.make_writer()
    position = writer.insert("item", rows(1))
    stream = reader.subscribe(position)
    next(stream)
    with connect(place.rig.url, application_name="test", autocommit=True) as conn:
        ended = conn.execute(
            """select count(pg_terminate_backend(pid)) from pg_stat_activity
               where application_name in ('anabranch-snapshot-log', 'anabranch-snapshot-listener')
               and datname = current_database()"""
        ).fetchone()
    assert ended is not None
    assert ended[0] >= 2
    written = [writer.insert("item", rows(1)) for _ in range(3)]
    assert positions(pages_until(stream, written[-1])) == written
    stream.cancel()
