"""DDL of a synced table leaves a marker among the captured changes, inside its own transaction, and other DDL none."""

from __future__ import annotations

import psycopg
import pytest

from anabranch.store.catalog.drift import drift
from anabranch.store.ddl.markers import ANY_WAITING, is_any_waiting
from anabranch.store.ddl.notice import notice
from anabranch.store.session.engine import connect
from anabranch.v1 import snapshot_pb2
from anabranch_compactor.altered import AlteredWhileReadError, require_unaltered

from .conftest import World

JOB = "create table app.job (id text primary key, title text, done boolean not null default false)"


@pytest.fixture(autouse=True)
def job(world: World) -> None:
    world.sql(JOB)
    world.add("job")


ALTERING = [
    ("alter table app.job add column priority integer not null default 3", "ALTER TABLE"),
    ("alter table app.job drop column title", "ALTER TABLE"),
    ("alter table app.job rename column title to subject", "ALTER TABLE"),
    ("alter table app.job rename to task", "ALTER TABLE"),
    ("alter table app.job alter column title type varchar(20)", "ALTER TABLE"),
    ("alter table app.job alter column title set not null", "ALTER TABLE"),
    ("alter table app.job alter column title set default 'x'", "ALTER TABLE"),
    ("alter table app.job drop constraint job_pkey", "ALTER TABLE"),
    ("alter table app.job set schema public", "ALTER TABLE"),
    ("drop table app.job", "DROP TABLE"),
    ("drop schema app cascade", "DROP SCHEMA"),
    ("do $$ begin alter table app.job add column x int; end $$", "ALTER TABLE"),
    ("set search_path = app; alter table job add column x int; reset search_path", "ALTER TABLE"),
    ("alter table app.job alter column done type boolean using not done", "ALTER TABLE"),
    ("alter table app.job add column at timestamptz default clock_timestamp()", "ALTER TABLE"),
]


@pytest.mark.parametrize(("statement", "tag"), ALTERING, ids=[statement for statement, _ in ALTERING])
def test_ddl_leaves_a_marker(world: World, statement: str, tag: str) -> None:
    world.sql(statement)
    [marker] = world.markers()
    assert (marker.tag, marker.command, marker.application) == (tag, statement, "alembic")
    assert marker.table_id == world.table("job").id
    assert marker.role == "postgres"
    assert is_any_waiting(world.conn, world.database.id)


@pytest.mark.parametrize(
    "statement",
    [
        "create index on app.job (title)",
        "alter table app.job add constraint odd check (title <> 'odd')",
        "alter table app.job set (fillfactor = 70)",
        "alter table app.job alter column title set statistics 50",
        "alter table app.job enable always trigger anabranch_insert",
        "create temp table job (id int); alter table pg_temp.job add column x int; drop table pg_temp.job",
        "create table public.job (id int primary key); alter table public.job add column x int; drop table public.job",
        "create table app.other (id int primary key); alter table app.other add column x int; drop table app.other",
        "comment on table app.job is 'work'",
        "alter table app.job cluster on job_pkey; cluster app.job",
        "alter table app.job set unlogged; alter table app.job set logged",
        "create type app.mood as enum ('good'); alter type app.mood add value 'bad'; drop type app.mood",
        "create table app.p (id int) partition by range (id); "
        "create table app.p1 partition of app.p for values from (0) to (9); alter table app.p add column x int",
        "create view app.v as select * from app.job; drop view app.v",
        "truncate app.job",
        "reindex table app.job",
    ],
)
def test_other_ddl_leaves_none(world: World, statement: str) -> None:
    world.sql(statement)
    assert world.markers() == []
    assert not is_any_waiting(world.conn, world.database.id)


def test_a_type_that_is_altered_in_itself_leaves_a_marker_for_each_table_that_has_it(world: World) -> None:
    world.sql("create type app.state as enum ('open', 'done'); create type app.place as (city text)")
    world.sql("create domain app.label as text default 'x'")
    world.sql("create table app.a (id text primary key, s app.state, p app.place[], l app.label)")
    world.sql("create table app.b (id text primary key, s app.state[])")
    world.add("a", "b")
    for statement, tables in (
        ("alter type app.state add value 'late'", ["a", "b"]),
        ("alter type app.state rename value 'late' to 'missed'", ["a", "b"]),
        ("alter type app.state rename to status", ["a", "b"]),
        ("alter type app.place add attribute street text", ["a"]),
        ("alter type app.place drop attribute city", ["a"]),
        ("alter type app.place rename attribute street to road", ["a"]),
        ("alter domain app.label set not null", ["a"]),
        ("alter domain app.label drop default", ["a"]),
        ("drop type app.status cascade", ["a", "b"]),
    ):
        world.sql(statement)
        assert sorted(marker.sql_name for marker in world.markers()) == tables, statement
        world.follow()
        assert world.markers() == [], statement


def test_rows_of_tables_and_views_are_types(world: World) -> None:
    world.sql("create table app.city (name text); create view app.town as select name from app.city")
    world.sql("create type app.mood as enum ('good'); create type app.day as (mood app.mood, name text)")
    world.sql("create domain app.cities as app.city[]; create type app.road as (a app.city)")
    world.sql("create table app.a (id text primary key, c app.city, t app.town)")
    world.sql("create table app.b (id text primary key, c app.cities, r app.road, j app.job, d app.day)")
    world.add("a", "b")
    for statement, tables in (
        ("alter table app.city add column size int", ["a", "b"]),
        ("alter table app.city rename column size to population", ["a", "b"]),
        ("alter table app.city drop column population", ["a", "b"]),
        ("alter table app.city rename to place", ["a", "b"]),
        ("create or replace view app.town as select name, 1 as one from app.place", ["a"]),
        ("alter view app.town rename column one to two", ["a"]),
        ("alter table app.town rename column two to three", ["a"]),
        ("alter table app.job add column x int", ["b", "job"]),
        ("drop type app.mood cascade", ["b"]),
        ("alter table app.place set schema public", ["a", "b"]),
    ):
        world.sql(statement)
        assert sorted(marker.sql_name for marker in world.markers()) == tables, statement
        world.follow()
        assert world.markers() == [], statement
    world.sql("create function app.shout(app.job) returns text language sql as 'select upper($1.title)'")
    world.sql("create table app.u (id int); alter table app.u add column x int")
    assert world.markers() == []


def test_a_default_that_goes_with_its_sequence_leaves_a_marker(world: World) -> None:
    world.sql("create table app.a (id text primary key, n serial)")
    world.add("a")
    world.sql("drop sequence app.a_n_seq cascade")
    [marker] = world.markers()
    assert marker.shape is not None
    assert marker.shape.by_name["n"].default == ""


def test_what_is_rolled_back_leaves_none(world: World) -> None:
    with world.conn.transaction(force_rollback=True):
        world.sql("alter table app.job add column x int")
        assert len(world.markers()) == 1
    assert world.markers() == []
    with world.conn.transaction():
        world.sql("savepoint s; alter table app.job add column x int; rollback to s")
        world.sql("alter table app.job add column y int")
    [marker] = world.markers()
    assert marker.shape is not None
    assert "y" in marker.shape.by_name
    assert "x" not in marker.shape.by_name


def test_markers_stand_in_order_with_what_their_transaction_writes(world: World) -> None:
    world.sql(
        "insert into app.job values ('a', 'one'); alter table app.job add column x int;"
        "insert into app.job values ('b', 'two', true, 1); alter table app.job drop column title;"
        "insert into app.job values ('c', true, 2)"
    )
    found = world.rows("select type, xid from anabranch.captured order by id")
    assert [kind for kind, _ in found] == [1, 4, 1, 4, 1]
    assert len({xid for _, xid in found}) == 1


def test_several_commands_of_one_statement_leave_a_marker_each(world: World) -> None:
    world.sql("create table app.site (id text primary key, city text)")
    world.add("site")
    world.sql(
        "alter table app.job rename column title to subject; alter table app.site rename to location;"
        "alter table app.location rename column city to town"
    )
    assert [marker.sql_name for marker in world.markers()] == ["job", "location", "location"]


def test_a_role_that_may_not_alter_gets_its_own_error(world: World) -> None:
    world.sql("create role nobody_much; grant usage on schema app to nobody_much")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege), world.conn.transaction():
            world.sql("set local role nobody_much; alter table app.job add column x int")
        assert world.markers() == []
    finally:
        world.sql("drop owned by nobody_much; drop role nobody_much")


def test_an_owner_without_rights_to_our_schema_may_alter(world: World) -> None:
    world.sql("create role owner_of_job; grant usage, create on schema app to owner_of_job")
    world.sql("alter table app.job owner to owner_of_job")
    try:
        with world.conn.transaction():
            world.sql("set local role owner_of_job; alter table app.job add column x int")
        [marker] = world.markers()
        assert marker.tag == "ALTER TABLE"
    finally:
        world.sql("drop owned by owner_of_job cascade; drop role owner_of_job")


def test_two_sessions_alter_two_tables_at_once(world: World) -> None:
    world.sql("create table app.site (id text primary key, city text)")
    world.add("site")
    with connect(world.url, application_name="other") as other, world.conn.transaction():
        world.sql("alter table app.job add column x int")
        other.execute("alter table app.site add column y int")
        other.commit()
    assert {marker.sql_name: marker.application for marker in world.markers()} == {"job": "alembic", "site": "other"}


def test_ddl_of_functions_is_noticed(world: World) -> None:
    world.sql(
        "create function app.grow() returns void language plpgsql as "
        "$$ begin execute format('alter table app.%I add column x int', 'job'); end $$"
    )
    world.sql("select app.grow()")
    [marker] = world.markers()
    assert marker.command == "select app.grow()"


def test_a_table_that_goes_and_comes_back_is_known(world: World) -> None:
    world.sql("alter table app.job set schema public")
    world.sql("alter table public.job add column x int")
    world.sql("alter table public.job set schema app")
    assert [marker.dropped for marker in world.markers()] == [True, True, False]


def test_a_new_table_is_not_taken_for_the_one_that_had_its_name(world: World) -> None:
    world.sql('update anabranch.databases set policy = \'{"new_tables": "all"}\'')
    world.sql("drop table app.job")
    world.sql("create table app.job (id text primary key, other text)")
    before = world.markers()
    assert [(marker.dropped, marker.created) for marker in before] == [(True, False), (False, True)]
    assert not notice(world.conn, world.database)
    assert world.markers() == before


def test_a_marker_of_somebody_who_looked_while_a_table_was_dropped_does_not_bring_it_back(world: World) -> None:
    world.sql('update anabranch.databases set policy = \'{"new_tables": "all"}\'')
    world.sql("alter table app.job add column x int")
    [looked] = world.markers()
    world.sql("drop table app.job")
    world.sql("create table app.job (id text primary key, other text)")
    columns = "database_id, table_id, xid, type, depth, old, new"
    world.sql(
        f"insert into anabranch.captured ({columns}) select {columns} from anabranch.captured where id = {looked.id}"
    )
    of_job = [marker.dropped for marker in world.markers() if marker.table_id == looked.table_id]
    assert of_job == [False, True, False]
    entered = world.follow()
    assert entered is not None
    told = snapshot_pb2.SchemaChange.FromString(entered.message)
    assert (list(told.dropped), list(told.created)) == (["job"], ["job~2"])
    assert drift(world.conn, world.database) == []
    assert world.markers() == []


def test_whoever_has_read_rows_is_told_that_a_type_was_altered_meanwhile(world: World) -> None:
    world.sql("create type app.mood as enum ('good')")
    with_job = world.database
    require_unaltered(world.url, with_job, "job")
    world.sql("alter table app.job add column mood app.mood")
    world.follow()
    database = world.database
    require_unaltered(world.url, database, "job")
    world.sql("alter type app.mood rename value 'good' to 'fine'")
    with pytest.raises(AlteredWhileReadError, match="a type of table job of ours was altered"):
        require_unaltered(world.url, database, "job")
    world.follow()
    with pytest.raises(AlteredWhileReadError):
        require_unaltered(world.url, database, "job")
    require_unaltered(world.url, world.database, "job")


def test_a_table_that_is_set_aside_gives_way_to_one_that_has_its_name(world: World) -> None:
    world.sql("create table app.site (id text primary key, job text references app.job)")
    world.add("site")
    world.sql("update anabranch.synced_tables set torn_ms = 1, sql_name = 'site' where name = 'job'")
    database = world.database
    assert database.by_sql_name["site"].name == "site"
    assert database.find("job") is database.tables["job"]
    assert set(database.table_order) == {"job", "site"}
    assert {one.table for one in drift(world.conn, database) if one.stops} == {"job"}


def test_a_transaction_that_does_not_see_what_others_altered_says_so(world: World) -> None:
    with connect(world.url, application_name="other") as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select count(*) from app.job")
        world.sql("create table app.site (id text primary key)")
        other.execute("select 1")
        other.commit()
        other.execute("set transaction isolation level repeatable read")
        other.execute("select 1")
        world.sql("alter table app.job add column x int")
        other.execute("alter table app.job add column y int")
        other.commit()
    first, second = world.markers()
    assert (first.ambiguous, second.ambiguous != "") == ("", True)
    assert world.followed().pulled == second.ambiguous
    assert not notice(world.conn, world.database)
    assert world.table("job").column_names == ("id", "title", "done", "x", "y")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        # As its moment has it, all is as it was: a column that it never saw is gone.
        ("add column x int", "drop column x"),
        ("add column x int", "set (fillfactor = 70)"),
        ("drop column title", "add column title text"),
        ("rename column title to subject", "rename column subject to title"),
        ("alter column title set not null", "alter column title drop not null"),
        ("alter column title type varchar(9)", "alter column title type text"),
    ],
)
def test_what_looks_unchanged_to_such_a_transaction_is_no_less_altered(
    world: World, level: str, theirs: str, ours: str
) -> None:
    with connect(world.url, application_name="other") as other:
        other.execute(f"set transaction isolation level {level}".encode())
        other.execute("select 1")
        world.sql(f"alter table app.job {theirs}")
        world.follow()
        other.execute(f"alter table app.job {ours}".encode())
        other.commit()
    if world.markers():
        world.follow()
    assert not notice(world.conn, world.database)
    assert drift(world.conn, world.database) == []


def test_a_session_as_a_replica_is_noticed(world: World) -> None:
    world.sql("set session_replication_role = replica; alter table app.job add column x int")
    assert len(world.markers()) == 1


def test_a_setting_that_is_not_ours_hides_nothing(world: World) -> None:
    world.sql("set anabranch.rewritten = 'nonsense,1:2:3'; alter table app.job add column x int")
    assert len(world.markers()) == 1


def test_names_are_quoted_where_they_have_to_be(world: World) -> None:
    world.sql("create type app.\"St ate\" as enum ('a'); set quote_all_identifiers = on")
    world.sql('create table app.odd (id text primary key, s app."St ate"); reset quote_all_identifiers')
    world.add("odd")
    world.sql("set quote_all_identifiers = on; alter table app.odd add constraint c check (id <> '')")
    assert world.markers() == []


def test_what_goes_wrong_in_our_functions_fails_no_ddl(world: World) -> None:
    notices: list[str] = []
    world.conn.add_notice_handler(lambda diagnostic: notices.append(diagnostic.message_primary or ""))
    world.sql("alter table anabranch.captured rename to captured_elsewhere")
    world.sql("alter table app.job add column x int")
    world.sql("drop table app.job")
    world.sql("alter table anabranch.captured_elsewhere rename to captured")
    assert world.markers() == []
    assert notices == []


@pytest.mark.slow
def test_ddl_does_not_wait_for_a_table_of_ours(world: World) -> None:
    with connect(world.url, application_name="migration") as migration:
        migration.execute("lock table anabranch.synced_tables in access exclusive mode")
        world.sql("set statement_timeout = '20s'; alter table app.job add column x int")
        migration.rollback()
    assert world.markers() == []


def test_the_fragment_for_each_group_is_answered_by_the_index_of_markers(world: World) -> None:
    world.sql("insert into app.job select n::text from generate_series(1, 2000) n; analyze anabranch.captured")
    plan = world.rows(f"explain select {ANY_WAITING.format(database='1')}")
    assert any("captured_markers" in line for (line,) in plan)
