"""A refusal of SQLite stops one table, and never the sync."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.client.schema.altered import TODO, Open, in_file, is_consistent, rows, states, told

from anabranch.client import SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.values import Column, Kind, Table

WITH_KEY = Table("todo", (*TODO.columns[:2], replace(TODO.columns[2], not_null=True)), ("id", "n"))
TWICE = replace(WITH_KEY, columns=(*WITH_KEY.columns, Column("Title", Kind.STRING, "text")))


def own(device: SyncedDb, *statements: str) -> None:
    with device._file.transaction() as tx:
        for statement in statements:
            tx.conn.execute(statement)


def anew(ddl: Ddl, table: Table) -> None:
    ddl.make_anew(table, [])
    for i in range(3):
        cells = {"id": f"k{i}", "title": f"title {i}", "n": i}
        ddl._set("todo", f"k{i}", {**dict.fromkeys(table.column_names), **cells})


@pytest.mark.parametrize(
    "thing", ["CREATE TABLE settings (k)", "CREATE VIEW settings AS SELECT 1", "CREATE INDEX settings ON note (body)"]
)
def test_a_table_made_anew_whose_name_the_app_has_keeps_its_own(
    device: SyncedDb, remote: MemoryRemote, thing: str
) -> None:
    own(device, thing)
    events = told(device)
    device.table("todo").insert({"id": "new", "title": "mine", "n": 9})
    remote.alter(lambda ddl: anew(ddl, replace(WITH_KEY, renamed="settings")))
    device.read()
    is_consistent(device)
    assert {"todo", "note"} <= in_file(device)
    assert "not_renamed" in states(events)
    assert rows(device, "todo", "id", "title")[-1] == ("new", "mine")
    remote.alter(lambda ddl: ddl.update("note", "k1", body="theirs"))
    remote.alter(lambda ddl: ddl.add_column("todo", "later", initial="x"))
    device.read()
    assert rows(device, "note", "id", "body")[1] == ("k1", "theirs")
    assert rows(device, "todo", "id", "later")[0] == ("k0", "x")


def test_a_table_made_anew_that_sqlite_can_not_hold_is_set_aside_alone(device: SyncedDb, remote: MemoryRemote) -> None:
    events = told(device)
    device.table("todo").insert({"id": "new", "title": "mine", "n": 9})
    remote.alter(lambda ddl: anew(ddl, TWICE))
    remote.alter(lambda ddl: ddl.update("note", "k1", body="theirs"))
    device.read()
    is_consistent(device)
    assert in_file(device) == {"note"}
    assert "set_aside" in states(events)
    assert rows(device, "note", "id", "body")[1] == ("k1", "theirs")
    # Once SQLite can hold it, it comes back by itself.
    remote.alter(lambda ddl: ddl.drop_column("todo", "Title"))
    device.read()
    is_consistent(device)
    assert in_file(device) == {"note", "todo"}
    assert rows(device, "todo", "id", "title", "n")[-1] == ("new", "mine", 9)


def test_the_same_by_description(device: SyncedDb, remote: MemoryRemote) -> None:
    own(device, "CREATE TABLE settings (k)")
    remote.alter(lambda ddl: anew(ddl, replace(WITH_KEY, renamed="settings")))
    remote.alter(lambda ddl: ddl.rename_column("note", "body", "text"))
    remote.floor = remote.server.head
    device.read()
    is_consistent(device)
    assert in_file(device) == {"note", "todo", "settings"}
    assert rows(device, "todo", "id", "title", "n") == [(f"k{i}", f"title {i}", i) for i in range(3)]
    assert rows(device, "note", "id", "text")[1] == ("k1", "body 1")


def both_renamed(ddl: Ddl) -> None:
    ddl.rename_table("todo", "note").rename_table("note", "settings")


def settings_alone(ddl: Ddl) -> None:
    ddl.rename_table("note", "settings")


def names(device: SyncedDb) -> dict[str, str]:
    return {table.name: table.sql_name for table in device._file.tables().values()}


@pytest.mark.parametrize("way", ["log", "description", "update of the app"])
def test_tables_of_a_chain_keep_their_names_where_the_app_has_the_last_one(
    opened: Open, remote: MemoryRemote, way: str
) -> None:
    device = opened(schema_version=1 if way == "update of the app" else None)
    own(device, "CREATE TABLE settings (k)")
    events = told(device)
    device.table("todo").update({"id": "k1", "title": "mine"})
    remote.alter(both_renamed)
    if way == "description":
        remote.floor = remote.server.head
    device.read()
    if way == "update of the app":
        device.close()
        device = opened()
        device.read()
    else:
        assert "not_renamed" in states(events)
    is_consistent(device)
    assert names(device) == {"todo": "todo", "note": "note"}
    assert device.sync()
    assert remote.server.live()["todo", "k1"]["title"] == "mine"
    # They get their names once there is room.
    own(device, "DROP TABLE settings")
    remote.alter(lambda ddl: (ddl.rename_table("todo", "task"), ddl.rename_table("note", "settings")))
    device.read()
    assert names(device) == {"todo": "task", "note": "settings"}
    is_consistent(device)
