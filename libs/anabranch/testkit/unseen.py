"""Writes to a device's file as by a broken disk, or by a program past the triggers of ``client.file.guards``."""

from __future__ import annotations

import sqlite3


def write_unseen(conn: sqlite3.Connection, *statements: str) -> None:
    """Run the statements by ``conn``, so that the device does not notice them: its triggers don't see them."""
    for sql in ("UPDATE _db_writer SET open = 1", *statements, "UPDATE _db_writer SET open = 0"):
        conn.execute(sql)
