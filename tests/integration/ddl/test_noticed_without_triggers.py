"""Without event triggers the resolver compares the catalog itself, and finds what they would have told."""

from __future__ import annotations

import pytest

from anabranch.store.catalog.drift import drift, fingerprint
from anabranch.store.ddl.images import image_shapes
from anabranch.store.ddl.install import install, installed
from anabranch.store.ddl.notice import notice
from anabranch.store.ddl.shapes import columns_of
from anabranch.store.session.engine import connect

from .conftest import World

JOB = "create table app.job (id text primary key, title text, minutes integer)"


def forget(world: World) -> None:
    """Drop the event triggers, which each registration makes."""
    for name in ("ddl", "drop", "rewrite"):
        world.sql(f"drop event trigger if exists anabranch_{name}")


@pytest.fixture(autouse=True)
def job(world: World) -> None:
    world.sql("create type app.state as enum ('open', 'in_prgs')")
    world.sql(JOB)
    world.add("job")
    forget(world)


def look(world: World) -> bool:
    with world.conn.transaction():
        return notice(world.conn, world.database)


def test_event_triggers_are_told_of_and_made_anew(world: World) -> None:
    assert not installed(world.conn)
    assert install(world.conn)
    assert installed(world.conn)
    assert install(world.conn)


def test_nothing_is_noticed_where_nothing_was_altered(world: World) -> None:
    world.sql("insert into app.job values ('a'); create index on app.job (title); analyze app.job")
    assert not look(world)
    assert world.markers() == []


ALTERING = [
    "alter table app.job add column priority integer not null default 3",
    "alter table app.job drop column title",
    "alter table app.job rename column title to subject",
    "alter table app.job rename to task",
    "alter table app.job alter column title type varchar(20)",
    "alter table app.job alter column minutes type bigint",
    "alter table app.job alter column title set not null",
    "alter table app.job alter column title set default 'x'",
    "alter table app.job set schema public",
    "alter table app.job drop constraint job_pkey",
    "drop table app.job",
    "drop schema app cascade",
    "alter schema app rename to application",
]


@pytest.mark.parametrize("statement", ALTERING)
def test_what_was_altered_is_noticed_once(world: World, statement: str) -> None:
    world.sql(statement)
    assert look(world)
    assert len(world.markers()) == 1
    assert not look(world)
    world.follow()
    assert world.markers() == []
    after = world.database
    assert not look(world)
    if "job" in after.tables and "job" not in after.torn:
        assert drift(world.conn, after) == []


@pytest.mark.parametrize(
    ("statement", "rewritten"),
    [
        ("alter type app.state rename value 'in_prgs' to 'in_progress'", {"s"}),
        ("alter type app.state rename to status", set()),
        ("alter type app.state set schema public", set()),
        ("alter table app.city add column y int", {"c", "cs"}),
        ("alter table app.city rename to town", set()),
    ],
)
def test_what_was_altered_in_a_type_is_noticed(world: World, statement: str, rewritten: set[str]) -> None:
    world.sql("create table app.city (x int)")
    world.sql("create table app.task (id text primary key, s app.state, c app.city, cs app.city[])")
    world.add("task")
    forget(world)
    before = fingerprint(world.conn, world.database.name)
    world.sql(statement)
    assert fingerprint(world.conn, world.database.name) != before, "services look again"
    assert look(world)
    assert world.followed().rewritten == rewritten
    assert not look(world)


def test_what_event_triggers_missed_is_noticed(world: World) -> None:
    install(world.conn)
    world.sql("alter table app.job add column x int")
    world.sql("alter event trigger anabranch_ddl disable; alter table app.job add column y int;")
    world.sql("alter event trigger anabranch_ddl enable always")
    assert look(world)
    assert len(world.markers()) == 2
    assert [column.name for column in world.followed().added] == ["x", "y"]


def names(world: World) -> list[list[str]]:
    shapes = image_shapes(world.conn, world.database.id)
    found = []
    for table, number in world.rows("select table_id, id from anabranch.captured where type <> 4 order by id"):
        shape = shapes.of(table, number)
        assert shape is not None
        found.append([column.name for column in columns_of(shape)])
    return found


OLD, NEW = ["id", "title", "minutes"], ["id", "title", "minutes", "x"]


def test_a_marker_stands_between_the_older_images_and_the_newer(world: World) -> None:
    world.sql("insert into app.job select n::text from generate_series(1, 20) n")
    world.sql("alter table app.job add column x int; insert into app.job select 'x' || n from generate_series(1, 7) n")
    assert look(world)
    world.follow()
    assert names(world) == [OLD] * 20 + [NEW] * 7


def test_all_images_may_be_newer_or_older(world: World) -> None:
    world.sql("insert into app.job values ('a'); alter table app.job add column x int")
    look(world)
    world.follow()
    assert names(world) == [OLD]
    world.sql("delete from anabranch.captured; alter table app.job drop column x; insert into app.job values ('b')")
    look(world)
    world.follow()
    assert names(world) == [OLD]


def test_an_image_that_commits_later_is_newer(world: World) -> None:
    world.sql("alter table app.job add column x int")
    with connect(world.url, application_name="other") as other:
        other.execute("insert into app.job values ('a', 'one', 1, 2)")
        assert look(world)
        world.follow()
        other.commit()
    assert names(world) == [NEW]


def test_images_of_a_retyped_column_are_told_apart(world: World) -> None:
    world.sql("insert into app.job values ('a', 'one', 5)")
    world.sql("alter table app.job alter column minutes type bigint; insert into app.job values ('b', 'two', 6)")
    look(world)
    [change] = world.changes()
    assert (change.pulled, change.rewritten) == ("", frozenset({"minutes"}))
    world.follow()
    shapes = image_shapes(world.conn, world.database.id)
    oids = [
        shape.by_name["minutes"].type_oid
        for table, number in world.rows("select table_id, id from anabranch.captured order by id")
        if (shape := shapes.of(table, number)) is not None
    ]
    assert oids == [23, 20]


def test_a_name_alone_makes_no_difference_to_images(world: World) -> None:
    world.sql("insert into app.job values ('a'); alter table app.job rename title to subject")
    world.sql("insert into app.job values ('b')")
    look(world)
    change = world.followed()
    assert (change.pulled, change.renamed) == ("", {"title": ("title", "subject")})


@pytest.mark.parametrize(
    "statements",
    [
        "insert into app.job values ('a', 'one'); alter table app.job drop column title, add column other text;"
        "alter table app.job drop column minutes, add column more integer",
        "insert into app.job values ('a'); alter table app.job add column x int; insert into app.job values ('b');"
        "alter table app.job add column y int",
    ],
    ids=["equal", "neither"],
)
def test_a_table_whose_images_cannot_be_told_apart_is_pulled(world: World, statements: str) -> None:
    world.sql(statements)
    look(world)
    change = world.followed()
    assert change.pulled.startswith("it was altered")
    assert world.rows("select count(*) from anabranch.captured") == [(0,)]


def test_without_images_nothing_is_ambiguous(world: World) -> None:
    world.sql("alter table app.job drop column title, add column other text; alter table app.job add column y int")
    look(world)
    assert world.followed().pulled == ""


def test_a_retyped_column_sends_its_values_and_the_others_do_not(world: World) -> None:
    world.sql("insert into app.job values ('a', 'one', 5); delete from anabranch.captured")
    world.sql("alter table app.job alter column title type char(10)")
    look(world)
    assert world.followed().rewritten == {"title"}
