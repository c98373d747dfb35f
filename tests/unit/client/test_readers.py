"""Connections that read: what an app leaves open, and threads that come and go."""

from __future__ import annotations

import gc
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from anabranch.client import BatchState, ClientError, SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote


def test_a_cursor_that_is_left_open_hides_nothing_from_the_sync(device: SyncedDb, remote: MemoryRemote) -> None:
    """Promise 6. A flush that reads by an old moment would find nothing to send, and say that all is decided."""
    cursor = device.execute("SELECT id FROM todo")
    assert cursor.fetchone() is not None
    device.table("todo").update({"id": "k0", "title": "written while a cursor is open"})
    assert device.status().unsent == 1
    assert device.flush()
    assert remote.server.live()["todo", "k0"]["title"] == "written while a cursor is open"
    device.read()
    assert (device.status().queued, device.status().cursor) == (0, remote.server.head)
    assert len(cursor.fetchall()) == 4


def test_connections_go_with_their_threads(device: SyncedDb) -> None:
    assert device.execute("SELECT count(*) FROM todo").fetchone() == (5,)
    assert device.status().queued == 0
    before = len(device._file._readers)

    def work() -> None:
        assert device.execute("SELECT count(*) FROM todo").fetchone() == (5,)
        assert device.status().queued == 0

    for _ in range(20):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    gc.collect()
    assert 0 < before == len(device._file._readers)


def test_a_cursor_that_is_left_open_keeps_nothing_of_a_cleared_file(device: SyncedDb, tmp_path: Path) -> None:
    """Promise 10: whoever logs in next gets the file, with all its pages."""
    device.table("todo").insert([{"id": f"s{i}", "title": f"secret {i}"} for i in range(2_000)])
    cursor = device.execute("SELECT id, title FROM todo")
    assert cursor.fetchone() is not None
    device.clear()
    for file in tmp_path.iterdir():
        assert b"secret" not in file.read_bytes()
    with pytest.raises(sqlite3.ProgrammingError):
        cursor.fetchall()
    device.start(background=False)
    assert device.execute("SELECT count(*) FROM todo").fetchone() == (5,)


def test_a_file_that_another_process_reads_is_not_said_to_be_clear(device: SyncedDb) -> None:
    device._file._write.execute("PRAGMA busy_timeout = 50")
    with closing(sqlite3.connect(device._file.path)) as conn:
        cursor = conn.execute("SELECT id FROM todo")
        assert cursor.fetchone() is not None
        with pytest.raises(ClientError, match="is being read"):
            device.clear()
        cursor.close()
        device.clear()


@pytest.mark.parametrize("sql", ["COMMIT", " -- now\n/* or */ end", "rollback", "SAVEPOINT x", "release part"])
def test_sql_does_not_end_a_batch_half_done(device: SyncedDb, sql: str) -> None:
    """Promise 5. Rows that are committed without their batch would be shown for ever, and nobody would send them."""
    with device.batch():
        device.table("todo").update({"id": "k0", "title": "in a batch"})
        with pytest.raises(BatchState):
            device.execute(sql)
        assert device.execute("SELECT title FROM todo WHERE id = 'k0'").fetchone() == ("in a batch",)
    assert device.status().queued == 1
