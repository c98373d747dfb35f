"""Connections that read: what an app leaves open, and threads that come and go."""

from __future__ import annotations

import gc
import threading

from anabranch.client import SyncedDb
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
