"""Synced tables of the file are made, made anew, emptied and given up."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from contextlib import closing

from anabranch.client.events import Change, State
from anabranch.client.file import guards, layout, row_audiences
from anabranch.client.file.believed import UNREADABLE
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, device_table, quote
from anabranch.client.writes.payload import parse
from anabranch.v1 import snapshot_pb2
from anabranch.values.decimals import add_decimals

REFUSALS = (sqlite3.OperationalError, sqlite3.IntegrityError)
"""The errors that may be refusals (``is_refusal``)."""

_OF_ROWS = ("_db_base", "_db_row_audiences", "_db_audience_sums")
"""Our tables that are kept beside a table's rows, and mean nothing where these are others."""


def create(tx: Tx, message: snapshot_pb2.Table) -> DeviceTable | None:
    """Make the table that ``message`` describes, empty and still to be pulled. None where SQLite can't hold it, which
    is told."""
    table = device_table(message)
    reason = refused_name(table.sql_name)
    if not reason:
        try:
            tx.conn.execute(table.create_sql())
        except REFUSALS as error:
            if not is_refusal(error):
                raise
            reason = f"SQLite can't hold it: {error}"
    if reason:
        tx.events.append(State("set_aside", reason, table.sql_name))
        return None
    guards.put(tx.conn, table.sql_name)
    tx.conn.execute(
        "INSERT INTO _db_tables (name, ordinal, value) SELECT ?, coalesce(max(ordinal) + 1, 0), ? FROM _db_tables",
        (table.name, serialized(message)),
    )
    return table


def refusal(table: DeviceTable) -> str:
    """Why no file can hold a table; "" where one can, if it has room for the name."""
    if reason := refused_name(table.sql_name):
        return reason
    with closing(sqlite3.connect(":memory:")) as trial:
        add_decimals(trial)
        try:
            trial.execute(table.create_sql())
        except sqlite3.OperationalError as error:
            if not is_refusal(error):
                raise
            return f"SQLite can't hold it: {error}"
    return ""


def refused_name(sql_name: str) -> str:
    """Why a table can't have a name in the file; "" where it can, as far as the name alone tells."""
    if sql_name.lower().startswith((layout.PREFIX, "sqlite_")):
        return f"names that start with {layout.PREFIX} or sqlite_ are SQLite's and this file's own"
    return ""


def is_refusal(error: sqlite3.DatabaseError) -> bool:
    """Whether SQLite understood a statement and refused it, for a constraint or a trigger of the app's as well, and
    does not lack room, memory or a sound file."""
    if isinstance(error, sqlite3.IntegrityError):
        return True
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF == sqlite3.SQLITE_ERROR


def serialized(message: snapshot_pb2.Table) -> bytes:
    """A table's description as the file keeps it."""
    return message.SerializeToString(deterministic=True)


def give_up(tx: Tx, table: DeviceTable) -> None:
    """Remove a table's rows and all that the file keeps of it, except the keys of rows that the queue touches."""
    drop_pull(tx, table)
    report_gone(tx, table)
    tx.conn.execute(f"DROP TABLE IF EXISTS {table.quoted}")
    for ours, column in layout.OF_TABLES.items():
        if ours != layout.OF_QUEUE:
            tx.conn.execute(f"DELETE FROM {ours} WHERE {column} = ?", (table.name,))


def forget_queued(tx: Tx, name: str) -> None:
    """Forget which rows of a table the queue touches: the table, given up already, does not come back."""
    tx.conn.execute(f"DELETE FROM {layout.OF_QUEUE} WHERE tbl = ?", (name,))


def report_gone(tx: Tx, table: DeviceTable) -> None:
    """Report a delete for every row of a table, before the rows are removed."""
    if tx.wants_rows:
        gone = tx.conn.execute(f"SELECT {table.key_sql} FROM {table.quoted}")
        tx.events += [Change(table.sql_name, "delete", tuple(key), (), None, "snapshot") for key in gone]


def find_pending(tx: Tx, created: Mapping[str, DeviceTable]) -> None:
    """Note which rows of new tables the queue's batches touch: they were queued while these were here before."""
    queued = tx.conn.execute("SELECT id, value FROM _db_mutations_queue ORDER BY id")
    touched = set[tuple[str, str, str]]()
    for batch_id, value in queued:
        # A damaged batch touches nothing that is known.
        with contextlib.suppress(*UNREADABLE):
            touched.update((part.table, part.key_text, batch_id) for part in parse(value, created))
    tx.conn.executemany(f"INSERT OR IGNORE INTO {layout.OF_QUEUE} (tbl, key, batch) VALUES (?, ?, ?)", sorted(touched))


def make_anew(tx: Tx, old: DeviceTable, new: DeviceTable) -> None:
    """Put an empty table in the place of one that can't become it."""
    report_gone(tx, old)
    tx.conn.execute(f"DROP TABLE {old.quoted}")
    tx.conn.execute(new.create_sql())
    guards.put(tx.conn, new.sql_name)
    for ours in _OF_ROWS:
        tx.conn.execute(f"DELETE FROM {ours} WHERE tbl = ?", (new.name,))


def drop_pull(tx: Tx, table: DeviceTable) -> None:
    """Forget a table's pull that is under way, with the rows that it brought."""
    row = tx.conn.execute("SELECT stage, pull_table FROM _db_tables WHERE name = ?", (table.name,)).fetchone()
    if row is None:
        return
    stage, staged = row
    if staged is not None:
        tx.conn.execute(f"DROP TABLE IF EXISTS {quote(staged)}")
        row_audiences.clear(tx.conn, staged)
    elif stage == "new":
        # The rows were reported as they came, and will be again.
        report_gone(tx, table)
        with tx.writing(table, guards.MANY):
            tx.conn.execute(f"DELETE FROM {table.quoted}")
        row_audiences.clear(tx.conn, table.name)
    tx.conn.execute(
        """UPDATE _db_tables SET pull_first_ms = NULL, pull_last_ms = NULL, pull_epoch = '', pull_token = x'',
           pull_resume = x'', pull_count = 0, pull_hash = x'', pull_done = 0, pull_table = NULL, pull_told = x'',
           gain = '', gain_resume = x'' WHERE name = ?""",
        (table.name,),
    )
