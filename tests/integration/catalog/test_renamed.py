"""The catalog of tables that were renamed: another table takes their old name, and they are registered anew as they
are."""

from __future__ import annotations

import json

import pytest
from alembic import command

from anabranch.store import migrate
from anabranch.store.audiences.set_expression import set_audience
from anabranch.store.capture.triggers import trigger_faults
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.catalog.drift import drift, stopped_tables
from anabranch.store.catalog.former_tables import all_former
from anabranch.store.catalog.gather import add_tables, restart_captures
from anabranch.store.catalog.judging import RegistrationError, refusals, unsynced_tables
from anabranch.store.catalog.out_of_sync import capture_off
from anabranch.store.catalog.registration import add_table, create_database, remove_table
from anabranch.store.catalog.set_policy import set_table_policy
from anabranch.store.catalog.status import read_status
from anabranch.store.catalog.unsynced import look
from anabranch.store.session.engine import Session, connect
from anabranch.store.session.steps import run
from anabranch.store.writers import writer
from anabranch.store.writers.judged import lacking
from anabranch.testkit.renaming import Names, rename
from anabranch.values import Table

NOW_MS = 1_800_000_000_000
TABLES = """
create table app.t (id text primary key, n int, a text, u text unique);
create table app.child (id text primary key, t_id text references app.t (u));
insert into app.t values ('x', 1, 'a', 'u'); insert into app.child values ('c', 'u');
"""
NEW = Names('New "T"', {"id": "n", "n": "id", "u": "U"})


@pytest.fixture
def renamed(conn: Session) -> Session:
    """Table t is called New "T", its columns id and n have swapped their names."""
    conn.execute(TABLES)
    create_database(conn, "d", "app")
    add_table(conn, "d", "t", {"columns": {"n": "max"}})
    add_table(conn, "d", "child")
    rename(conn, "d", {"t": NEW})
    return conn


def database(conn: Session) -> Database:
    return load_database(conn, "d")


def names(table: Table) -> dict[str, str]:
    return {column.name: column.sql_name for column in table.columns}


AS_RENAMED = {"id": "n", "n": "id", "a": "a", "u": "U"}


def test_constraints_are_of_identities(renamed: Session) -> None:
    found = database(renamed)
    assert {key.columns for key in found.constraints["t"].unique} == {("id",), ("u",)}
    [key] = found.constraints["child"].foreign_keys
    assert (key.to_table, key.to_columns, key.synced) == ("t", ("u",), True)
    assert found.table_order == ("t", "child")
    assert found.tables["t"].sql_name == 'New "T"'
    assert (found.find('New "T"'), found.find("t")) == (found.tables["t"], found.tables["t"])


def test_another_table_takes_the_old_name(renamed: Session) -> None:
    renamed.execute("create table app.t (id int primary key, t text references app.child)")
    assert unsynced_tables(renamed, "d") == ["t"]
    assert refusals(renamed, "d", ["t"]) == []
    [added] = add_tables(renamed, "d", ["t"], now_ms=NOW_MS)
    assert (added.table.name, added.table.sql_name) == ("t~2", "t")
    found = database(renamed)
    assert list(found.tables) == ["t", "child", "t~2"]
    assert found.find("t") == found.tables["t~2"]
    [key] = found.constraints["t~2"].foreign_keys
    assert (key.to_table, key.synced) == ("child", True)
    assert drift(renamed, found) == []
    with pytest.raises(RegistrationError, match="is synced already"):
        add_table(renamed, "d", "t")
    with pytest.raises(RegistrationError, match="is synced already"):
        add_table(renamed, "d", 'New "T"')
    remove_table(renamed, "d", "t")
    with pytest.raises(RegistrationError, match=r'the table that was "t" is called "New "T"" now'):
        remove_table(renamed, "d", "t")
    assert list(database(renamed).tables) == ["t", "child"]
    assert [(one.table.name, one.table.sql_name) for one in all_former(renamed, found.id)] == [("t~2", "t")]


def test_a_table_that_a_foreign_key_points_to_is_not_taken_for_one_of_that_identity(renamed: Session) -> None:
    renamed.execute("create table app.t (id text primary key)")
    renamed.execute("alter table app.child add other text references app.t")
    found = database(renamed)
    keys = {key.columns: (key.to_table, key.synced) for key in found.constraints["child"].foreign_keys}
    assert keys == {("t_id",): ("t", True), ("other",): ("t", False)}


def test_an_audience_is_set_and_the_identities_stay(renamed: Session) -> None:
    before = database(renamed).tables["t"].id
    added = set_audience(renamed, "d", 'New "T"', """ 'of:' || "n" """, now_ms=NOW_MS)
    found = database(renamed)
    assert (added.table.name, names(added.table)) == ("t", AS_RENAMED)
    assert found.tables["t"].id != before
    assert found.restricted["t"].columns == ("n",)
    assert found.table_policies["t"].columns == {"n": "max"}
    sums = renamed.execute("select audience, row_count from anabranch.audience_sums").fetchall()
    assert sums == [("of:x", 1)]


def test_a_capture_is_turned_on_again_and_the_identities_stay(renamed: Session) -> None:
    capture_off(renamed, "d", 'New "T"')
    found = database(renamed)
    assert [one.table for one in look(renamed, found).unsynced] == ['New "T"']
    _, [status] = read_status(renamed)
    assert status.tables == {'New "T"': 1, "child": 1}
    assert [one.table for one in status.unsynced] == ['New "T"']
    renamed.execute('alter table app."New ""T""" drop column a, add column a int')
    for name in ('New "T"', "t"):
        [added] = restart_captures(renamed, "d", [name], now_ms=NOW_MS)
        assert names(added.table) == {"id": "n", "n": "id", "u": "U", "a~2": "a"}
        assert [one.column.name for one in added.table.former] == ["a"]
        found = database(renamed)
        assert found.table_policies["t"].columns == {"n": "max"}
        assert (drift(renamed, found), found.tables["t"].former) == ([], added.table.former)


def test_policies_are_set_by_the_names_of_today(renamed: Session) -> None:
    found = set_table_policy(renamed, "d", 'New "T"', {"columns": {"id": "min", "U": "reject"}}, [])
    assert found.table_policies["t"].columns == {"n": "min", "u": "reject"}
    assert found.tables["t"].by_name["n"].policy == "min"
    with pytest.raises(RegistrationError, match="no update writes"):
        set_table_policy(renamed, "d", 'New "T"', {"columns": {"n": "reject"}}, [])


def test_a_writer_has_its_rights_to_the_table_of_today(renamed: Session, migrated_url: str) -> None:
    renamed.execute("create table app.t (id int primary key)")
    [[role]] = renamed.execute("select 'writer_' || oid from pg_database where datname = current_database()").fetchall()
    renamed.execute(f"create role {role} login password 'secret'".encode())
    try:
        writer.make(renamed, role)
        renamed.execute(f'revoke update on app."New ""T""" from {role}'.encode())
        with connect(f"{migrated_url}", application_name="test", autocommit=True) as conn:
            conn.execute(f"set session authorization {role}".encode())
            assert lacking(conn) == ['app.New "T"']
    finally:
        renamed.execute(f"drop owned by {role}; drop role {role}".encode())


def test_a_rename_that_nobody_entered_is_told_as_one(renamed: Session) -> None:
    renamed.execute('alter table app."New ""T""" rename column n to key')
    renamed.execute("alter table app.child rename to little")
    found = drift(renamed, database(renamed))
    assert [(one.table, one.called, one.text, one.stops) for one in found if one.table == "t"] == [
        ("t", 'New "T"', 'column "n" is called "key" now', True)
    ]
    assert stopped_tables(found)["t"].startswith('table "New "T"" is no longer what was registered')
    assert ("child", "the table is gone") in [(one.table, one.text) for one in found]


def test_columns_of_another_table_of_the_name_are_told_by_their_names(renamed: Session) -> None:
    """As after a dump was restored: numbers are new, and names are what is left."""
    renamed.execute("update anabranch.synced_tables set relation = 1")
    assert drift(renamed, database(renamed)) == []
    renamed.execute('alter table app."New ""T""" rename column n to key')
    texts = [one.text for one in drift(renamed, database(renamed)) if one.table == "t" and one.stops]
    assert texts == ["the key was n and is key", 'column "n" is gone']


def test_triggers_are_those_of_the_registration(renamed: Session) -> None:
    found = database(renamed)
    assert run(renamed, trigger_faults("app", found.id, {'New "T"': found.tables["t"].id})) == {}


def test_an_upgrade_reads_the_numbers_of_what_was_registered_before(database_url: str) -> None:
    with connect(database_url, application_name="test", autocommit=True) as conn:
        conn.execute("create schema anabranch")
        with migrate._transaction(database_url) as connection:
            config = migrate._config()
            config.attributes["connection"] = connection
            command.upgrade(config, "0022")
        conn.execute("create schema app; create table app.t (gone int, id text primary key, n int)")
        conn.execute("alter table app.t drop column gone; create table app.other (id text primary key)")
        _register_as_before(conn, "t", ["id", "n"])
        _register_as_before(conn, "other", ["id", "lost"])
        _register_as_before(conn, "nowhere", ["id"])
        assert migrate.upgrade(database_url)
        found = load_database(conn, "d")
        assert {name: [c.number for c in table.columns] for name, table in found.tables.items()} == {
            "t": [2, 3],
            "other": [0, 0],
            "nowhere": [0],
        }
        [[oid]] = conn.execute("select 'app.t'::regclass::oid::int8").fetchall()
        assert found.relations == {"t": oid, "other": 0, "nowhere": 0}
        # A release before this one reads columns as they were.
        [[kept]] = conn.execute("select columns from anabranch.synced_tables where name = 't'").fetchall()
        assert all("number" not in column for column in kept)


def _register_as_before(conn: Session, table: str, columns: list[str]) -> None:
    conn.execute(
        "insert into anabranch.databases (name, schema_name, epoch, policy, seal_key, created_ms)"
        " values ('d', 'app', 'e', '{}', 'k', 0) on conflict do nothing"
    )
    described = [
        {
            "name": name,
            "kind": 5,
            "element_kind": None,
            "postgres_type": "text",
            "not_null": False,
            "generated": False,
            "has_default": False,
        }
        for name in columns
    ]
    conn.execute(
        "insert into anabranch.synced_tables (database_id, name, columns, key_columns, policy, registered_ms,"
        " first_position) select id, %s, %s, '{id}', '{}', 0, 0 from anabranch.databases",
        (table, json.dumps(described)),
    )
