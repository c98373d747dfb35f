"""Mend the shape of a device's file, when it is opened, after another program has changed it: synced tables that were
dropped or lost columns, triggers of ``guards`` that were dropped.

A changed table is created anew, empty, and pulled again; pending writes stay in the queue and are shown on top of the
pulled rows. A table whose triggers are created again may have been written to meanwhile: the next check of the rows
compares them with their sum (``sums.due``).
"""

from __future__ import annotations

import sqlite3

from anabranch.client.errors import FileDamaged
from anabranch.client.file import audience_sums, guards, layout
from anabranch.client.file.believed import believed
from anabranch.client.file.device_table import DeviceTable, device_table, quote
from anabranch.client.logs import get_logger
from anabranch.v1 import snapshot_pb2

log = get_logger(__name__)
_CHANGED = "another program has changed or dropped the table in the file"


def mend(conn: sqlite3.Connection, refuse: bool | None) -> None:
    """Mend the file, in a transaction. ``refuse``: whether to refuse foreign writes from now on; None: no change."""
    conn.execute("UPDATE _db_writer SET open = 0 WHERE open")
    if refuse is not None:
        conn.execute("UPDATE _db_writer SET refuse = ? WHERE refuse != ?", (refuse, refuse))
    (wanted,) = conn.execute("SELECT refuse FROM _db_writer").fetchone()
    found = dict(
        conn.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND substr(name, 1, ?) = ?",
            (len(layout.PREFIX), layout.PREFIX),
        )
    )
    for name, value in conn.execute("SELECT name, value FROM _db_tables").fetchall():
        with believed(f"the description of the table {name}"):
            table = device_table(snapshot_pb2.Table.FromString(value))
        if table.name != name:
            raise FileDamaged(f"the description of the table {name} is that of {table.name}")
        if not _is_whole(conn, table):
            _make_anew(conn, table)
            continue
        expected = guards.statements(table.sql_name) if wanted else {}
        present = {n: found[n] for n in guards.statements(table.sql_name) if n in found}
        if present == expected:
            continue
        guards.take(conn, table.sql_name)
        guards.put(conn, table.sql_name)
        if wanted:
            # While a trigger was missing, another program may have written to the table.
            conn.execute("UPDATE _db_tables SET verified = 0 WHERE name = ? AND stage = 'live'", (name,))


def _is_whole(conn: sqlite3.Connection, table: DeviceTable) -> bool:
    there = {name for (name,) in conn.execute("SELECT name FROM pragma_table_info(?)", (table.sql_name,))}
    return there.issuperset(c.sql_name for c in (*table.table.columns, *table.gone))


def _make_anew(conn: sqlite3.Connection, table: DeviceTable) -> None:
    log.warning("table_made_anew", table=table.sql_name, why=_CHANGED)
    (staged,) = conn.execute("SELECT pull_table FROM _db_tables WHERE name = ?", (table.name,)).fetchone()
    for name in (table.sql_name, staged):
        if name is not None:
            conn.execute(f"DROP TABLE IF EXISTS {quote(name)}")
    # A renamed table has kept the triggers.
    guards.take(conn, table.sql_name)
    conn.execute(table.create_sql())
    guards.put(conn, table.sql_name)
    conn.execute("DELETE FROM _db_base WHERE tbl = ?", (table.name,))
    conn.execute("DELETE FROM _db_row_audiences WHERE tbl IN (?, ?)", (table.name, staged))
    audience_sums.clear(conn, table.name)
    conn.execute(
        """UPDATE _db_tables SET stage = CASE stage WHEN 'new' THEN 'new' ELSE 'aside' END, reason = ?,
           pull_first_ms = NULL, pull_last_ms = NULL, pull_epoch = '', pull_token = x'', pull_resume = x'',
           pull_count = 0, pull_hash = x'', pull_done = 0, pull_table = NULL, pull_told = x'', gain = '',
           gain_resume = x'' WHERE name = ?""",
        (_CHANGED, table.name),
    )
