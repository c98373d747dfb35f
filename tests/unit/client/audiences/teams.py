"""A server in memory whose jobs are seen by their teams, and its notes by all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from anabranch.client import SyncedDb
from anabranch.merge import MutationType, Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable, Row
from anabranch.values import Column, Kind, Table


def of_job(row: Row) -> list[str]:
    return [] if row["team"] is None else [f"team:{team}" for team in str(row["team"]).split("+")]


def table(name: str, *columns: str) -> Table:
    return Table(name, tuple(Column(c, Kind.STRING, "text") for c in ("id", *columns)), ("id",))


JOB, NOTE = table("job", "team", "title"), table("note", "title")
ROWS = {"j0": "a", "j1": "a", "j2": "b", "j3": "b", "j4": "a+b", "j5": "c", "j6": None}


class Teams(MemoryRemote):
    """``ALICE`` is the device's principal."""

    def __init__(self, restricted: bool = True) -> None:
        tables = {
            "job": MemoryTable({"id": None, "team": None, "title": None}, audience=of_job if restricted else None),
            "note": MemoryTable({"id": None, "title": None}),
        }
        server = MemoryServer(tables, Policy(), park_ms=1000)
        server.head = 1_000
        super().__init__(server, [JOB, NOTE], lambda: time.time_ns() // 1_000_000, "alice")
        for key, team in ROWS.items():
            server.preset("job", key, {"id": key, "team": team, "title": key})
        server.preset("note", "n0", {"id": "n0", "title": "n0"})
        server.sets["alice"] = frozenset({"team:a"})
        self.sums()

    def member_of(self, *teams: str) -> None:
        """Make the principal a member of these teams alone."""
        assert self.write([], {"alice": frozenset(f"team:{team}" for team in teams)})

    def set(self, key: str, **values: Any) -> None:
        """A write by SQL to a job."""
        there = ("job", key) in self.server.live()
        kind = MutationType.UPDATE if there else MutationType.INSERT
        assert self.write([("job", kind, key, values if there else {"id": key, "title": key, **values})])

    def drop(self, key: str) -> None:
        """Delete a job by SQL."""
        assert self.write([("job", MutationType.DELETE, key, {})])


Open = Callable[..., SyncedDb]


def jobs(device: SyncedDb) -> dict[str, str]:
    return dict(device.execute("SELECT id, title FROM job ORDER BY id").fetchall())


def held(device: SyncedDb) -> set[str]:
    return set(device.status().audiences)


def is_right(device: SyncedDb, remote: Teams) -> None:
    """The device has what its principal may see, and nothing else; nothing is left to do."""
    mine = remote.server.sets["alice"] | remote.server.claims.get("alice", frozenset())
    choice = device._file.current().chosen_audiences
    mine = mine if choice is None else mine & choice
    rows = {key: row for (name, key), row in remote.server.live().items() if name == "job"}
    assert jobs(device) == {key: row["title"] for key, row in rows.items() if mine.intersection(of_job(row))}
    assert held(device) == mine
    status = device.status()
    assert (status.queued, status.disagreeing, status.cursor) == (0, (), remote.server.head)
    assert device.verify() == ()
    kept = {key for (key,) in device.execute("SELECT key FROM _db_row_audiences")}
    assert kept == jobs(device).keys()
    sums = {audience for (audience,) in device.execute("SELECT audience FROM _db_audience_sums WHERE tbl = 'job'")}
    assert sums == mine
