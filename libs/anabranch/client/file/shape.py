"""Whether our own tables in a device's file are as we made them: columns, the types of what is in them, the state.

SQLite keeps no checksum of a page, and holds any value in a column of any type: where a disk has changed bytes, what
was a number may be read as a text. ``check`` looks at the small tables whenever a file is opened. The others grow with
the queue; who reads them names what can't be read, and ``damage`` reads the whole file, when something has failed that
only damage explains.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import cache

from anabranch.client.errors import FileDamaged
from anabranch.client.file import layout, state
from anabranch.client.file.believed import believed
from anabranch.v1 import snapshot_pb2
from anabranch.wire.ulids import is_ulid

_SMALL = ("_db_state", "_db_tables", "_db_writer")
"""Their rows are as many as the synced tables, at most."""
_ODD_TABLES = """SELECT name FROM _db_tables WHERE stage NOT IN ('new', 'live', 'aside') OR pull_table NOT NULL
    AND pull_table NOT GLOB '_db_pull_[0-9]*' LIMIT 1"""
"""The named table is dropped when a pull is: it may be no other."""
_TYPES = {"INTEGER": "'integer'", "TEXT": "'text'", "BLOB": "'blob'"}


def check(conn: sqlite3.Connection) -> None:
    """Raise FileDamaged where a table, a column or the state is missing, or is not what it should be. In a transaction
    that has brought the file to the present format."""
    found = dict(conn.execute("SELECT name, type FROM sqlite_master WHERE substr(name, 1, 4) = '_db_'").fetchall())
    for table, columns in _expected().items():
        if found.get(table) != "table":
            raise FileDamaged(f"its table {table} is missing")
        there = {name for (name,) in conn.execute("SELECT name FROM pragma_table_info(?)", (table,))}
        if missing := sorted(columns.keys() - there):
            raise FileDamaged(f"its table {table} has no column {missing[0]}")
    # Without this row nobody could write; it holds nothing of the app's.
    conn.execute("INSERT OR IGNORE INTO _db_writer (one) VALUES (1)")
    for table in _SMALL:
        if (column := _mistyped(conn, table)) is not None:
            raise FileDamaged(f"a value in {table}.{column} is of another type")
    odd = conn.execute(_ODD_TABLES).fetchone()
    if odd is not None:
        raise FileDamaged(f"what _db_tables says of the pull of {odd[0]} can't be")
    current = state.load(conn)
    if not is_ulid(current.node_id) or not (current.last_id == "" or is_ulid(current.last_id)):
        raise FileDamaged(f"its node's id, {current.node_id!r}, or its last batch's, {current.last_id!r}, is none")
    with believed("the list of the tables that it has chosen"):
        _ = current.choice
    with believed("the list of the audiences that it has chosen"):
        _ = current.chosen_audiences
    with believed("the server's limits or policies, as the file keeps them,"):
        snapshot_pb2.Limits.FromString(current.limits)
        snapshot_pb2.DatabasePolicy.FromString(current.policy)


def damage(conn: sqlite3.Connection) -> str | None:
    """The damage in the file, as far as reading all of it shows; None where all is well. ``conn`` reads only."""
    try:
        for table in _expected():
            if (column := _mistyped(conn, table)) is not None:
                return f"a value in {table}.{column} is of another type"
        (found,) = conn.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return None if found == "ok" else " ".join(str(found).split())


@cache
def _expected() -> Mapping[str, Mapping[str, str]]:
    """Our tables, with each column and the condition under which a value in it is of a wrong type."""
    with closing(sqlite3.connect(":memory:")) as conn:
        for statement in layout.STATEMENTS:
            conn.execute(statement)
        tables = conn.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
        return {table: {column[0]: _wrong(*column) for column in _columns(conn, table)} for (table,) in tables}


def _columns(conn: sqlite3.Connection, table: str) -> list[tuple[str, str, int]]:
    return conn.execute('SELECT name, type, "notnull" OR pk FROM pragma_table_info(?)', (table,)).fetchall()


def _wrong(name: str, kind: str, needed: int) -> str:
    or_null = "" if needed else ", 'null'"
    return f'typeof("{name}") NOT IN ({_TYPES[kind]}{or_null})'


def _mistyped(conn: sqlite3.Connection, table: str) -> str | None:
    """A column of one of our tables that holds a value of another type than its own."""
    columns = _expected()[table]
    cases = " ".join(f"WHEN {wrong} THEN '{name}'" for name, wrong in columns.items())
    row = conn.execute(f"SELECT CASE {cases} END FROM {table} WHERE {' OR '.join(columns.values())} LIMIT 1").fetchone()
    return None if row is None else str(row[0])
