"""A device whose server is of a newer release: what it can't name or hold stops nothing else."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import ConflictEvent, State, SyncedDb
from anabranch.client.file import layout
from anabranch.merge import Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.v1 import errors_pb2, position_pb2, verdict_pb2
from anabranch.values import Column, Kind, Table
from anabranch.wire.enum_names import enum_name

UNKNOWN = 9_999
TODO, LATER = (Table(name, (Column("id", Kind.STRING, "text"),), ("id",)) for name in ("todo", "later"))


class Newer(MemoryRemote):
    """Uses numbers that this release does not know: as reason and outcome of verdicts, as kind of ``later.id``, and as
    the policy of ``todo.id``."""

    kind = UNKNOWN
    schema_version = 1

    def state(self) -> position_pb2.ServerState:
        state = super().state()
        state.schema_version = self.schema_version
        return state

    def describe(self, request: Any, timeout_s: float = 0) -> Any:
        response = super().describe(request, timeout_s)
        for table in response.tables:
            if table.name == "later":
                table.columns[0].kind = self.kind  # type: ignore[assignment]
            else:
                table.columns[0].policy = "median"
        return response

    def verdict(self, batch_id: str) -> verdict_pb2.Verdict:
        verdict = super().verdict(batch_id)
        if verdict.status == verdict_pb2.VERDICT_STATUS_REJECTED:
            verdict.reason = UNKNOWN  # type: ignore[assignment]
            verdict.mutations.add(table="todo", outcome=UNKNOWN)
        return verdict


@pytest.fixture
def newer() -> Newer:
    server = MemoryServer({t.name: MemoryTable({"id": None}) for t in (TODO, LATER)}, Policy(), park_ms=1000)
    server.head = 1_000
    server.preset("todo", "there", {"id": "there"})
    server.preset("later", "there", {"id": "there"})
    return Newer(server, (TODO, LATER), lambda: time.time_ns() // 1_000_000)


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def device(newer: Newer, told: list[Any], tmp_path: Path) -> Iterator[SyncedDb]:
    made = SyncedDb(tmp_path / "a.db", newer, "d")
    made.on_state(told.append)
    made.on_conflict(told.append)
    made.start(background=False)
    yield made
    made.close()


def test_a_reason_and_an_outcome_without_a_name_are_told_by_number(
    device: SyncedDb, newer: Newer, told: list[Any]
) -> None:
    assert device.sync()
    refused = device.table("todo").insert({"id": "meanwhile"})
    newer.server.preset("todo", "meanwhile", {"id": "meanwhile"})
    kept = device.table("todo").insert({"id": "kept"})
    assert device.sync()
    verdict = device.verdict(refused)
    assert verdict is not None
    assert (verdict.reason, verdict.mutations[0].outcome) == (f"UNKNOWN_{UNKNOWN}", f"UNKNOWN_{UNKNOWN}")
    assert [letter.reason for letter in device.dead_letters()] == [f"UNKNOWN_{UNKNOWN}"]
    assert [e.reason for e in told if isinstance(e, ConflictEvent)] == [f"UNKNOWN_{UNKNOWN}"]
    assert device.status().queued == 0
    assert (kept_verdict := device.verdict(kept)) is not None
    assert kept_verdict.status == "APPLIED"


def test_a_table_of_an_unknown_kind_is_set_aside_and_the_others_are_synced(
    device: SyncedDb, newer: Newer, told: list[Any]
) -> None:
    assert device.sync()
    assert device.execute("SELECT id FROM todo").fetchall() == [("there",)]
    [aside] = [s for s in told if isinstance(s, State) and s.kind == "set_aside"]
    assert aside.table == "later"
    assert "does not know the type of: id" in aside.detail
    device.table("todo").insert({"id": "new"})
    assert device.sync()
    assert ("todo", "new") in newer.server.live()


def test_a_table_that_gets_a_column_of_an_unknown_kind_is_no_longer_shown(
    newer: Newer, told: list[Any], tmp_path: Path
) -> None:
    newer.kind = int(Kind.STRING)
    device = SyncedDb(tmp_path / "b.db", newer, "d")
    device.on_state(told.append)
    device.start(background=False)
    assert device.sync()
    assert device.execute("SELECT id FROM later").fetchall() == [("there",)]
    newer.kind = UNKNOWN
    newer.schema_version += 1
    assert device.sync()
    assert [s.table for s in told if isinstance(s, State) and s.kind == "set_aside"] == ["later"]
    assert device.execute("SELECT name FROM sqlite_master WHERE name = 'later'").fetchall() == []
    assert device.execute("SELECT id FROM todo").fetchall() == [("there",)]
    device.close()


def test_a_release_that_knows_the_kind_asks_for_the_tables_anew(newer: Newer, device: SyncedDb, tmp_path: Path) -> None:
    """As ``NEWEST_KIND`` says: the upgrade of the file's format forgets which tables it knows."""
    assert device.sync()
    device.close()
    newer.kind = int(Kind.STRING)
    with closing(sqlite3.connect(tmp_path / "a.db")) as conn, conn:
        conn.execute("UPDATE _db_state SET schema_version = 0")
    upgraded = SyncedDb(tmp_path / "a.db", newer, "d")
    upgraded.start(background=False)
    assert upgraded.sync()
    assert upgraded.execute("SELECT id FROM later").fetchall() == [("there",)]
    upgraded.close()


def test_a_further_kind_comes_with_a_further_format() -> None:
    assert max(Kind) == layout.NEWEST_KIND, "a new kind: a new FORMAT, whose upgrade sets schema_version to 0"


def test_names_have_no_prefix() -> None:
    assert enum_name(errors_pb2.Reason, errors_pb2.REASON_TOO_SLOW) == "TOO_SLOW"
    assert enum_name(verdict_pb2.Outcome, 0) == "UNSPECIFIED"
    assert enum_name(verdict_pb2.Outcome, -1) == "UNKNOWN_-1"
