"""Following the log of a database with a restricted table: who is sent what, and what it costs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.integration.snapshot.audience_device import Device, held
from tests.integration.snapshot.audience_writer import BY_TITLE, SECRET, AudienceWriter, learned, restrict, team, viewer
from ulid import ULID

from anabranch.testkit import waiting
from anabranch.testkit.snapshot_reader import Reader, whole_groups
from anabranch.v1 import batch_pb2, change_pb2, position_pb2

PAGES = "anabranch_log_pages_total"


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {
        "ANABRANCH_JWT_HS256_SECRET": SECRET,
        "ANABRANCH_HEARTBEAT_MS": "1500",
        "ANABRANCH_SUBSCRIBER_QUEUE_BYTES": str(2 << 20),
    }


def raw_stream(reader: Reader, after: int) -> Any:
    subscribe: Any = reader.channel.unary_stream(
        "/anabranch.v1.ChangeService/Subscribe", request_serializer=change_pb2.SubscribeRequest.SerializeToString
    )
    state = position_pb2.NodeState(node=batch_pb2.Node(id=str(ULID())))
    request = change_pb2.SubscribeRequest(db_name=reader.db_name, after=after, node_state=state)
    stream = subscribe(request, metadata=reader.credentials)
    next(stream)
    return stream


def until(stream: Any, position: int) -> tuple[list[bytes], int]:
    """Responses with groups until the stream has come to a position, and how many there were in all."""
    found, count = [], 0
    for data in stream:
        count += 1
        response = change_pb2.SubscribeResponse.FromString(data)
        if response.page.groups:
            found.append(data)
        if response.state.settled.server_timestamp_ms >= position:
            break
    stream.cancel()
    return found, count


@pytest.mark.slow
def test_who_sees_the_same_gets_the_same_bytes_and_others_nothing(restricted: Any, jobs: AudienceWriter) -> None:
    rig = restricted.rig
    start = jobs.put(("0", "z", "z"))
    teams = {"a": viewer(restricted, "x", "a"), "b": viewer(restricted, "y", "b"), "ab": viewer(restricted, "z", *"ab")}
    streams = {name: [raw_stream(reader, start) for _ in range(10)] for name, reader in teams.items()}
    idle = [raw_stream(viewer(restricted, "i", "i"), start) for _ in range(10)]
    encoded = rig.metric(PAGES, database=restricted.name)
    for i in range(30):
        last = jobs.put((f"a{i}", "a", "of a"))
        time.sleep(0.01)
    got = {name: [until(one, last)[0] for one in of_it] for name, of_it in streams.items()}
    assert all(pages == got["a"][0] for name in ("a", "ab") for pages in got[name])
    assert all(not pages for pages in got["b"])
    # One page a change at most: for b and the others there was none to be made.
    assert rig.metric(PAGES, database=restricted.name) - encoded == len(got["a"][0]) <= 30
    counts = [until(one, last) for one in idle]
    assert all(not pages for pages, _ in counts)
    # They are told where they stand now and then, and not with each change.
    assert all(count < 15 for _, count in counts)


def test_what_everybody_sees_is_made_once_for_those_who_see_nothing_else(restricted: Any, jobs: AudienceWriter) -> None:
    rig = restricted.rig
    start = jobs.put(("0", "z", "z"))
    streams = [raw_stream(viewer(restricted, f"p{i}", f"t{i}"), start) for i in range(20)]
    encoded = rig.metric(PAGES, database=restricted.name)
    last = jobs.insert("item", [("1", "open", 1, None)])
    got = [until(one, last)[0] for one in streams]
    assert all(pages == got[0] for pages in got)
    assert len(got[0]) == 1
    assert rig.metric(PAGES, database=restricted.name) - encoded == 1


@pytest.mark.slow
def test_its_own_batch_comes_to_its_node_at_once(restricted: Any, jobs: AudienceWriter) -> None:
    start = jobs.put(("0", "z", "z"))
    node = str(ULID())
    reader = viewer(restricted, "x", "b", node=node)
    stream, other = reader.subscribe(start), viewer(restricted, "x", "b").subscribe(start)
    next(stream)
    next(other)
    began = time.monotonic()
    jobs.put(("1", "a", "one"), node=node)
    response = next(stream)
    assert time.monotonic() - began < 1.0
    (batch,) = response.page.groups[0].batches
    assert (batch.node.id, len(batch.effects)) == (node, 0)
    assert not next(other).page.groups
    stream.cancel()
    other.cancel()


@pytest.mark.slow
def test_heartbeats_carry_own_sums(restricted: Any, jobs: AudienceWriter) -> None:
    last = jobs.put(("1", "a", "one"), ("2", "b", "two"))
    for teams in (["a"], ["a", "b"], []):
        stream = viewer(restricted, "x", *teams).subscribe(last)
        beat = next(response for response in stream if response.sums)
        found = {(one.table, one.audience): one.count for one in beat.sums}
        assert found == {("item", ""): 0, **{("job", team(one)): 1 for one in teams}}
        stream.cancel()


def test_late_subscribers_get_their_own_pages(restricted: Any, jobs: AudienceWriter) -> None:
    """The tail keeps what any reader's page can be made of, and readers who come meanwhile miss nothing."""
    first = viewer(restricted, "first", "a").subscribe()
    next(first)
    written: list[tuple[int, str]] = []
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            name = "ab"[number % 2]
            written.append((jobs.put((f"{name}{number}", name, "t")), name))

    def until_written(count: int) -> None:
        waiting.until(lambda: len(written) >= count, why="nothing was written")

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    readers = []
    for number in range(12):
        name = "ab"[number % 2]
        after = written[-1][0] if written and number % 3 else 0
        readers.append((after, name, viewer(restricted, f"p{number}", name).subscribe(after)))
        # The next one comes when the log has gone on.
        until_written(len(written) + 1)
    stop.set()
    thread.join()
    last = written[-1][0]
    for after, name, stream in readers:
        pages = []
        for response in stream:
            if response.HasField("page"):
                pages.append(response.page)
            if response.state.settled.server_timestamp_ms >= last:
                break
        stream.cancel()
        expected = [position for position, of in written if of == name and position > after]
        assert [group.position for group in whole_groups(pages)] == expected
    first.cancel()


def test_memberships_change_live(place: Any) -> None:
    restrict(place, claimed={}, queries=[BY_TITLE])
    jobs = AudienceWriter(place.rig.url, place.name)
    learned(place, "p")
    learned(place, "q", team("b"))
    start = jobs.put(("1", "a", "one"))
    devices = []
    for name in ("p", "q"):
        reader = place.make_reader(subject=name)
        device = Device(reader)
        device.catch_up()
        reader.held = held(*device.audiences)
        devices.append((device, reader.subscribe(start)))
    jobs.put(("2", "b", "two"), members={"p": ([team("b")], [])})
    jobs.put(("1", "b", "moved"))
    last = jobs.put(("3", "b", "three"), members={"q": ([team("c")], [team("b")])})
    for device, stream in devices:
        for response in stream:
            if response.HasField("page"):
                device.take(response.page)
            if response.state.settled.server_timestamp_ms >= last:
                break
        stream.cancel()
        device.pull()
    (p, _), (q, _) = devices
    assert p.audiences == {team("b")}
    assert p.seen == jobs.seen_by(team("b"))
    assert q.audiences == {team("c")}
    assert q.seen == {}
    jobs.close()


@pytest.mark.slow
def test_a_slow_subscriber_pages_and_misses_nothing(restricted: Any, jobs: AudienceWriter) -> None:
    start = jobs.put(("0", "a", "z"))
    stream = viewer(restricted, "x", "a").subscribe(start)
    next(stream)
    overflows = restricted.rig.metric("anabranch_subscriber_overflows_total", database=restricted.name)
    written = []
    for i in range(40):
        position = jobs.put((f"{i}", "ab"[i % 2], "x" * 400_000))
        if i % 2 == 0:
            written.append(position)
    last = jobs.put(("last", "a", "t"))
    waiting.until(
        lambda: restricted.rig.metric("anabranch_subscriber_overflows_total", database=restricted.name) > overflows,
        why="the subscriber was never slow",
    )
    pages = []
    for response in stream:
        if response.HasField("page"):
            pages.append(response.page)
        if response.state.settled.server_timestamp_ms >= last:
            break
    stream.cancel()
    found = whole_groups(pages)
    assert [group.position for group in found] == [*written, last]
    assert all(len(batch.effects) == 1 for group in found for batch in group.batches)
