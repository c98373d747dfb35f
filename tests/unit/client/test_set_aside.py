"""The rows that a table shows while it can't take the log."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from anabranch.client import Change, SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote


def test_an_accepted_write_stays_shown_where_its_table_is_set_aside(
    device: SyncedDb, remote: MemoryRemote, tmp_path: Path
) -> None:
    with sqlite3.connect(device._file.path) as conn:
        conn.execute("CREATE UNIQUE INDEX apps_own ON todo (title)")
    other = SyncedDb(tmp_path / "other.db", remote, "d")
    other.start(background=False)
    other.table("todo").update({"id": "k0", "title": "title 1"})
    assert other.sync()
    device.read()
    assert device.execute("SELECT stage FROM _db_tables").fetchall() == [("aside",)]
    assert device.status().set_aside == ("todo",)
    told: list[Change] = []
    device.table("todo").update({"id": "k3", "title": "mine"})
    device.on_change(told.append)
    assert device.sync()
    assert device.status().queued == 0
    assert device.execute("SELECT title FROM todo WHERE id = 'k3'").fetchone() == ("mine",)
    with sqlite3.connect(device._file.path) as conn:
        conn.execute("DROP INDEX apps_own")
    device._reader._patience.clear()
    device.read()
    other.read()
    rows = "SELECT * FROM todo ORDER BY id"
    assert device.execute(rows).fetchall() == other.execute(rows).fetchall()
    assert [(c.key, c.origin) for c in told] == [(("k0",), "snapshot")]
    assert (device.status().disagreeing, device.status().set_aside) == ((), ())
    assert device.execute("SELECT count(*) FROM _db_base").fetchone() == (0,)
    other.close()
