"""A subscriber that is behind takes what waits as one response: the same groups in fewer messages."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.store.log.history import SeenGroup
from anabranch.store.log.stretch import Cursor
from anabranch.v1 import change_pb2, position_pb2
from anabranch_snapshot.page_tokens import Place, place_after
from anabranch_snapshot.subscriber import JOINED_BYTES, Shared, Subscriber

ROOM = 10 * JOINED_BYTES


def page(start: Place, end: Place, *positions: int, padding: int = 0) -> Shared:
    reached = position_pb2.Position(epoch="e", server_timestamp_ms=end.base, token=bytes([end.base % 250]))
    groups = [change_pb2.LoggedGroup(position=position) for position in positions]
    response = change_pb2.SubscribeResponse(
        page=change_pb2.Page(groups=groups, reached=reached),
        state=position_pb2.ServerState(settled=reached, floor=1, schema_version=end.base),
        traceparent="x" * padding,
    )
    return Shared(start, end, response.SerializeToString(), SeenGroup(end.base, b""))


def heartbeat(place: Place) -> Shared:
    response = change_pb2.SubscribeResponse(sums=[position_pb2.TableSum(table="todo", count=7)])
    return Shared(place, place, response.SerializeToString(), SeenGroup(place.base, b""))


def taken(subscriber: Subscriber) -> Shared:
    async def take() -> Shared:
        shared = await asyncio.wait_for(subscriber.take(), 1)
        assert shared is not None
        return shared

    return asyncio.run(take())


def read(shared: Shared) -> change_pb2.SubscribeResponse:
    return change_pb2.SubscribeResponse.FromString(shared.data)


def test_what_waits_is_one_response_with_all_groups_and_the_last_state() -> None:
    subscriber = Subscriber(place_after(0), ROOM)
    pages = [page(place_after(at), place_after(at + 1), at + 1) for at in range(3)]
    assert all(map(subscriber.offer, pages))
    shared = taken(subscriber)
    response = read(shared)
    assert [group.position for group in response.page.groups] == [1, 2, 3]
    assert (response.page.reached, response.state.settled) == (read(pages[-1]).page.reached,) * 2
    assert (shared.start, shared.end, shared.known) == (place_after(0), place_after(3), pages[-1].known)


def test_one_that_waits_alone_is_the_one_that_all_share() -> None:
    subscriber = Subscriber(place_after(0), ROOM)
    alone = page(place_after(0), place_after(1), 1)
    assert subscriber.offer(alone)
    assert taken(subscriber) is alone


def test_a_group_that_is_split_over_pages_stays_split() -> None:
    subscriber = Subscriber(place_after(0), ROOM)
    middle = Place(0, Cursor(1, "01J", 0, 0))
    assert not middle.cursor.between_groups
    assert subscriber.offer(page(place_after(0), middle, 1))
    assert subscriber.offer(page(middle, place_after(1), 1))
    assert subscriber.offer(page(place_after(1), place_after(2), 2))
    assert [group.position for group in read(taken(subscriber)).page.groups] == [1]
    assert [group.position for group in read(taken(subscriber)).page.groups] == [1, 2]


def test_the_sums_of_a_heartbeat_stand_with_no_later_page() -> None:
    subscriber = Subscriber(place_after(0), ROOM)
    assert subscriber.offer(heartbeat(place_after(0)))
    assert subscriber.offer(page(place_after(0), place_after(1), 1))
    assert read(taken(subscriber)).sums
    response = read(taken(subscriber))
    assert not response.sums
    assert [group.position for group in response.page.groups] == [1]


@pytest.mark.parametrize("count", [2, 5])
def test_a_response_is_bounded_and_its_room_is_free_again(count: int) -> None:
    padding = JOINED_BYTES // 2 + 1
    subscriber = Subscriber(place_after(0), count * padding + JOINED_BYTES)
    pages = [page(place_after(at), place_after(at + 1), at + 1, padding=padding) for at in range(count)]
    assert all(map(subscriber.offer, pages))
    for expected in pages:
        assert taken(subscriber) is expected
    again = [page(place_after(at), place_after(at + 1), at + 1, padding=padding) for at in range(count, 2 * count)]
    assert all(map(subscriber.offer, again))
