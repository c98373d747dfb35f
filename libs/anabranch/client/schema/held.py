"""The descriptions of its tables that a file holds: as the server has them, and as the app sees them.

Invariants, held by every commit: ``value`` describes the table as it is in the file; it is the view of ``today`` by the
app's naming (``views``). Where the app takes the names of the day the two are the same, and ``today`` is empty.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.client.file.believed import believed
from anabranch.client.file.device_file import Tx
from anabranch.client.schema.make import serialized
from anabranch.client.schema.views import Naming
from anabranch.v1 import snapshot_pb2


@dataclass(frozen=True, slots=True)
class Held:
    """A table of the file: ``view`` as it is there, ``today`` as the server has it at the file's position.
    ``absent_ms``: the position up to which the log is to be read before it is given up, 0 where it is not to be."""

    view: snapshot_pb2.Table
    today: snapshot_pb2.Table
    stage: str
    absent_ms: int = 0

    @property
    def name(self) -> str:
        """The table's identity."""
        return self.view.name

    @property
    def sql_name(self) -> str:
        """The table's name in the file."""
        return self.view.sql_name or self.view.name

    @property
    def naming(self) -> Naming:
        """The table as the app knows it."""
        return Naming(self.view)


_SELECT = "SELECT name, value, today, stage, absent_ms FROM _db_tables"


def all_held(conn: sqlite3.Connection) -> dict[str, Held]:
    """The tables of the file by identity, in their order. Raises FileDamaged."""
    return {row[0]: _held(*row) for row in conn.execute(f"{_SELECT} ORDER BY ordinal").fetchall()}


def held(conn: sqlite3.Connection, name: str) -> Held | None:
    """One table of the file; None where it has none of that identity. Raises FileDamaged."""
    row = conn.execute(f"{_SELECT} WHERE name = ?", (name,)).fetchone()
    return None if row is None else _held(*row)


def _held(name: str, value: bytes, today: bytes, stage: str, absent_ms: int) -> Held:
    with believed(f"the description of the table {name}"):
        return Held(
            snapshot_pb2.Table.FromString(value), snapshot_pb2.Table.FromString(today or value), stage, absent_ms
        )


def hold_absent(tx: Tx, absent: Mapping[str, int]) -> None:
    """Keep which tables the server has described its tables without, with the position of each."""
    tx.conn.execute("UPDATE _db_tables SET absent_ms = 0 WHERE absent_ms")
    tx.conn.executemany(
        "UPDATE _db_tables SET absent_ms = ? WHERE name = ?", [(position, name) for name, position in absent.items()]
    )


def hold(tx: Tx, view: snapshot_pb2.Table, today: snapshot_pb2.Table) -> bool:
    """Keep another description of a table that is there; return whether it is another one."""
    value, now = serialized(view), serialized(today)
    kept = b"" if now == value else now
    before = tx.conn.execute("SELECT value, today FROM _db_tables WHERE name = ?", (view.name,)).fetchone()
    if before == (value, kept):
        return False
    tx.conn.execute("UPDATE _db_tables SET value = ?, today = ? WHERE name = ?", (value, kept, view.name))
    return True
