"""Files of formats before the present one."""

from __future__ import annotations

import sqlite3

AUDIENCES = ("_db_held", "_db_row_audiences", "_db_audience_sums")
"""Tables that came with format 8."""


def before_schema_changes(conn: sqlite3.Connection) -> None:
    """Take from a file what came with format 9, its number apart."""
    for column in ("app_version", "needs_version", "ddl_version", "describe_at"):
        conn.execute(f"ALTER TABLE _db_state DROP COLUMN {column}")
    for column in ("today", "absent_ms"):
        conn.execute(f"ALTER TABLE _db_tables DROP COLUMN {column}")


def before_audiences(conn: sqlite3.Connection) -> None:
    """Take from a file what came with format 8, its number apart, and what came later."""
    before_schema_changes(conn)
    for table in AUDIENCES:
        conn.execute(f"DROP TABLE {table}")
    for column in ("audience_choice", "held_digest", "gains_due"):
        conn.execute(f"ALTER TABLE _db_state DROP COLUMN {column}")
    for column in ("pull_told", "gain", "gain_resume"):
        conn.execute(f"ALTER TABLE _db_tables DROP COLUMN {column}")
