"""What a broken disk, or a program that gets past the triggers of ``client.file.guards``, does to a device's file."""

from __future__ import annotations

import sqlite3


def write_unseen(conn: sqlite3.Connection, *statements: str) -> None:
    """Run the statements by ``conn``, which the device knows nothing of, as its triggers don't see them."""
    for sql in ("UPDATE _db_writer SET open = 1", *statements, "UPDATE _db_writer SET open = 0"):
        conn.execute(sql)
