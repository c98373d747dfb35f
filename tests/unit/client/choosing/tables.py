"""The tables of a database in memory, and what a device that has chosen some of them has in its file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from anabranch.client import SyncedDb
from anabranch.merge import MutationType, Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.v1 import position_pb2, resolver_pb2, verdict_pb2
from anabranch.values import Column, Kind, Table

NAMES = ("todo", "note", "log")
SECRET = "a value of a table that is not wanted"


def table(name: str) -> Table:
    return Table(name, (Column("id", Kind.STRING, "text"), Column("body", Kind.STRING, "text")), ("id",))


class Server(MemoryRemote):
    """Tells of the tables in ``synced``, and of ``conflicts``."""

    def __init__(self) -> None:
        tables = {name: MemoryTable({"id": None, "body": None}) for name in NAMES}
        server = MemoryServer(tables, Policy(), park_ms=1000)
        server.head = 1_000
        super().__init__(server, [table(name) for name in NAMES], lambda: time.time_ns() // 1_000_000)
        self.version = 1
        self.synced: tuple[str, ...] = NAMES
        self.verdicts: dict[str, verdict_pb2.Verdict] = {}
        self.conflicts: list[resolver_pb2.Conflict] = []
        for name in NAMES:
            for i in range(5):
                body = f"{name} {i}" if name == "todo" else f"{SECRET}: {name} {i}"
                server.preset(name, f"k{i}", {"id": f"k{i}", "body": body})

    def become(self, *names: str) -> None:
        self.synced = names
        self.version += 1

    def state(self) -> position_pb2.ServerState:
        state = super().state()
        state.schema_version = self.version
        return state

    def describe(self, request: Any, timeout_s: float = 0) -> Any:
        response = super().describe(request, timeout_s)
        kept = [t for t in response.tables if t.name in self.synced]
        del response.tables[:]
        response.tables.extend(kept)
        return response

    def verdict(self, batch_id: str) -> verdict_pb2.Verdict:
        found = super().verdict(batch_id)
        found.MergeFrom(self.verdicts.get(batch_id, verdict_pb2.Verdict()))
        return found

    def list_conflicts(self, request: Any) -> Any:
        return resolver_pb2.ListConflictsResponse(conflicts=self.conflicts)

    def set(self, name: str, key: str, body: str) -> None:
        """A write by SQL."""
        values = {"id": key, "body": body}
        there = (name, key) in self.server.live()
        kind = MutationType.UPDATE if there else MutationType.INSERT
        assert self.write([(name, kind, key, {"body": body} if there else values)])


Open = Callable[..., SyncedDb]


def in_file(device: SyncedDb) -> set[str]:
    rows = device.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name for (name,) in rows if not name.startswith(("_db_", "sqlite_"))}


def bodies(device: SyncedDb, name: str) -> dict[str, str]:
    return dict(device.execute(f'SELECT id, body FROM "{name}"').fetchall())


def live(server: Server, name: str) -> dict[str, Any]:
    return {key: row["body"] for (there, key), row in server.server.live().items() if there == name}


def holds(device: SyncedDb, text: str) -> bool:
    """Whether the bytes of the text are anywhere in the file, free pages and the write-ahead log included."""
    folder = device._file.path.parent
    return any(text.encode() in path.read_bytes() for path in folder.glob(f"{device._file.path.name}*"))


def agrees(device: SyncedDb, server: Server, *names: str) -> None:
    """The device has exactly these tables, as the server has them, and nothing is left to do."""
    assert in_file(device) == set(names)
    for name in names:
        assert bodies(device, name) == live(server, name)
        assert device.verify(name) == ()
    status = device.status()
    assert (status.queued, status.disagreeing, status.awaited) == (0, (), ())
    assert status.cursor == server.server.head
    assert device.table_sums().keys() == set(names)
