"""A file of the format before schema changes were followed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.unit.client.older import before_schema_changes
from tests.unit.client.schema.altered import Open, agrees, in_file, is_consistent, rows

from anabranch.client.file import layout
from anabranch.testkit.memory_remote import MemoryRemote


def make_older(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("BEGIN")
        before_schema_changes(conn)
        conn.execute("PRAGMA user_version = 8")
        conn.execute("COMMIT")


def test_it_goes_on_with_its_queue_and_follows_what_comes(opened: Open, remote: MemoryRemote) -> None:
    device = opened()
    device.table("todo").update({"id": "k1", "title": "mine"})
    device.close()
    make_older(device._file.path)
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject").add_column("todo", "c", initial="x"))
    described = remote.calls["describe"]
    again = opened()
    assert again.execute("PRAGMA user_version").fetchone() == (layout.FORMAT,)
    is_consistent(again)
    assert rows(again, "todo")[1] == ("k1", "mine", 1)
    again.read()
    assert remote.calls["describe"] > described, "what the release before did not keep is asked for"
    assert rows(again, "todo", "id", "subject", "c")[1] == ("k1", "mine", "x")
    assert again.sync()
    agrees(again, remote)


def test_what_the_release_before_has_passed_over_is_pulled(opened: Open, remote: MemoryRemote) -> None:
    """It read the log, and left out what it did not know."""
    device = opened()
    device.table("todo").update({"id": "k1", "title": "mine"})
    remote.alter(lambda ddl: ddl.rename_table("note", "remark").add_column("todo", "c", initial="x"))
    with device._file.transaction() as tx:
        tx.set(cursor_ms=remote.server.head)
    device.close()
    make_older(device._file.path)
    again = opened()
    again.read()
    assert in_file(again) == {"todo", "remark"}
    assert again.sync()
    agrees(again, remote, pulls=2)
