"""Paging through the log: promise 4, pages that split anywhere, and positions that can't be read from."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import grpc
import pytest
from ulid import ULID

from anabranch.store.log.seal import position_token
from anabranch.testkit import waiting
from anabranch.testkit.ingest_rig import FailedCallError
from anabranch.testkit.log_writer import Logged, LogWriter
from anabranch.testkit.snapshot_reader import Reader, whole_groups
from anabranch.v1 import change_pb2, position_pb2, value_pb2
from anabranch.wire.effects import EffectBuilder

until = partial(waiting.until, timeout_s=10.0)

MIB = 1024 * 1024
MOST_MESSAGE_BYTES = 4 * MIB
INVALID_POSITION = (grpc.StatusCode.OUT_OF_RANGE, "INVALID_POSITION")
HISTORY_REWOUND = (grpc.StatusCode.OUT_OF_RANGE, "HISTORY_REWOUND")
INVALID_TOKEN = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_TOKEN")


def rows(count: int, size: int = 20) -> list[tuple[Any, ...]]:
    return [(str(ULID()), f"title {i}", i, bytes([i % 256]) * size) for i in range(count)]


def refusal(reader: Reader, **request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(FailedCallError) as caught:
        reader.get(**request)
    return caught.value.code, caught.value.reason


def ids(groups: list[change_pb2.LoggedGroup]) -> list[str]:
    return [effect.values[0].string_value for effect in effects(groups)]


def effects(groups: list[change_pb2.LoggedGroup]) -> list[change_pb2.Effect]:
    return [
        change_pb2.Effect.FromString(effect) for group in groups for batch in group.batches for effect in batch.effects
    ]


@pytest.mark.slow
def test_promise_4_a_reader_never_finds_anything_at_or_below_where_it_has_been(place: Any, reader: Reader) -> None:
    """Two writers compete, and each holds its finished group open for a moment before it commits (case O01)."""
    stop = threading.Event()
    written: list[tuple[int, list[str]]] = []
    failures: list[BaseException] = []

    def write(writer: LogWriter) -> None:
        try:
            while not stop.is_set():
                made = rows(3)
                effect = EffectBuilder(writer.table("item")).insert
                batch = Logged("item", [(row[0], effect(row)) for row in made])
                position = writer.commit([batch], before_commit=lambda: time.sleep(0.003))
                written.append((position, [row[0] for row in made]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(place.make_writer(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    seen: list[tuple[int, list[str]]] = []
    after, reads = 0, 0
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        answer = reader.get(after)
        reads += 1
        assert not answer.next_page_token
        assert answer.page.reached.server_timestamp_ms <= answer.state.settled.server_timestamp_ms
        for group in answer.page.groups:
            assert group.position > after
            seen.append((group.position, ids([group])))
        after = answer.page.reached.server_timestamp_ms
    stop.set()
    for thread in threads:
        thread.join()
    seen += [(group.position, ids([group])) for group in whole_groups(reader.pages(after))]
    assert not failures
    assert len(written) > 50
    assert reads > 50
    assert seen == sorted(written)


@pytest.mark.slow
def test_groups_come_whole_in_order_with_nodes_sums_and_sealed_positions(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    first = writer.insert("item", rows(2), batches=2)
    second = writer.insert("item", rows(1))
    (page,) = reader.pages()
    assert [group.position for group in page.groups] == [first, second]
    assert [batch.id for batch in page.groups[0].batches] == sorted(batch.id for batch in page.groups[0].batches)
    assert [group.sums[0].count for group in page.groups] == [2, 3]
    database = writer.database
    (chain,) = place.conn.execute("select chain from anabranch.groups where position = %s", (second,)).fetchone()
    assert page.reached == position_pb2.Position(
        epoch=database.epoch,
        server_timestamp_ms=second,
        token=position_token(database.seal_key, database.epoch, second, chain),
    )


@pytest.mark.slow
def test_a_node_is_named_as_it_named_itself(place: Any, writer: LogWriter, reader: Reader) -> None:
    other = place.make_reader()
    other.node.name = "gate-12"
    other.get()
    until(lambda: place.conn.execute("select 1 from anabranch.nodes where node_id = %s", (other.node.id,)).fetchone())
    effect = EffectBuilder(writer.table("item")).insert(rows(1)[0])
    writer.commit([Logged("item", [("k", effect)], node_id=other.node.id)])
    (page,) = reader.pages()
    assert page.groups[0].batches[0].node == other.node


def test_a_node_tells_the_schema_version_that_its_app_was_built_for(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    def stored() -> tuple[int] | None:
        found: tuple[int] | None = place.conn.execute(
            "select app_version from anabranch.nodes where node_id = %s", (reader.node.id,)
        ).fetchone()
        return found

    writer.insert("item", rows(1))
    reader.app_version = 3
    reader.get()
    until(lambda: stored() == (3,))
    list(reader.pull())
    reader.app_version = 0
    reader.get()
    until(lambda: stored() == (0,))
    reader.app_version = -1
    assert refusal(reader) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [1, 3_000, 20_000])
def test_a_group_larger_than_a_page_comes_in_parts_that_make_it_whole(
    writer: LogWriter, reader: Reader, max_bytes: int
) -> None:
    made = rows(300, 200)
    writer.insert("item", made, batches=4)
    writer.insert("item", rows(5), batches=5)
    pages = list(reader.pages(0, max_bytes))
    whole = whole_groups(pages)
    assert ids(whole)[:300] == [row[0] for row in made]
    assert whole == whole_groups(reader.pages())
    assert len(pages) > 3
    assert all(page.ByteSize() < max(max_bytes, 1024) + 1024 for page in pages)
    # Until its last part a group counts for nothing, and has no sums.
    parts = [part for page in pages for part in page.groups if part.position == whole[0].position]
    assert [part.incomplete for part in parts] == [True] * (len(parts) - 1) + [False]
    assert [len(part.sums) for part in parts] == [0] * (len(parts) - 1) + [1]
    assert pages[0].reached.server_timestamp_ms == 0


@pytest.mark.slow
def test_l01_l03_an_effect_of_9_mb_and_many_large_ones_pass_through_a_default_channel(
    writer: LogWriter, reader: Reader
) -> None:
    large = (str(ULID()), "large", 1, bytes(range(256)) * 36_000)
    many = [(str(ULID()), "x" * 9_000, i, b"") for i in range(500)]
    writer.insert("item", [(str(ULID()), "before", 0, b""), large, (str(ULID()), "after", 2, b"")])
    writer.insert("item", many)
    for max_bytes in (0, 2**31 - 1):
        pages = list(reader.pages(0, max_bytes))
        assert all(page.ByteSize() < MOST_MESSAGE_BYTES for page in pages)
        whole = whole_groups(pages)
        stored = [tuple(value.string_value or value.bytes_value for value in e.values) for e in effects(whole[:1])]
        assert stored[1][3] == large[3]
        assert ids(whole)[3:] == [row[0] for row in many]
        assert any(batch.effect_incomplete for page in pages for group in page.groups for batch in group.batches)


@pytest.mark.slow
def test_values_that_lost_come_with_their_batch_and_split_like_effects(writer: LogWriter, reader: Reader) -> None:
    effect = EffectBuilder(writer.table("item")).insert(rows(1)[0])
    value = value_pb2.Value(string_value="lost " * 50).SerializeToString()
    too_large = value_pb2.Value(string_value="x" * 100_000).SerializeToString()
    losers = [(f"key {i}", "title", value) for i in range(100)] + [("whole", "", too_large)]
    batch = Logged("item", [("k", effect)], losers)
    writer.commit([batch, Logged("item", [("k", effect)])])
    for max_bytes in (1024, 0):
        (group,) = whole_groups(reader.pages(0, max_bytes))
        (found,) = [logged for logged in group.batches if logged.id == batch.id]
        assert len(group.batches) == 2
        assert [loser.key[0].string_value for loser in found.losers] == [key for key, _, _ in losers]
        assert found.losers[0] == change_pb2.Loser(
            table="item",
            key=[value_pb2.Value(string_value="key 0")],
            column="title",
            value=value_pb2.Value(string_value="lost " * 50),
            batch_id="LOSING-BATCH",
            node_id="LOSING-NODE",
            winner_batch_id=batch.id,
        )
        # Too large to travel along: told, without its value.
        assert found.losers[-1].column == ""
        assert found.losers[-1].value.WhichOneof("kind") is None


def test_a_group_of_refused_batches_only_moves_the_reader(writer: LogWriter, reader: Reader) -> None:
    position = writer.commit([])
    answer = reader.get()
    assert not answer.page.groups
    assert answer.page.reached == answer.state.settled
    assert answer.page.reached.server_timestamp_ms == position


def test_o09_a_cursor_that_never_was_is_told_to_take_a_new_snapshot(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    first = writer.insert("item", rows(1, 5_000))
    head = writer.insert("item", rows(1))
    assert refusal(reader, after=head + 1) == INVALID_POSITION
    assert refusal(reader, after=2**62) == INVALID_POSITION
    assert refusal(reader, after=-1) == INVALID_POSITION
    assert refusal(reader, after=first - 1) == INVALID_POSITION
    assert refusal(reader, token=b"garbage") == INVALID_TOKEN
    token = reader.get(max_bytes=1).next_page_token
    assert token
    assert refusal(reader, token=token[:-1] + bytes([token[-1] ^ 1])) == INVALID_TOKEN
    other = place.make_reader()
    # In a new epoch a page's token is no good, and a position is, wherever the history has it.
    token = other.get(max_bytes=1).next_page_token
    place.conn.execute("update anabranch.databases set epoch = 'other' where name = %s", (place.name,))
    assert other.get(head).page.reached.epoch == "other"
    assert refusal(other, token=token) == INVALID_TOKEN


def test_o09_the_greatest_position_seen_must_be_one_of_this_history(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    writer.insert("item", rows(1))
    reader.seen = reader.get().page.reached
    assert reader.get().page.groups
    sealed = reader.seen
    damaged = bytes([sealed.token[0] ^ 1]) + sealed.token[1:]
    for change in (
        {"token": damaged},
        {"server_timestamp_ms": sealed.server_timestamp_ms + 1},
        {"epoch": "another"},
        {"token": b"short"},
    ):
        reader.seen = position_pb2.Position()
        reader.seen.CopyFrom(sealed)
        reader.seen.MergeFrom(position_pb2.Position(**change))
        assert refusal(reader) == INVALID_POSITION
    # The same server wrote another history at that position: its own seal fits, the chain does not.
    reader.seen = sealed
    place.conn.execute("update anabranch.groups set chain = %s where database_id = %s", (b"x" * 16, writer.database.id))
    assert refusal(reader) == HISTORY_REWOUND


def test_o09_a_position_that_a_restored_server_lost_is_noticed_also_when_it_has_gone_on(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    """The node has seen more than it has applied: its cursor is one that both histories have."""
    common = writer.insert("item", rows(1))
    kept = reader.get().page.reached
    lost = writer.insert("item", rows(1))
    seen = reader.get(common).page.reached
    assert seen.server_timestamp_ms == lost
    place.conn.execute(
        "delete from anabranch.groups where database_id = %s and position = %s", (writer.database.id, lost)
    )
    writer.insert("item", rows(1))
    assert reader.get(common).page.groups
    reader.seen = seen
    assert refusal(reader, after=common) == HISTORY_REWOUND
    moved = epoch_of(place)
    assert moved != seen.epoch
    # It is known from now on: who says it again moves nothing, and who lost nothing goes on in the new epoch.
    assert refusal(reader, after=common) == HISTORY_REWOUND
    assert epoch_of(place) == moved
    answer = reader.find_common([seen, kept])
    assert (answer.common.epoch, answer.common.server_timestamp_ms) == (moved, common)
    assert reader.find_common([seen]).common.server_timestamp_ms == 0
    reader.seen = kept
    assert reader.get(common).state.settled.epoch == moved
    reader.seen = seen
    # Where groups may have been removed, nothing can be said.
    move_floor(place, lost)
    assert reader.get(lost).page.groups


def test_behind_the_floor_is_told_and_at_the_floor_is_served(place: Any, writer: LogWriter, reader: Reader) -> None:
    positions = [writer.insert("item", rows(1)) for _ in range(3)]
    move_floor(place, positions[1])
    place.conn.execute("delete from anabranch.log where position <= %s", (positions[1],))
    place.conn.execute(
        "delete from anabranch.groups where database_id = %s and position <= %s", (writer.database.id, positions[1])
    )
    with pytest.raises(FailedCallError) as caught:
        reader.get(positions[0])
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.OUT_OF_RANGE, "BEHIND_FLOOR")
    answer = reader.get(positions[1])
    assert [group.position for group in answer.page.groups] == positions[2:]
    assert answer.state.floor == positions[1]


def test_the_floor_moving_inside_a_split_group_is_told_never_served_as_a_hole(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    position = writer.insert("item", rows(50, 200))
    head = writer.insert("item", rows(1))
    first = reader.get(max_bytes=1024)
    assert first.page.groups[-1].incomplete
    move_floor(place, position)
    place.conn.execute("delete from anabranch.log where position <= %s", (position,))
    assert refusal(reader, token=first.next_page_token) == (grpc.StatusCode.OUT_OF_RANGE, "BEHIND_FLOOR")
    assert [group.position for group in reader.get(position).page.groups] == [head]


def test_whose_node_and_which_database(place: Any, writer: LogWriter, reader: Reader) -> None:
    reader.get()
    until(lambda: place.conn.execute("select 1 from anabranch.nodes where node_id = %s", (reader.node.id,)).fetchone())
    thief = place.make_reader()
    thief.node.CopyFrom(reader.node)
    assert refusal(thief) == (grpc.StatusCode.PERMISSION_DENIED, "WRONG_PRINCIPAL")
    elsewhere = place.make_reader(database=place.name)
    elsewhere.db_name = "other"
    assert refusal(elsewhere) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
    lost = place.make_reader()
    lost.db_name = "nowhere"
    assert refusal(lost) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_DATABASE")
    nobody = place.make_reader()
    nobody.node.id = "not a ulid"
    assert refusal(nobody) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")


def test_what_a_node_acknowledged_is_kept_and_never_beyond_the_head(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    first, head = (writer.insert("item", rows(1)) for _ in range(2))
    query = "select acknowledged, token from anabranch.nodes where node_id = %s"

    def is_stored(acknowledged: int) -> bool:
        return bool(place.conn.execute(query, (reader.node.id,)).fetchone() == (acknowledged, b""))

    for said, kept in ((first, first), (0, first), (head + 1_000, head)):
        reader.acknowledged = said
        reader.get()
        until(partial(is_stored, kept))


def test_a_node_that_asks_for_nothing_of_the_log_holds_none_of_it(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    """It asked what there is, and may never come again; one that is known is seen all the same."""
    head = writer.insert("item", rows(1))
    query = "select acknowledged, last_seen_ms > 1 from anabranch.nodes where node_id = %s"

    def stored(node: Reader) -> tuple[int, bool] | None:
        found: tuple[int, bool] | None = place.conn.execute(query, (node.node.id,)).fetchone()
        return found

    asking, known = place.make_reader(), place.make_reader()
    known.acknowledged = head
    known.get()
    until(lambda: stored(known) == (head, True))
    place.conn.execute("update anabranch.nodes set last_seen_ms = 1 where node_id = %s", (known.node.id,))
    known.acknowledged = 0
    asking.describe()
    asking.find_common([])
    # Reports of one process are stored together, so that the later one tells of the earlier ones.
    known.describe()
    until(lambda: stored(known) == (head, True))
    assert stored(asking) is None
    asking.get()
    until(lambda: stored(asking) == (0, True))


def epoch_of(place: Any) -> str:
    (epoch,) = place.conn.execute("select epoch from anabranch.databases where name = %s", (place.name,)).fetchone()
    return str(epoch)


def move_floor(place: Any, floor: int) -> None:
    place.conn.execute("update anabranch.databases set floor_ms = %s where name = %s", (floor, place.name))
