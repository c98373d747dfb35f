"""Markers stand among the captured changes: whoever reads these takes none for a change, and nobody loses one."""

from __future__ import annotations

import pytest

from anabranch.store.capture import captured, large
from anabranch.store.capture.backlog import captured_backlogs
from anabranch.store.catalog.adoption import held
from anabranch.store.catalog.cut_off import cut_off
from anabranch.store.catalog.gather import add_tables, restart_captures
from anabranch.store.catalog.judging import RegistrationError
from anabranch.store.catalog.out_of_sync import capture_off
from anabranch.store.catalog.registration import remove_table
from anabranch.store.inbox.claim import look_around
from anabranch.store.inbox.take import read_head

from .conftest import NAME, NOW_MS, World

MOST = 1_000


@pytest.fixture(autouse=True)
def job(world: World) -> None:
    """A change, a marker, a change of the same transaction; and a transaction of a marker alone."""
    world.sql("create table app.job (id text primary key, title text)")
    world.add("job")
    world.sql(
        "insert into app.job values ('a'); alter table app.job add column x int; insert into app.job values ('b')"
    )
    world.sql("alter table app.job add column y int")


def test_a_group_reads_changes_alone(world: World) -> None:
    number = world.database.id
    rows = captured.read(world.conn, number, MOST)
    assert [row.id for row in rows] == [
        one for (one,) in world.rows("select id from anabranch.captured where type <> 4 order by id")
    ]
    assert [row.id for row in captured.read_arrived(world.conn, number, [], MOST)] == [row.id for row in rows]
    tables = [world.table("job").id]
    depended = captured.read_depended_on(world.conn, number, tables, tables, [], MOST)
    assert [row.id for row in depended] == [row.id for row in rows]


def test_what_waits_is_measured_by_its_changes(world: World) -> None:
    number = world.database.id
    found = large.first_to_end(world.conn, number, MOST)
    assert [one.changes for one in found if one.changes] == [2]
    with_changes = next(one for one in found if one.changes)
    assert (with_changes.least, with_changes.greatest) == (1, 1)
    assert len(large.read_whole(world.conn, number, [with_changes])) == 2
    assert len(large.read_of(world.conn, number, with_changes, 0, MOST)) == 2
    assert large.tables_of(world.conn, number, with_changes) == [world.table("job").id]
    markers = len(world.markers())
    large.delete_of(world.conn, number, with_changes.xid, 0, with_changes.last)
    assert world.rows("select count(*) from anabranch.captured where type <> 4") == [(0,)]
    assert len(world.markers()) == markers


def test_own_changes_are_taken_and_markers_left(world: World) -> None:
    with world.conn.transaction():
        [(last,)] = world.rows("select max(id) from anabranch.captured")
        world.sql("insert into app.job values ('c'); alter table app.job add column z int")
        taken = captured.take_own(world.conn, world.database.id, last, MOST)
        assert taken is not None
        assert len(taken) == 1
        assert captured.ask_for_own(world.conn, world.database.id, last).fetchone() is None
    assert len(world.markers()) == 3


def test_a_marker_alone_is_work_for_a_resolver(world: World) -> None:
    world.sql("delete from anabranch.captured where type <> 4")
    number = world.database.id
    assert captured.databases(world.conn) == [number]
    assert look_around(world.conn, NOW_MS, learns=False, judges=False).work == [number]
    head = read_head(world.conn, number)
    assert head is not None
    assert head.any_captured
    [backlog] = captured_backlogs(world.conn, {}, 0.0, MOST)
    assert backlog.changes == 2


def test_a_table_is_not_adopted_while_its_change_waits(world: World) -> None:
    world.sql("delete from anabranch.captured where type <> 4")
    with held(world.conn, world.database, world.table("job"), 1_000, 1_000) as is_quiet:
        assert not is_quiet
    world.follow()
    with held(world.conn, world.database, world.table("job"), 1_000, 1_000) as is_quiet:
        assert is_quiet


def test_a_registration_that_ends_takes_its_markers_along(world: World) -> None:
    remove_table(world.conn, NAME, "job")
    assert world.rows("select count(*) from anabranch.captured") == [(0,)]


def test_a_table_that_is_altered_while_it_is_registered_leaves_no_marker(world: World) -> None:
    world.follow()
    world.sql("delete from anabranch.captured")
    capture_off(world.conn, NAME, "job", now_ms=NOW_MS)
    added = restart_captures(world.conn, NAME, ["job"], now_ms=NOW_MS)
    assert added[0].rows == 2
    world.sql("create table app.site (id text primary key); insert into app.site values ('a')")
    [registered] = add_tables(world.conn, NAME, ["site"], now_ms=NOW_MS)
    assert registered.rows == 1
    assert world.markers() == []
    assert cut_off(world.conn) == []


def test_a_table_whose_change_waits_is_registered_anew_as_it_is(world: World) -> None:
    capture_off(world.conn, NAME, "job", now_ms=NOW_MS)
    try:
        restart_captures(world.conn, NAME, ["job"], now_ms=NOW_MS)
    except RegistrationError as error:
        pytest.fail(str(error))
    assert world.table("job").column_names == ("id", "title", "x", "y")
    assert world.markers() == []
    world.sql("alter table app.job add column z int")
    assert [column.name for column in world.followed().added] == ["z"]
