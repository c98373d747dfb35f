"""A log that names tables which the device does not have."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from anabranch.client import SyncedDb
from anabranch.merge import Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.values import Column, Kind, Table

TABLES = [Table(name, (Column("id", Kind.STRING, "text"),), ("id",)) for name in ("todo", "gone")]


class Tells(MemoryRemote):
    """Describes ``todo`` only."""

    def describe(self, request: Any, timeout_s: float = 0) -> Any:
        response = super().describe(request, timeout_s)
        del response.tables[1:]
        return response


def test_it_is_passed_over_without_asking_each_time(tmp_path: Path) -> None:
    server = MemoryServer({t.name: MemoryTable({"id": None}) for t in TABLES}, Policy(), park_ms=1000)
    server.head = 1_000

    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    everything, todo = MemoryRemote(server, TABLES, now_ms), Tells(server, TABLES, now_ms)
    with_it, without_it = SyncedDb(tmp_path / "a.db", everything, "d"), SyncedDb(tmp_path / "b.db", todo, "d")
    for device in (with_it, without_it):
        device.start(background=False)
    for i in range(3):
        with with_it.batch():
            with_it.table("gone").insert({"id": f"g{i}"})
            with_it.table("todo").insert({"id": f"t{i}"})
        assert with_it.sync()
        without_it.read()
    assert without_it.execute("SELECT id FROM todo ORDER BY id").fetchall() == [("t0",), ("t1",), ("t2",)]
    assert without_it.status().cursor == server.head
    assert todo.calls["describe"] == 1
    for device in (with_it, without_it):
        device.close()
