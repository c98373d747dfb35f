"""Tables that take each other's names, by the log, by a description and by an update of the app."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.client.schema.altered import NOTE, TODO, Open, agrees, is_consistent, rows

from anabranch.client import SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.values import Table


def swap(ddl: Ddl) -> None:
    ddl.rename_table("todo", "note").rename_table("note", "todo")


def chain(ddl: Ddl) -> None:
    ddl.rename_table("todo", "todo_old").rename_table("note", "todo")


def swap_with_columns(ddl: Ddl) -> None:
    swap(ddl)
    ddl.rename_column("note", "body", "title")
    ddl.add_column("todo", "body", initial="x")


def taken_by_a_new_one(ddl: Ddl) -> None:
    ddl.rename_table("todo", "todo_old")
    ddl.create(Table("todo~2", NOTE.columns, ("id",), renamed="todo"), [{"id": "first", "body": "one"}])


def taken_by_one_made_anew(ddl: Ddl) -> None:
    ddl.make_anew(Table("note", TODO.columns[:2], ("title",), renamed="todo"), [{"id": "k1", "title": "anew"}])
    ddl.rename_table("todo", "note")


CHANGES = [swap, chain, swap_with_columns, taken_by_a_new_one, taken_by_one_made_anew]


def in_order(change: Callable[[Ddl], None], reverse: bool) -> Callable[[Ddl], None]:
    """The change, and its tables told in this order or the other."""

    def changed(ddl: Ddl) -> None:
        change(ddl)
        ddl.tables = dict(sorted(ddl.tables.items(), reverse=reverse))

    return changed


def names(device: SyncedDb) -> dict[str, str]:
    return {table.name: table.sql_name for table in device._file.tables().values()}


def names_of(remote: MemoryRemote) -> dict[str, str]:
    return {table.name: table.sql_name for table in remote.tables.values()}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("way", ["log", "description", "update of the app", "update offline"])
def test_tables_get_each_others_names(
    opened: Open, remote: MemoryRemote, change: Callable[[Ddl], None], reverse: bool, way: str
) -> None:
    tied = way.startswith("update") and change is not taken_by_one_made_anew
    device = opened(schema_version=1 if tied else None)
    device.table("todo").update({"id": "k1", "title": "mine"})
    remote.alter(in_order(change, reverse))
    if way == "description":
        remote.floor = remote.server.head
    device.read()
    if tied:
        assert names(device) == {"todo": "todo", "note": "note"}
        device.close()
        remote.offline = way == "update offline"
        device = opened(start=not remote.offline)
        held = names_of(remote)
        assert names(device) == {name: held[name] for name in names(device)}
        is_consistent(device)
        remote.offline = False
        device.start(background=False)
    device.read()
    assert names(device) == names_of(remote)
    is_consistent(device)
    now = names_of(remote)
    assert rows(device, now["todo"], "id", "title")[1] == ("k1", "mine")
    device.table(now["todo"]).update({"id": "k2", "title": "meant for it"})
    assert device.sync()
    assert remote.server.live()["todo", "k1"]["title"] == "mine"
    assert remote.server.live()["todo", "k2"]["title"] == "meant for it"
    agrees(device, remote, pulls=device.status().pulls)


def test_a_table_registered_ahead_of_the_log_gets_the_name_once_it_is_free(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    """It was registered by hand: its description is ahead of the log that frees its name."""
    remote.alter(lambda ddl: ddl.rename_table("todo", "todo_old"))

    def registered(ddl: Ddl) -> None:
        ddl.create(Table("todo~2", NOTE.columns, ("id",), renamed="todo"), [])

    remote.schema.tells_created = False
    remote.alter(registered)
    remote.schema.changed_at["todo~2"] = 0
    with device._file.transaction() as tx:
        tx.set(describe_due=1)
    device._reader._describing.now()
    assert names(device) == {"todo": "todo", "note": "note"}
    device.read()
    device.read()
    assert names(device) == {"todo": "todo_old", "note": "note", "todo~2": "todo"}
    agrees(device, remote, pulls=device.status().pulls)
