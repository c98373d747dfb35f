"""The catalog follows DDL: what a schema change says, what is kept of it, and what the registrations are afterwards."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from anabranch.cli.status_lines import unsynced_lines
from anabranch.store.audiences.set_expression import set_audience
from anabranch.store.catalog.drift import drift
from anabranch.store.catalog.former_tables import all_former
from anabranch.store.catalog.out_of_sync import capture_off
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.unsynced import WhyUnsynced, look
from anabranch.store.ddl.changes import AlteredMeanwhileError, changes_of
from anabranch.store.ddl.difference import TableChange
from anabranch.store.ddl.enter import enter
from anabranch.store.ddl.images import image_shapes
from anabranch.store.ddl.notice import notice
from anabranch.store.ddl.shapes import columns_of
from anabranch.store.session.engine import connect
from anabranch.testkit.waiting import until
from anabranch.v1 import snapshot_pb2
from anabranch.values import Kind

from .conftest import NAME, NOW_MS, World

ALL_HAVE_ENDED = """
select bool_and((shape ->> 'until')::xid8 <= pg_snapshot_xmin(pg_current_snapshot())) from anabranch.captured_shapes
"""
JOB = "create table app.job (id text primary key, title text, minutes integer)"


@pytest.fixture(autouse=True)
def job(world: World) -> None:
    world.sql(JOB)
    world.add("job")


def message(world: World) -> snapshot_pb2.SchemaChange:
    [(kept,)] = world.rows("select change from anabranch.schema_changes order by version desc limit 1")
    return snapshot_pb2.SchemaChange.FromString(bytes(kept))


def test_columns_are_added_with_what_rows_have_that_were_there(world: World) -> None:
    before = world.database
    world.sql("insert into app.job values ('a', 'one', 5)")
    world.sql(
        "alter table app.job add column priority integer not null default 3, add column note text;"
        "alter table app.job add column ref uuid default gen_random_uuid()"
    )
    change = world.followed()
    assert {c.name: (c.initial, c.added_position) for c in change.added} == {
        "priority": ((3,), world.position),
        "note": ((None,), world.position),
        "ref": ((None,), world.position),
    }
    assert change.rewritten == {"ref"}
    assert not change.recount
    after = world.database
    assert after.tables["job"] == change.after
    assert after.tables["job"].column_names == ("id", "title", "minutes", "priority", "note", "ref")
    assert (after.ddl_version, after.schema_version) == (2, before.schema_version + 1)
    assert after.changed_positions["job"] == world.position
    assert drift(world.conn, after) == []
    assert world.markers() == []
    told = message(world)
    assert (told.version, [table.name for table in told.tables]) == (2, ["job"])
    assert told.tables[0].columns[3].initial.int64_value == 3
    assert told.tables[0].columns[4].initial.WhichOneof("kind") == "null_value"


@pytest.mark.parametrize(
    ("declared", "cell"),
    [
        ("text default 'it''s \"so\"'", 'it\'s "so"'),
        ("integer[] default '{1,NULL,3}'", (1, None, 3)),
        ("real default 1.1", 1.100000023841858),
        ("real[] default '{1.1,-0}'", (1.100000023841858, -0.0)),
        ("double precision default 'NaN'", float("nan")),
        ("numeric(6,2) default 1.5", "1.50"),
        ("boolean default true", True),
        ("bytea default '\\x00ff'", b"\x00\xff"),
        ("timestamptz default '2024-01-02 03:04:05.678+02'", 1704157445678000),
        ("timestamp default '0044-03-15 BC'", -63517824000000000),
        ("timestamptz default 'infinity'", 2**63 - 1),
        ("date default '2024-02-29'", 19782),
        ("time default '23:59:59.5'", 86399500000),
        ("jsonb default '{\"a\": [1, null]}'", '{"a": [1, null]}'),
        ("uuid default '00000000-0000-0000-0000-00000000000A'", "00000000-0000-0000-0000-00000000000a"),
        ("interval default '1 day 02:00'", "1 day 02:00:00"),
        ("char(4) default 'ab'", "ab  "),
        ("app.state default 'open'", "open"),
        ("app.short default 'x'", "x"),
        ("money default 1234.5", "$1,234.50"),
        ("regclass default 'app.job'", "app.job"),
    ],
)
def test_a_constant_is_the_cell_that_rows_are_read_with(world: World, declared: str, cell: Any) -> None:
    world.sql("create type app.state as enum ('open', 'done'); create domain app.short as varchar(3)")
    world.sql("insert into app.job values ('a')")
    world.sql("set datestyle = 'SQL, DMY'; set timezone = 'Asia/Tokyo'; set intervalstyle = 'iso_8601'")
    world.sql("set quote_all_identifiers = on; set search_path = app, pg_catalog; set extra_float_digits = 0")
    world.sql(f"alter table app.job add column added {declared}")
    [column] = world.followed().added
    assert repr(column.initial) == repr((cell,))


def test_names_change_and_identities_stay(world: World) -> None:
    world.sql("alter table app.job rename column title to minutes_text")
    world.sql("alter table app.job rename column minutes to title; alter table app.job rename to task")
    change = world.followed()
    assert change.renamed == {"": ("job", "task"), "title": ("title", "minutes_text"), "minutes": ("minutes", "title")}
    assert (change.recount, change.rewritten, change.added, change.dropped) == (False, frozenset(), (), ())
    table = world.table("job")
    assert (table.name, table.sql_name) == ("job", "task")
    assert {c.name: c.sql_name for c in table.columns} == {"id": "id", "title": "minutes_text", "minutes": "title"}
    assert drift(world.conn, world.database) == []
    world.sql("alter table app.task rename to job; alter table app.job add column title_2 text")
    assert world.followed().renamed == {"": ("task", "job")}
    assert world.table("job").renamed == ""


def test_a_column_that_goes_is_remembered_and_its_name_is_not_used_again(world: World) -> None:
    world.sql("alter table app.job drop column title; alter table app.job add column title text default 'anew'")
    change = world.followed()
    assert [former.column.name for former in change.dropped] == ["title"]
    assert change.recount
    table = world.table("job")
    assert {c.name: c.sql_name for c in table.columns} == {"id": "id", "minutes": "minutes", "title~2": "title"}
    assert [(f.column.name, f.dropped_position, f.successor) for f in table.former] == [("title", world.position, "")]


def test_a_column_of_another_kind_is_another_column(world: World) -> None:
    world.sql("insert into app.job values ('a', 'one', 90)")
    world.sql("alter table app.job alter column minutes type numeric(6,2) using minutes / 60.0")
    change = world.followed()
    assert [(f.column.name, f.successor) for f in change.dropped] == [("minutes", "minutes~2")]
    assert change.rewritten == {"minutes~2"}
    column = world.table("job").by_name["minutes~2"]
    assert (column.sql_name, column.kind, column.postgres_type) == ("minutes", Kind.DECIMAL, "numeric(6,2)")
    assert drift(world.conn, world.database) == []


@pytest.mark.parametrize(
    ("statement", "rewritten"),
    [
        ("alter column minutes type bigint", set()),
        ("alter column minutes type bigint using minutes * 2", {"minutes"}),
        ("alter column minutes type integer using minutes * 2", {"minutes"}),
        ("alter column minutes set data type integer using minutes * 2", {"minutes"}),
        ('alter "minutes" type integer using minutes * 2', {"minutes"}),
        ("alter /* so */ minutes -- or so\n type integer using minutes * 2", {"minutes"}),
        ("alter column title type varchar(100)", {"title"}),
        ("alter column title type char(10)", {"title"}),
        ("alter column title set default 'x', alter column minutes set not null", set()),
    ],
)
def test_values_that_postgres_wrote_anew_are_sent(world: World, statement: str, rewritten: set[str]) -> None:
    world.sql("insert into app.job values ('a', 'one', 5)")
    world.sql(f"alter table app.job {statement}")
    assert world.followed().rewritten == rewritten
    assert {c.name for c in world.table("job").columns} == {"id", "title", "minutes"}
    assert drift(world.conn, world.database) == []


def test_where_the_text_hides_the_columns_all_may_have_other_values_and_so_may_the_key(world: World) -> None:
    world.sql("insert into app.job values ('a', 'one', 5)")
    world.sql("do $$ begin execute 'alter table app.job alter minutes ty' || 'pe int using 1'; end $$")
    [change] = world.changes()
    assert change.pulled == 'values of the key column "id" were changed'


def test_labels_and_attributes(world: World) -> None:
    world.sql("create type app.state as enum ('open', 'in_prgs'); create type app.place as (city text, zip text)")
    world.sql("create table app.task (id text primary key, s app.state, ss app.state[], p app.place)")
    world.add("task")
    world.sql("alter type app.state add value 'done'")
    assert world.follow() is None
    world.sql("alter type app.state rename value 'in_prgs' to 'in_progress'")
    change = world.followed()
    assert change.rewritten == {"s", "ss"}
    assert change.texts == ('values of column "s" were changed', 'values of column "ss" were changed')
    [described] = message(world).tables
    assert list(described.columns[1].enum_labels) == ["open", "in_progress", "done"]
    world.sql("alter type app.place drop attribute zip")
    assert world.followed().rewritten == {"p"}
    world.sql("alter type app.place rename attribute city to town; alter type app.place rename to spot")
    assert world.followed().rewritten == frozenset()


def test_two_that_alter_types_at_once_are_both_followed(world: World) -> None:
    world.sql("create type app.one as enum ('a', 'b'); create type app.two as enum ('c', 'd')")
    world.sql("create table app.task (id text primary key, x app.one, y app.two)")
    world.add("task")
    with connect(world.url, application_name="other") as other:
        other.execute("alter type app.one rename value 'a' to 'aa'")
        world.sql("alter type app.two rename value 'c' to 'cc'")
        other.commit()
    change = world.followed()
    assert (set(change.rewritten), change.pulled) == ({"x", "y"}, "")
    assert not notice(world.conn, world.database)


def test_generated_columns(world: World) -> None:
    world.sql("alter table app.job add column length integer generated always as (length(title)) stored")
    assert world.followed().rewritten == {"length"}
    world.sql("alter table app.job alter column length drop expression")
    change = world.followed()
    assert (change.rewritten, world.table("job").by_name["length"].generated) == (frozenset(), False)
    if world.conn.info.server_version >= 170000:
        world.sql("alter table app.job add column n integer generated always as (length(title)) stored")
        world.follow()
        world.sql("alter table app.job alter column n set expression as (2 * length(title))")
        assert world.followed().rewritten == {"n"}
    if world.conn.info.server_version >= 180000:
        world.sql("alter table app.job add column v integer generated always as (length(title)) virtual")
        assert world.follow() is None
        assert "v" not in world.table("job").by_name


def test_a_dropped_table_ends_its_registration(world: World) -> None:
    number = world.table("job").id
    world.sql("insert into app.job values ('a')")
    world.sql("drop table app.job")
    change = world.followed()
    assert change.after is None
    assert world.database.tables == {}
    [former] = all_former(world.conn, world.database.id)
    assert (former.table.id, former.table.name) == (number, "job")
    assert world.rows("select count(*) from anabranch.captured") == [(0,)]
    assert list(message(world).dropped) == ["job"]


@pytest.mark.parametrize(
    "statement",
    [
        "alter table app.job drop constraint job_pkey, add primary key (id, title)",
        "alter table app.job alter column id type uuid using gen_random_uuid()",
        "alter table app.job alter column id type text using id || 'x'",
        "alter table app.job drop column id cascade; alter table app.job add column id text primary key",
    ],
)
def test_a_table_with_another_key_is_pulled_under_another_number_and_goes_on_capturing(
    world: World, statement: str
) -> None:
    was = world.table("job").id
    world.sql(statement)
    change = world.followed()
    assert change.pulled
    table = world.table("job")
    assert change.after is not None
    assert table.id == change.after.id != was
    assert list(message(world).pulled) == ["job"]
    assert world.rows("select row_count, row_hash from anabranch.table_sums") == [(0, bytes(16))]
    assert drift(world.conn, world.database) == []
    world.sql(
        "insert into app.job (id, title) values (gen_random_uuid()::text, 'x')"
        if "uuid" not in statement
        else "insert into app.job (id, title) values (gen_random_uuid(), 'x')"
    )
    assert world.rows("select table_id, type from anabranch.captured") == [(table.id, 1)]
    [former] = all_former(world.conn, world.database.id)
    assert former.table.id == was


@pytest.mark.slow
def test_a_table_that_is_pulled_stays_uncaptured_where_it_was(world: World) -> None:
    capture_off(world.conn, NAME, "job", now_ms=NOW_MS)
    world.sql("alter table app.job drop constraint job_pkey, add primary key (id, title)")
    assert world.followed().pulled
    world.sql("insert into app.job values ('a', 'x')")
    assert world.rows("select count(*) from anabranch.captured") == [(0,)]
    assert world.database.uncaptured == {"job"}


def test_a_table_without_a_key_is_set_aside_and_pulled_once_it_has_one(world: World) -> None:
    world.sql("alter table app.job drop constraint job_pkey; alter table app.job add column x int")
    assert world.follow() is None
    assert world.database.torn == {"job"}
    assert world.table("job").column_names == ("id", "title", "minutes")
    assert any(one.stops for one in drift(world.conn, world.database))
    world.sql("alter table app.job add primary key (id)")
    change = world.followed()
    assert change.pulled
    assert world.database.torn == frozenset()
    assert world.table("job").column_names == ("id", "title", "minutes", "x")
    assert drift(world.conn, world.database) == []


def test_policies_go_with_their_columns(world: World) -> None:
    world.sql("create table app.stock (id text primary key, n integer, m integer, gone integer, k integer)")
    world.add("stock", policy={"order": "edit", "columns": {"n": "counter", "m": "max", "gone": "max", "k": "max"}})
    world.sql(
        "alter table app.stock rename n to amount; alter table app.stock alter m type date using '2024-01-01'::date;"
        "alter table app.stock drop column gone; alter table app.stock alter k type text"
    )
    world.follow()
    policy = world.database.table_policies["stock"]
    assert policy.columns == {"n": "counter", "m~2": "max"}
    assert policy.order == "edit"
    assert world.table("stock").by_name["n"].policy == "counter"


def test_images_stay_readable_by_the_columns_of_their_time(world: World) -> None:
    world.sql(
        "insert into app.job values ('a', 'one'); alter table app.job drop column title;"
        "insert into app.job values ('b', 2); alter table app.job add column note text;"
        "insert into app.job values ('c', 3, 'x')"
    )
    world.follow()
    shapes = image_shapes(world.conn, world.database.id)
    number = world.table("job").id
    ids = [one for (one,) in world.rows("select id from anabranch.captured order by id")]
    names = []
    for one in ids:
        shape = shapes.of(number, one)
        assert shape is not None
        names.append([column.name for column in columns_of(shape)])
    assert names == [["id", "title", "minutes"], ["id", "minutes"], ["id", "minutes", "note"]]
    world.sql("delete from anabranch.captured")
    until(lambda: world.rows(ALL_HAVE_ENDED) == [(True,)], 60)
    world.sql("alter table app.job drop column note")
    world.follow()
    assert len(world.rows("select from anabranch.captured_shapes")) == 1


def test_an_entry_tells_who_changed_what(world: World) -> None:
    world.sql("alter table app.job add column note text")
    world.sql("alter table app.job rename column note to remark")
    world.follow()
    [row] = world.rows(
        "select version, position, noticed_ms, role, application, command, tables from anabranch.schema_changes"
    )
    *plain, tables = row
    assert plain == [
        2, world.position, NOW_MS, "postgres", "alembic",
        "alter table app.job add column note text;\nalter table app.job rename column note to remark",
    ]  # fmt: skip
    [told] = tables.values()
    assert [column["name"] for column in told["before"]["columns"]] == ["id", "title", "minutes"]
    assert [column["name"] for column in told["after"]["columns"]] == ["id", "title", "minutes", "remark"]
    assert told["texts"] == ['column "remark" (text) was added: rows that were there have NULL']


def test_a_change_that_was_taken_back_is_none(world: World) -> None:
    world.sql("alter table app.job add column note text; alter table app.job drop column note")
    world.sql("alter table app.job rename to task; alter table app.task rename to job")
    before = world.database
    assert world.follow() is None
    assert world.markers() == []
    assert world.database.ddl_version == before.ddl_version
    world.sql("insert into app.job values ('a')")
    shape = image_shapes(world.conn, before.id).of(before.tables["job"].id, 10**9)
    assert shape is not None
    assert [column.number for column in shape.columns] == [1, 2, 3]


def test_several_tables_are_one_change(world: World) -> None:
    world.sql("create table app.site (id text primary key, city text)")
    world.add("site")
    world.sql("alter table app.job add column x int")
    world.sql("alter table app.site rename to location")
    entered = world.follow()
    assert entered is not None
    assert entered.version == 2
    assert [table.name for table in message(world).tables] == ["job", "site"]


def test_a_schema_with_another_name_keeps_its_tables(world: World) -> None:
    world.sql("create type app.state as enum ('open'); alter table app.job add column s app.state")
    world.follow()
    world.sql("alter schema app rename to application; alter table application.job add column x int")
    change = world.followed()
    assert [column.name for column in change.added] == ["x"]
    database = world.database
    assert database.schema_name == "application"
    assert drift(world.conn, database) == []
    world.sql("alter table application.job add column y int")
    assert [column.name for column in world.followed().added] == ["y"]


def test_ddl_waits_for_the_group_that_follows_and_no_longer(world: World) -> None:
    world.sql("alter table app.job add column x int")
    with connect(world.url, application_name="other", autocommit=True) as other:
        with world.conn.transaction():
            changes = changes_of(world.conn, world.database, world.markers(), position=5)
            other.execute("set lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("alter table app.job add column y int")
            enter(world.conn, world.database, changes, position=5, now_ms=NOW_MS)
        other.execute("alter table app.job add column y int")
    assert [column.name for column in world.followed().added] == ["y"]


def test_a_group_yields_to_ddl_that_is_at_work(world: World) -> None:
    world.sql("alter table app.job add column x int")
    with connect(world.url, application_name="other") as other:
        other.execute("alter table app.job add column y int")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            world.changes()
        other.commit()
    markers = world.markers()
    with pytest.raises(AlteredMeanwhileError), world.conn.transaction():
        changes_of(world.conn, world.database, markers[:1], position=5)


def test_a_restored_table_is_matched_by_names(world: World) -> None:
    world.sql("alter table app.job drop column title; alter table app.job add column title text")
    world.follow()
    world.sql("update anabranch.synced_tables set relation = 1, shape = jsonb_set(shape, '{columns,0,n}', '77')")
    world.sql("alter table app.job add column x int")
    change = world.followed()
    assert [column.name for column in change.added] == ["x"]
    assert change.dropped == ()
    assert world.table("job").column_names == ("id", "minutes", "title~2", "x")


def test_a_registration_of_the_release_before_is_followed(world: World) -> None:
    world.sql("insert into app.job values ('a')")
    world.sql("update anabranch.synced_tables set shape = null, relation = 0, column_numbers = '{}'")
    world.sql("alter table app.job rename column title to subject")
    change = world.followed()
    # Nothing tells that it is the same column.
    assert [former.column.name for former in change.dropped] == ["title"]
    world.sql("update anabranch.synced_tables set shape = null")
    world.sql("alter table app.job rename column subject to title")
    assert world.followed().renamed == {"subject": ("subject", "title")}


class TestAudiences:
    def restricted(self, world: World, expression: str) -> None:
        world.sql("create table app.note (id text primary key, team text, owner text, body text)")
        world.add("note", audience=expression)

    def test_an_expression_follows_the_names_of_its_columns(self, world: World) -> None:
        self.restricted(world, "array['team:' || team, 'user:' || owner]")
        world.sql("alter table app.note rename team to owner_2; alter table app.note rename owner to team")
        world.sql("alter table app.note rename owner_2 to owner")
        world.follow()
        audience = world.database.restricted["note"]
        assert audience.columns == ("owner", "team")
        assert audience.expression == "ARRAY[('team:'::text || owner), ('user:'::text || team)]"

    @pytest.mark.parametrize(
        "statement", ["drop column team", "alter column team type integer using 5"], ids=["dropped", "retyped"]
    )
    def test_a_table_whose_expression_lost_its_column_is_set_aside(self, world: World, statement: str) -> None:
        self.restricted(world, "'team:' || team")
        world.sql(f"alter table app.note {statement}")
        [change] = world.changes()
        assert 'its audience expression reads column "team"' in change.refused
        assert world.follow() is None
        assert world.database.torn == {"note"}
        [unsynced] = look(world.conn, world.database).unsynced
        assert change.refused in unsynced.text
        set_audience(world.conn, NAME, "note", "'owner:' || owner", now_ms=NOW_MS)
        assert world.database.torn == frozenset()
        assert drift(world.conn, world.database) == []

    def test_other_columns_do_not_matter(self, world: World) -> None:
        self.restricted(world, "'team:' || team")
        before = world.database.restricted["note"]
        world.sql("alter table app.note drop column body, add column text text")
        world.follow()
        assert world.database.restricted["note"] == before


class TestNewTables:
    def policy(self, world: World, new_tables: str) -> None:
        world.sql(f'update anabranch.databases set policy = \'{{"new_tables": "{new_tables}"}}\'')

    @pytest.mark.parametrize(
        ("policy", "taken"),
        [("all", True), ("vis*", True), ("v?sit", True), ("none", False), ("x*", False), ("Visit", False)],
    )
    def test_the_policy_says_which_are_taken(self, world: World, policy: str, taken: bool) -> None:
        self.policy(world, policy)
        world.sql("create table app.visit (id text primary key, at timestamptz)")
        assert [marker.created for marker in world.markers()] == [True] * taken
        entered = world.follow()
        assert (entered is not None) == taken
        assert ("visit" in world.database.tables) == taken
        if taken:
            assert list(message(world).created) == ["visit"]
            assert drift(world.conn, world.database) == []

    @pytest.mark.parametrize(
        "statement",
        [
            "create table app.visit (id text primary key, body text); insert into app.visit values ('v', 'x')",
            "create table app.visit as select 'v' as id, 'x' as body; alter table app.visit add primary key (id)",
            "select 'v' as id, 'x' as body into app.visit; alter table app.visit add primary key (id)",
            "create table app.visit (id text); insert into app.visit values ('v'); "
            "alter table app.visit add primary key (id); alter table app.visit add column body text",
            "create table app.v (id text primary key, body text); alter table app.v rename to visit",
            "create table app.visit (like app.job including all); alter table app.visit rename title to body; "
            "alter table app.visit drop column minutes",
        ],
    )
    def test_one_is_registered_as_it_is_in_the_end(self, world: World, statement: str) -> None:
        self.policy(world, "all")
        world.sql(statement)
        change = world.followed()
        assert (change.before, change.recount) == (None, True)
        table = world.table("visit")
        assert (table.column_names, table.key_columns, table.id) == (("id", "body"), ("id",), change.number)
        world.sql("delete from anabranch.captured; delete from app.visit; insert into app.visit values ('w')")
        assert set(world.rows("select table_id, type from anabranch.captured")) >= {(table.id, 1)}
        assert drift(world.conn, world.database) == []

    @pytest.mark.parametrize(
        ("statement", "why"),
        [
            ("create table app.visit (id text)", "no primary key"),
            ("create unlogged table app.visit (id text primary key)", ""),
            ('create table app."JOB" (id text primary key)', "differs only in case"),
            ("create table app.visit (id text primary key, _db_x int)", "belong to this product"),
        ],
    )
    def test_one_that_cannot_be_synced_is_left_alone(self, world: World, statement: str, why: str) -> None:
        self.policy(world, "all")
        world.sql(statement)
        if why:
            [change] = world.changes()
            assert why in change.refused
        assert world.follow() is None
        assert world.database.tables.keys() == {"job"}
        assert world.rows("select count(*) from pg_trigger where tgname like '%anabranch%' and not tgisinternal") == [
            (6,)
        ]

    def test_one_that_is_gone_again_leaves_nothing(self, world: World) -> None:
        self.policy(world, "all")
        world.sql("create table app.visit (id text primary key); insert into app.visit values ('v')")
        world.sql("drop table app.visit")
        assert world.follow() is None
        assert world.rows("select count(*) from anabranch.captured") == [(0,)]

    def test_one_takes_the_name_of_one_that_went(self, world: World) -> None:
        self.policy(world, "all")
        was = world.table("job").id
        world.sql("drop table app.job; create table app.job (id text primary key, other text)")
        entered = world.follow()
        assert entered is not None
        assert world.table("job~2").id != was
        assert world.table("job~2").sql_name == "job"
        told = message(world)
        assert (list(told.dropped), list(told.created)) == (["job"], ["job~2"])
        assert world.database.gone == {"job"}
        world.sql("alter table app.job rename to old_job; create table app.job (id text primary key)")
        world.follow()
        assert {t.name: t.sql_name for t in world.database.tables.values()} == {"job~2": "old_job", "job~3": "job"}
        world.sql("drop table app.job")
        world.follow()
        world.sql("create table app.job (id text primary key)")
        world.follow()
        assert {t.name: t.sql_name for t in world.database.tables.values()} == {"job~2": "old_job", "job~4": "job"}
        assert world.database.gone == {"job", "job~3"}

    def test_triggers_are_those_of_a_registration(self, world: World) -> None:
        self.policy(world, "all")
        world.sql("create table app.visit (id text primary key)")
        rows = world.rows(
            "select tgrelid::regclass::text, pg_get_triggerdef(oid), tgenabled from pg_trigger "
            "where tgname like '%anabranch%' order by tgname, tgrelid"
        )
        found = [(re.sub(r"'\d+'", "N", made).replace(name, "TABLE"), enabled) for name, made, enabled in rows]
        assert len(found) == 12
        assert found[::2] == found[1::2]


def test_the_change_of_nothing_is_none() -> None:
    assert not TableChange(None, None).is_known


def test_a_database_is_known_by_its_name(world: World) -> None:
    assert world.database.name == NAME


def test_a_table_that_was_refused_is_told_with_what_mends_it(world: World) -> None:
    world.sql("alter table app.job drop constraint job_pkey")
    # Until the log has it, the change itself is told, and not the table.
    assert look(world.conn, world.database).unsynced == ()
    world.follow()
    tables = look(world.conn, world.database)
    [one] = tables.unsynced
    assert (one.table, one.why, one.refusals) == ("job", WhyUnsynced.REFUSED, (TableRefusal.NO_PRIMARY_KEY,))
    assert one.text.startswith("it was altered so that it can't be synced (")
    assert one.text.endswith("); once that is mended it is pulled anew by itself")
    assert tables.notes == ()
    lines = [line.plain.strip() for line in unsynced_lines(NAME, "app", one, 200, 0)]
    assert lines[-1] == 'SQL: alter table "app"."job" add primary key (COLUMN)'
    world.sql("alter table app.job add primary key (id)")
    world.follow()
    assert look(world.conn, world.database).unsynced == ()
