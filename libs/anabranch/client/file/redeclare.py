"""Give columns of decimals their collation in files from before they had one: see ``decimals``. Stored values stay as
they are; only the declaration changes, and the app's indexes on such a column are sorted anew."""

from __future__ import annotations

import re
import sqlite3

from anabranch.client.file.device_table import DeviceTable, device_table, quote
from anabranch.v1 import snapshot_pb2
from anabranch.values import Kind
from anabranch.values.decimals import COLLATION
from anabranch.values.sqlite import declared_type

_COPY = "_db_copy"


def redeclare(conn: sqlite3.Connection) -> None:
    """Declare the columns anew, inside the transaction that brings the file to the next format."""
    for (value,) in conn.execute("SELECT value FROM _db_tables").fetchall():
        table = device_table(snapshot_pb2.Table.FromString(value))
        name = table.sql_name
        row = conn.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone()
        columns = [c.sql_name for c in table.table.columns if c.kind is Kind.DECIMAL]
        if row is not None and columns and not _in_place(conn, name, row[0], columns):
            _by_copy(conn, table)


def _in_place(conn: sqlite3.Connection, name: str, sql: str, columns: list[str]) -> bool:
    """Change the text of the schema, as SQLite's documentation of ALTER TABLE describes for changes that affect no
    stored value; False where that is not possible."""
    for column in columns:
        declared = re.escape(f"{quote(column)} TEXT")
        changed = f"{quote(column)} {declared_type(Kind.DECIMAL)}"
        sql, count = re.subn(f"([(]|, ){declared}(?=[,)])", lambda m, c=changed: m[1] + c, sql)  # type: ignore[misc]
        if count != 1:
            return False
    (version,) = conn.execute("PRAGMA schema_version").fetchone()
    conn.execute("PRAGMA writable_schema = ON")
    try:
        conn.execute("UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = ?", (sql, name))
        conn.execute(f"PRAGMA schema_version = {version + 1}")
    except sqlite3.OperationalError:
        return False  # Some builds of SQLite never allow a write to the schema.
    finally:
        conn.execute("PRAGMA writable_schema = RESET")
    conn.execute(f"REINDEX {COLLATION}")
    return True


def _by_copy(conn: sqlite3.Connection, table: DeviceTable) -> None:
    """Create the table anew, with the app's indexes and triggers on it."""
    on_it = conn.execute(
        "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND type IN ('index', 'trigger') AND sql IS NOT NULL",
        (table.sql_name,),
    ).fetchall()
    conn.execute(table.create_sql(_COPY))
    conn.execute(f"INSERT INTO {_COPY} ({table.columns_sql}) SELECT {table.columns_sql} FROM {table.quoted}")
    conn.execute(f"DROP TABLE {table.quoted}")
    # Without this, the renaming would look for the table in views and triggers that name it.
    conn.execute("PRAGMA legacy_alter_table = ON")
    try:
        conn.execute(f"ALTER TABLE {_COPY} RENAME TO {table.quoted}")
    finally:
        conn.execute("PRAGMA legacy_alter_table = OFF")
    for (sql,) in on_it:
        conn.execute(sql)
