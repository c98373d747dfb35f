"""A table whose key is another one: pulled anew, with the queue on top, and altered like any other from then on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.client.schema.altered import TODO, is_consistent, rows

from anabranch.client import SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.values import Column, Kind, Table

WIDER = Table("todo", (*TODO.columns[:2], replace(TODO.columns[2], not_null=True)), ("id", "n"))
NUMBERED = Table("todo", (*TODO.columns[:2], replace(TODO.columns[2], not_null=True)), ("n",))
RETYPED = Table("todo", (Column("id~2", Kind.INT64, "bigint", renamed="id"), *TODO.columns[1:]), ("id~2",))


def with_key(ddl: Ddl, table: Table) -> None:
    ddl.make_anew(table, [])
    for i in range(3):
        cells = {"id": f"k{i}", "id~2": i, "title": f"title {i}", "n": i}
        ddl._set("todo", f"k{i}", {name: cells[name] for name in table.column_names})


@pytest.mark.parametrize("table", [WIDER, NUMBERED, RETYPED], ids=["wider", "other", "retyped"])
@pytest.mark.parametrize("key", ["new", "7", "[7]", '["a", 1]'])
def test_a_table_whose_key_changed_is_altered_with_batches_in_the_queue(
    device: SyncedDb, remote: MemoryRemote, table: Table, key: str
) -> None:
    device.table("todo").insert({"id": key, "title": "mine", "n": 9})
    device.table("todo").update({"id": "k1", "title": "mine"})
    remote.alter(lambda ddl: with_key(ddl, table))
    remote.alter(lambda ddl: ddl.add_column("todo", "later", initial="x"))
    device.read()
    is_consistent(device)
    remote.alter(lambda ddl: ddl.add_column("todo", "more", initial="y"))
    device.read()
    is_consistent(device)
    assert [row[-2:] for row in rows(device, "todo", "n", "later", "more")][:3] == [("x", "y")] * 3


@pytest.mark.parametrize("table", [WIDER, NUMBERED], ids=["wider", "other"])
def test_what_is_queued_shows_on_top_of_a_table_with_another_key(
    device: SyncedDb, remote: MemoryRemote, table: Table
) -> None:
    device.table("todo").insert({"id": "new", "title": "mine", "n": 9})
    remote.alter(lambda ddl: with_key(ddl, table))
    device.read()
    is_consistent(device)
    assert rows(device, "todo", "id", "title", "n")[-1] == ("new", "mine", 9)
    remote.alter(lambda ddl: ddl.add_column("todo", "later", initial="x"))
    device.read()
    is_consistent(device)
    assert rows(device, "todo", "id", "title", "n", "later")[-1] == ("new", "mine", 9, None)


def test_a_file_that_has_keys_of_before_is_followed(device: SyncedDb, remote: MemoryRemote) -> None:
    """An earlier release left them there when the key changed."""
    device.table("todo").insert({"id": "new", "title": "mine", "n": 9})
    remote.alter(lambda ddl: with_key(ddl, WIDER))
    device.read()
    with device._file.transaction() as tx:
        tx.conn.execute("INSERT INTO _db_pending_rows (tbl, key, batch) SELECT tbl, 'old', batch FROM _db_pending_rows")
    remote.alter(lambda ddl: ddl.add_column("todo", "later", initial="x"))
    device.read()
    assert rows(device, "todo", "id", "title", "n", "later")[-1] == ("new", "mine", 9, None)
