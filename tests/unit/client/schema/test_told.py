"""``on_schema``: before and after the tables become others."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.schema.altered import Open, agrees, columns, in_file, is_consistent, phases, rows, states
from tests.unit.client.schema.altered import told as all_told

from anabranch.client import Schema, SyncedDb, events
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.v1 import change_pb2
from anabranch.values import Column, Kind, Table


def test_before_it_the_tables_are_the_old_ones_and_after_it_the_new_ones(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    seen: list[tuple[str, list[str]]] = []
    device.on_schema(lambda event: seen.append((event.phase, columns(device, "todo"))))
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    device.read()
    assert seen == [("before", ["id", "title", "n"]), ("after", ["id", "subject", "n"])]


def test_each_change_is_told_and_none_twice(device: SyncedDb, remote: MemoryRemote) -> None:
    told: list[Any] = []
    end = device.on_schema(told.append)
    remote.alter(lambda ddl: ddl.rename_table("todo", "task"))
    remote.alter(lambda ddl: ddl.drop_table("note").rename_column("todo", "title", "subject"))
    device.read()
    device.read()
    assert phases(told) == [
        (2, ("todo",), "before"),
        (3, ("note", "todo"), "before"),
        (2, ("task",), "after"),
        (3, ("note", "task"), "after"),
    ]
    end()
    remote.alter(lambda ddl: ddl.rename_table("todo", "todo"))
    device.read()
    assert len(told) == 4


def test_what_changes_nothing_here_is_not_told(opened: Open, remote: MemoryRemote) -> None:
    device = opened(tables=["note"])
    told: list[Any] = []
    device.on_schema(told.append)
    remote.alter(lambda ddl: ddl.rename_table("todo", "task"))
    device.read()
    assert told == []
    assert device.status().schema_version == 2


def test_a_callback_that_raises_loses_nothing(device: SyncedDb, remote: MemoryRemote) -> None:
    told: list[Schema] = []

    def fails(event: Schema) -> None:
        raise RuntimeError(event.phase)

    device.on_schema(fails)
    device.on_schema(told.append)
    device.table("todo").update({"id": "k1", "title": "mine"})
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    assert device.sync()
    agrees(device, remote)
    assert [event.phase for event in told] == ["before", "after"]


def test_a_callback_may_write_and_read_the_log(device: SyncedDb, remote: MemoryRemote) -> None:
    def writes(event: Schema) -> None:
        name = "subject" if event.phase == "after" else "title"
        device.table("todo").update({"id": "k1", name: event.phase})
        if event.phase == "after":
            device.sync()

    device.on_schema(writes)
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    device.read()
    assert device.sync()
    agrees(device, remote)
    assert rows(device, "todo", "subject")[-1] == ("title 4",)
    assert remote.server.live()["todo", "k1"]["title"] == "after"


def test_a_read_inside_of_a_callback_tells_at_once(device: SyncedDb, remote: MemoryRemote) -> None:
    seen: list[tuple[str, list[str]]] = []
    device.on_schema(lambda event: seen.append((event.phase, columns(device, "todo"))))
    device.on_change(lambda change: device.read())
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    device.table("todo").update({"id": "k1", "title": "mine"})
    assert seen[0] == ("before", ["id", "title", "n"])
    assert ("after", ["id", "subject", "n"]) in seen


def test_a_callback_elsewhere_holds_the_change_up_and_not_for_ever(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_SHORT_S", 0.05)
    entered, leave = threading.Event(), threading.Event()
    told: list[str] = []

    def waits(_: Any) -> None:
        entered.set()
        assert leave.wait(30)

    device.on_schema(lambda event: told.append(event.phase))
    device.on_change(waits)
    writer = threading.Thread(target=device.table("todo").update, args=({"id": "k1", "title": "mine"},))
    writer.start()
    assert entered.wait(30)
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    device.read()
    assert columns(device, "todo") == ["id", "subject", "n"]
    leave.set()
    writer.join()
    assert told == ["before", "after"]


def test_a_change_that_could_not_be_made_is_told_again(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    device.on_schema(told.append)
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject").add_column("todo", "c", initial="x"))
    statement = "ALTER TABLE"

    def trace(sql: str) -> None:
        if sql.startswith(statement):
            device._file._write.interrupt()

    device._file._write.set_trace_callback(trace)
    device._file._write.set_progress_handler(lambda: 0, 1)
    with pytest.raises(sqlite3.Error, match="interrupted"):
        device.read()
    device._file._write.set_trace_callback(None)
    assert phases(told) == [(2, ("todo",), "before")]
    assert columns(device, "todo") == ["id", "title", "n"]
    device.read()
    assert [phase for _, _, phase in phases(told)] == ["before", "before", "after"]
    agrees(device, remote)


def test_another_process_finds_the_new_tables(device: SyncedDb, remote: MemoryRemote, tmp_path: Path) -> None:
    other = SyncedDb(tmp_path / "d.db", remote, "d")
    other.table("todo").update({"id": "k1", "title": "by the other"})
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject").rename_table("note", "remark"))
    device.read()
    other.table("todo").update({"id": "k2", "subject": "by the other, after"})
    other.table("remark").delete("k0")
    with pytest.raises(ValueError, match="no column 'title'"):
        other.table("todo").update({"id": "k1", "title": "x"})
    other.close()
    assert device.sync()
    agrees(device, remote)
    assert rows(device, "todo", "id", "subject")[1:3] == [("k1", "by the other"), ("k2", "by the other, after")]


def test_a_background_that_follows_applies_it(opened: Open, remote: MemoryRemote) -> None:
    """The subscription's way: pages come one by one, and the file is described once more in between."""
    device = opened()
    after = device.status().cursor
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    remote.alter(lambda ddl: ddl.update("todo", "k1", title="by SQL"))
    reader = device._reader
    with reader._turn:
        reader._following.restart(after)
        for part in remote._parts(after, remote.view(device._file.current().reader_state)):
            page = change_pb2.Page(groups=[part], reached=remote.position(part.position - part.incomplete))
            applied = reader._following.page(page)
            reader._look(applied, remote.state())
    device.read()
    agrees(device, remote)


def own(device: SyncedDb, statement: str) -> None:
    with device._file.transaction() as tx:
        tx.conn.execute(statement)


def test_a_table_that_keeps_its_name_is_told_of_where_it_is_altered_alone(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    own(device, "CREATE TABLE settings (k)")
    remote.alter(lambda ddl: ddl.rename_table("todo", "settings"))
    device.read()
    device.read()
    events = all_told(device)
    remote.alter(lambda ddl: ddl.rename_column("note", "body", "text"))
    device.read()
    assert phases(events) == [(3, ("note",), "before"), (3, ("note",), "after")]
    assert states(events) == []
    is_consistent(device)
    # Once there is room, the next description has it renamed.
    own(device, "DROP TABLE settings")
    remote.alter(lambda ddl: ddl.rename_column("note", "body", "body"))
    device.read()
    assert in_file(device) == {"settings", "note"}
    assert phases(events)[-2:] == [(4, ("todo",), "before"), (4, ("todo",), "after")]
    agrees(device, remote)


IN_THE_WAY = Table("settings", (Column("id", Kind.STRING, "text"),), ("id",))
TWICE = Table("twice", (Column("id", Kind.STRING, "text"), Column("ID", Kind.STRING, "text")), ("id",))


@pytest.mark.parametrize("table", [IN_THE_WAY, TWICE], ids=["name", "columns"])
@pytest.mark.parametrize("created", [True, False])
def test_a_table_that_can_not_be_made_is_told_of_once(
    device: SyncedDb, remote: MemoryRemote, table: Table, created: bool
) -> None:
    own(device, "CREATE TABLE settings (k)")
    remote.schema.tells_created = created
    remote.alter(lambda ddl: ddl.create(table))
    device.read()
    device.read()
    events = all_told(device)
    remote.alter(lambda ddl: ddl.rename_column("note", "body", "text"))
    device.read()
    remote.alter(lambda ddl: ddl.rename_column("note", "body", "body"))
    device.read()
    assert [names for _, names, _ in phases(events)] == [("note",)] * 4
    assert states(events) == []
    is_consistent(device)


def test_a_table_that_could_not_be_made_comes_once_there_is_room(device: SyncedDb, remote: MemoryRemote) -> None:
    own(device, "CREATE TABLE settings (k)")
    remote.alter(lambda ddl: ddl.create(IN_THE_WAY, [{"id": "x"}]))
    device.read()
    assert in_file(device) == {"settings", "todo", "note"}
    own(device, "DROP TABLE settings")
    remote.alter(lambda ddl: ddl.rename_column("note", "body", "text"))
    device.read()
    device.read()
    assert rows(device, "settings") == [("x",)]
    agrees(device, remote, pulls=2)
