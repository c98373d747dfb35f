"""A server in memory whose tables are altered, and what a device must hold of it then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from anabranch.client import Schema, State, SyncedDb
from anabranch.client.file.device_table import quote
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.overlay.rebase import overlaid, read_bases
from anabranch.client.reading.sums import base_rows
from anabranch.client.writes.payload import PayloadCache
from anabranch.merge import Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.values import Column, Kind, Table, key_cells
from anabranch.values.canonical import table_sum

TODO = Table(
    "todo",
    (Column("id", Kind.STRING, "text"), Column("title", Kind.STRING, "text"), Column("n", Kind.INT64, "bigint")),
    ("id",),
)
NOTE = Table("note", (Column("id", Kind.STRING, "text"), Column("body", Kind.STRING, "text")), ("id",))
VISIT = Table("visit", (Column("id", Kind.STRING, "text"), Column("at", Kind.INT64, "bigint")), ("id",))
ROWS = 5

Open = Callable[..., SyncedDb]


def new_remote() -> MemoryRemote:
    tables = {t.name: MemoryTable(dict.fromkeys(t.column_names)) for t in (TODO, NOTE)}
    server = MemoryServer(tables, Policy(), park_ms=1000)
    server.head = 1_000
    for i in range(ROWS):
        server.preset("todo", f"k{i}", {"id": f"k{i}", "title": f"title {i}", "n": i})
        server.preset("note", f"k{i}", {"id": f"k{i}", "body": f"body {i}"})
    return MemoryRemote(server, [TODO, NOTE], lambda: time.time_ns() // 1_000_000)


def in_file(device: SyncedDb) -> set[str]:
    """The synced tables in the file, by SQLite's own word."""
    rows = device.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name for (name,) in rows if not name.startswith(("_db_", "sqlite_"))}


def columns(device: SyncedDb, table: str) -> list[str]:
    return [name for (name,) in device.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def rows(device: SyncedDb, table: str, *names: str) -> list[tuple[Any, ...]]:
    what = ", ".join(map(quote, names)) or "*"
    return device.execute(f"SELECT {what} FROM {quote(table)} ORDER BY 1").fetchall()


def told(device: SyncedDb) -> list[Any]:
    """All that the device tells from now on: states and schema events."""
    events: list[Any] = []
    device.on_state(events.append)
    device.on_schema(events.append)
    return events


def states(events: list[Any]) -> list[str]:
    return [event.kind for event in events if isinstance(event, State)]


def phases(events: list[Any]) -> list[tuple[int, tuple[str, ...], str]]:
    return [(e.version, e.tables, e.phase) for e in events if isinstance(e, Schema)]


def is_consistent(device: SyncedDb) -> None:
    """The invariants of every commit of a file: bases, shown rows and sums belong together, and the schema is sound."""
    pendings = Pendings(PayloadCache(), lambda: 1)
    with device._file.transaction() as tx:
        for table in tx.tables.values():
            kept = {k for (k,) in tx.conn.execute("SELECT key FROM _db_base WHERE tbl = ?", (table.name,))}
            touched = {k for (k,) in tx.conn.execute("SELECT key FROM _db_pending_rows WHERE tbl = ?", (table.name,))}
            (stage,) = tx.conn.execute("SELECT stage FROM _db_tables WHERE name = ?", (table.name,)).fetchone()
            if stage != "live":
                continue
            assert kept == touched
            bases, parts = read_bases(tx.conn, table, kept), pendings.load(tx, table.name, kept)
            for key in kept:
                now = overlaid(table, bases[key], parts.get(key, ()))
                assert table.read(tx.conn, [key_cells(table.table, key)]) == (
                    [] if now is None else [table.codec.store(now)]
                )
            count, total = table_sum(table.encoder, base_rows(tx.conn, table))
            kept_sum = tx.conn.execute("SELECT count, hash FROM _db_tables WHERE name = ?", (table.name,)).fetchone()
            assert kept_sum == (count, total.to_bytes(16, "big")), table.sql_name
            for column in table.gone:
                found = tx.conn.execute(f"SELECT {quote(column.sql_name)} FROM {table.quoted}").fetchall()
                assert {value for (value,) in found} <= {None}
        triggers = {n for (n,) in tx.conn.execute("SELECT tbl_name FROM sqlite_master WHERE name LIKE '_db_refuse%'")}
        assert triggers == {table.sql_name for table in tx.tables.values()}
        assert tx.conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert tx.conn.execute("PRAGMA writable_schema").fetchone() == (0,)
        assert tx.conn.execute("PRAGMA legacy_alter_table").fetchone() == (0,)


def agrees(device: SyncedDb, remote: MemoryRemote, pulls: int = 1) -> None:
    """The device has the tables of the server, as they are now, and their rows; it took ``pulls`` for that."""
    is_consistent(device)
    assert in_file(device) == {table.sql_name for table in remote.tables.values()}
    for table in remote.tables.values():
        names = [column.sql_name for column in table.columns]
        assert set(columns(device, table.sql_name)) == set(names)
        assert rows(device, table.sql_name, *names) == sorted(map(tuple, remote.rows(table)))
    status = device.status()
    assert (status.queued, status.disagreeing, status.pulls) == (0, (), pulls)
    assert (status.cursor, status.schema_version) == (remote.server.head, remote.schema.version)
    theirs = {s.table: (s.count, s.hash) for s in remote.sums() if not s.audience}
    assert device.table_sums() == {remote.tables[name].sql_name: one for name, one in theirs.items()}
    assert device.verify() == ()
