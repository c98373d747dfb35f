"""No type that a column may have makes a writer's statement fail once its table is synced, and what is written in it is
captured exactly."""

from __future__ import annotations

import importlib

import pytest
from psycopg import errors, sql

from anabranch.store.capture import triggers
from anabranch.store.capture.rows import decode
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.group.rows import TableSql
from anabranch.store.session.engine import Session, connect
from anabranch.store.session.steps import run
from anabranch.values import Cell

OWN_TYPES = """
create type app.mood as enum ('sad', 'so so');
create domain app.grant_ as aclitem;
create type app.pair as (n int, who aclitem);
create type app.plain_pair as (n int, f float8);
create type app.acl_range as range (subtype = app.plain_pair);
create type app.shy;
create function app.shy_in(cstring) returns app.shy language internal immutable strict as 'textin';
create function app.shy_out(app.shy) returns cstring language internal immutable strict as 'textout';
create type app.shy (input = app.shy_in, output = app.shy_out, internallength = variable);
create function app.shy_send(app.shy) returns bytea language plpgsql immutable strict as
$$ begin raise exception 'shy'; end $$;
alter type app.shy set (send = app.shy_send);
create type app.mute;
create function app.mute_in(cstring) returns app.mute language internal immutable strict as 'textin';
create function app.mute_out(app.mute) returns cstring language internal immutable strict as 'textout';
create type app.mute (input = app.mute_in, output = app.mute_out, internallength = variable);
"""
VALUES = {
    "aclitem": "postgres=r/postgres",
    "aclitem[]": '{"postgres=r/postgres",NULL}',
    "gtsvector": None,
    "app.mood": "so so",
    "app.mood[]": '{sad,"so so"}',
    "app.grant_": "postgres=w/postgres",
    "app.grant_[]": "{postgres=w/postgres}",
    "app.pair": '(1,"postgres=r/postgres")',
    "app.pair[]": '{"(1,postgres=r/postgres)","(,)"}',
    "app.plain_pair": "(1,0.1)",
    "app.acl_range": '["(1,0.1)","(2,0.30000000000000004)")',
    "app.shy": 'don\'t, "look" \\ é',
    "app.shy[]": "{x,NULL}",
    "app.mute": "nothing",
    "interval": "1 year 2 days 00:00:00.5",
    "timestamptz": "2001-02-03 04:05:06.7+00",
}


def captured_rows(conn: Session, table: str) -> list[list[Cell] | None]:
    """The rows after each captured change of a table, of a delete the one before, in order."""
    registered = load_database(conn, "d").tables[table]
    found = conn.execute(
        "select coalesce(new, old) from anabranch.captured where table_id = %s and type <> 4 order by id",
        (registered.id,),
    ).fetchall()
    with conn.transaction():
        return [*decode(conn, "app", registered, [raw for (raw,) in found])]


@pytest.mark.slow
def test_no_type_makes_a_writer_fail(conn: Session) -> None:
    """Every type of the server that a column can have: whoever writes to a table with our triggers can go on."""
    conn.execute(OWN_TYPES.encode())
    types = conn.execute(
        "select oid::regtype::text from pg_type t where typtype in ('b', 'd', 'e', 'r', 'm') "
        "and not (typcategory = 'A' and typelem in (select reltype from pg_class where relkind <> 'c')) "
        "or typtype = 'c' and typrelid in (select oid from pg_class where relkind = 'c') "
        "or oid::regtype::text in ('pg_class', 'pg_class[]', 'pg_stats') order by 1"
    ).fetchall()
    assert len(types) > 150
    written = 0
    with conn.transaction():
        for number, (name,) in enumerate(types):
            try:
                with conn.transaction():
                    conn.execute(f"create table app.t{number} (id text primary key, c {name})".encode())
            except (errors.InvalidTableDefinition, errors.DatatypeMismatch, errors.FeatureNotSupported):
                continue
            triggers.install(conn, "app", f"t{number}", 1, number + 1)
            conn.execute(f"insert into app.t{number} (id) values ('x')".encode())
            conn.execute(f"update app.t{number} set id = 'y'".encode())
            conn.execute(f"delete from app.t{number}".encode())
            conn.execute(f"drop table app.t{number}".encode())
            written += 1
        assert conn.execute("select count(*) from anabranch.captured").fetchone() == (3 * written,)
    assert written > 150


@pytest.mark.parametrize("how", ["by a statement", "by a trigger of the resolver", "by truncate"])
@pytest.mark.parametrize("when", ["before", "later"])
def test_values_without_a_binary_form_are_captured_exactly(conn: Session, when: str, how: str) -> None:
    conn.execute(OWN_TYPES.encode())
    create_database(conn, "d", "app")
    names = [f"c{i}" for i in range(len(VALUES))]
    columns = [f"{name} {kind}" for name, kind in zip(names, VALUES, strict=True)]
    if when == "before":
        conn.execute(f"create table app.t (id text primary key, {', '.join(columns)}, last numeric)".encode())
        add_table(conn, "d", "t")
    else:
        conn.execute(b"create table app.t (id text primary key, last numeric)")
        add_table(conn, "d", "t")
        for column in columns:
            conn.execute(f"alter table app.t add {column}".encode())
    conn.execute(
        b"create table app.other (id int); create function app.f() returns trigger language plpgsql as $$ "
        b"begin update app.t set last = 2; return null; end $$; "
        b"create trigger f after insert on app.other for each row execute function app.f()"
    )
    # As odd as a writer's session can be.
    for setting in (
        "DateStyle = 'SQL, DMY'",
        "IntervalStyle = iso_8601",
        "TimeZone = 'Asia/Kolkata'",
        "extra_float_digits = -15",
        "bytea_output = escape",
        "client_encoding = latin1",
    ):
        conn.execute(f"set {setting}".encode())
    values = [sql.Literal(value) for value in VALUES.values()]
    conn.execute(
        sql.SQL("insert into app.t (id, {}, last) values ('x', {}, 1.50)").format(
            sql.SQL(", ").join(map(sql.Identifier, names)), sql.SQL(", ").join(values)
        )
    )
    if how == "by a statement":
        conn.execute("update app.t set last = 2")
    elif how == "by truncate":
        conn.execute("truncate app.t")
    else:
        with conn.transaction():
            conn.execute(triggers.MARK_RESOLVER)
            conn.execute("insert into app.other values (1)")
    shown = conn.execute("show DateStyle").fetchone(), conn.execute("show TimeZone").fetchone()
    assert shown == (("SQL, DMY",), ("Asia/Kolkata",)), "the writer's settings are as before"
    for name in ("DateStyle", "IntervalStyle", "TimeZone", "extra_float_digits", "bytea_output", "client_encoding"):
        conn.execute(f"reset {name}".encode())
    inserted, second = captured_rows(conn, "t")
    if when == "before":
        table = load_database(conn, "d").tables["t"]
        if how == "by truncate":
            assert second == inserted
        else:
            with conn.transaction():
                [now] = TableSql("app", table).read(conn, [("x",)])().values()
            assert second == now
    assert (inserted or [])[0] == "x"


def test_triggers_of_an_older_release_are_made_anew_as_they_were_switched(conn: Session) -> None:
    migration = importlib.import_module("anabranch.store.migrations.versions.0015_code_within_statements")
    create_database(conn, "d", "app")
    for name in ("works", "rests"):
        conn.execute(f"create table app.{name} (id text primary key)".encode())
        add_table(conn, "d", name)
        number = load_database(conn, "d").tables[name].id
        [(database,)] = conn.execute("select id from anabranch.databases").fetchall()
        conn.execute(
            f"create or replace trigger anabranch_insert after insert on app.{name} referencing new table as new_rows "
            f"for each statement when (true) execute function anabranch.capture('{database}', '{number}')".encode()
        )
        triggers.switch(conn, "app", name, on=name == "works")
    database_of = load_database(conn, "d")
    numbers = {name: table.id for name, table in database_of.tables.items()}
    before = run(conn, triggers.trigger_faults("app", database_of.id, numbers, {"rests"}))
    assert "is an old one" in before["works"].text
    assert "is an old one" in before["rests"].text
    conn.execute(migration.TRIGGERS.encode())
    assert run(conn, triggers.trigger_faults("app", database_of.id, numbers, {"rests"})) == {}
    assert "is disabled" in run(conn, triggers.trigger_faults("app", database_of.id, numbers))["rests"].text
    for name in ("works", "rests"):
        conn.execute(f"insert into app.{name} values ('x')".encode())
    assert conn.execute("select table_id from anabranch.captured").fetchall() == [(numbers["works"],)]


def _warm(conn: Session, *tables: str) -> None:
    """The session has written to the tables while all their columns were plain, in every way, and remembers that."""
    for table in tables:
        for _ in range(7):
            conn.execute(f"insert into app.{table} (id) values ('warm')".encode())
            conn.execute(f"update app.{table} set id = 'warmer'".encode())
            conn.execute(f"delete from app.{table}".encode())


ACL = "'postgres=r/postgres'"
ALTERS = {
    "a column is added": ("alter table app.t add c aclitem", ACL),
    "a column is added after others that are gone": (
        "alter table app.t add b int; alter table app.t drop b; alter table app.t add c aclitem",
        ACL,
    ),
    "a column gets another type": (f"alter table app.t alter last type aclitem using {ACL}", None),
    "an attribute is added to the type of a column": ("alter type app.plain_pair add attribute w aclitem", None),
}


@pytest.mark.parametrize("alter", ALTERS)
@pytest.mark.parametrize("by", ["itself", "itself at once", "another session"])
def test_a_session_that_has_written_sees_that_a_table_was_altered(
    conn: Session, migrated_url: str, alter: str, by: str
) -> None:
    """In the transaction that alters it, in later ones, in other sessions; and when that is rolled back."""
    conn.execute(OWN_TYPES.encode())
    create_database(conn, "d", "app")
    conn.execute(b"create table app.t (id text primary key, last text, p app.plain_pair)")
    conn.execute(b"create table app.other (id text primary key, last text)")
    add_table(conn, "d", "t")
    add_table(conn, "d", "other")
    statement, value = ALTERS[alter]
    writes = [
        f"insert into app.t (id, {'c' if value else 'last'}, p) values ('x', {value or ACL}, null)",
        "update app.t set id = 'y'",
        "delete from app.t",
        "insert into app.other (id) values ('x')",
    ]

    def write() -> None:
        for text in writes:
            conn.execute(text.encode())

    _warm(conn, "t", "other")
    conn.execute("delete from anabranch.captured")
    if by == "another session":
        with connect(migrated_url, application_name="other", autocommit=True) as other:
            other.execute(statement.encode())
        write()
    elif by == "itself at once":
        with conn.transaction(force_rollback=True):
            conn.execute(statement.encode())
            write()
        assert conn.execute("select count(*) from anabranch.captured").fetchone() == (0,)
        _warm(conn, "t", "other")
        conn.execute("delete from anabranch.captured")
        with conn.transaction():
            conn.execute(statement.encode())
            write()
    else:
        conn.execute(statement.encode())
        write()
    found = conn.execute(
        "select type, old is null, new is null from anabranch.captured where type <> 4 order by id"
    ).fetchall()
    assert found == [(1, True, False), (2, False, False), (3, False, True), (1, True, False)]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_session_with_an_old_snapshot_captures(conn: Session, isolation: str) -> None:
    create_database(conn, "d", "app")
    for name, kind in (("plain", "text"), ("odd", "aclitem")):
        conn.execute(f"create table app.{name} (id text primary key, c {kind})".encode())
        add_table(conn, "d", name)
    with conn.transaction():
        conn.execute(f"set transaction isolation level {isolation}".encode())
        for name in ("plain", "odd"):
            conn.execute(f"insert into app.{name} values ('x', {ACL})".encode())
            conn.execute(f"update app.{name} set id = id || 'y'".encode())
            conn.execute(f"update app.{name} set id = id where false".encode())
            conn.execute(f"delete from app.{name}".encode())
    _warm(conn, "plain")
    assert [rows and rows[0] for rows in captured_rows(conn, "plain")][:3] == ["x", "xy", "xy"]
    assert captured_rows(conn, "odd") == [["x", "postgres=r/postgres"], *[["xy", "postgres=r/postgres"]] * 2]
