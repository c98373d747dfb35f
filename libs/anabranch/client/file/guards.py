"""Triggers that refuse foreign writes to synced tables: a plain SQLite connection (an ORM's, a shell's, another
program's) would change the rows, but nothing would be queued, so that the server would never get the change and a
repair would undo it.

``_db_writer.open`` distinguishes our own writes from all others. A transaction of ours sets it before its first write
of rows and clears it before its COMMIT: SQLite has one writer at a time, and no other transaction ever sees it set; a
crash undoes it with the rest. A write of many rows drops the triggers and creates them again inside its transaction,
which is cheaper than to pass them row by row. ``_db_writer.refuse`` holds the app's choice.

Inside our own transactions the triggers of the app run as for any connection, and may write to the app's own tables. A
trigger's write to a synced table would not be queued, like a foreign write: ``Authorizer`` refuses the statement that
would fire the trigger.

No trigger fires for DROP or ALTER TABLE, or when a trigger is dropped: ``client.file.mend`` finds those when the file
is opened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from anabranch.client.errors import TriggerWrites
from anabranch.client.file import layout

MANY = 500
"""From this number of rows on, dropping the triggers costs less than passing them."""
_OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_WRITES = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def statements(table: str) -> dict[str, str]:
    """The triggers of the synced table of that name in SQL, by their names."""
    said = (
        f"{table} is a synced table: what a plain SQLite connection writes to it would never be sent. "
        f"Write with SyncedDb.table('{table}').insert, .update or .delete"
    ).replace("'", "''")
    return {
        f"{layout.PREFIX}refuse_{operation.lower()}:{table}": (
            f"CREATE TRIGGER {_quote(f'{layout.PREFIX}refuse_{operation.lower()}:{table}')} "
            f"BEFORE {operation} ON {_quote(table)} WHEN (SELECT open FROM _db_writer) IS NOT 1 "
            f"BEGIN SELECT RAISE(ABORT, '{said}'); END"
        )
        for operation in _OPERATIONS
    }


def put(conn: sqlite3.Connection, table: str) -> None:
    """Create the table's triggers, unless the app has chosen otherwise; they must not exist yet."""
    (refuse,) = conn.execute("SELECT refuse FROM _db_writer").fetchone()
    if refuse:
        for sql in statements(table).values():
            conn.execute(sql)


def take(conn: sqlite3.Connection, table: str) -> None:
    """Drop the table's triggers."""
    for name in statements(table):
        conn.execute(f"DROP TRIGGER IF EXISTS {_quote(name)}")


class Authorizer:
    """Refuses, on the connection that writes, every statement by which a trigger of the app would write to a synced
    table or to one of ours. SQLite asks it when a statement is prepared, not for each row."""

    def __init__(self) -> None:
        self._known: Collection[str] = ()
        self._synced: frozenset[str] = frozenset()
        self._refused = ("", "")

    def know(self, tables: Collection[str]) -> None:
        """Take ``tables`` for the synced tables from now on."""
        if tables is not self._known:
            self._known = tables
            self._synced = frozenset(name.lower() for name in tables)

    def __call__(
        self, action: int, first: str | None, second: str | None, schema: str | None, within: str | None
    ) -> int:
        if within is None or action not in _WRITES or first is None:
            return sqlite3.SQLITE_OK
        name = first.lower()
        if name not in self._synced and not name.startswith(layout.PREFIX):
            return sqlite3.SQLITE_OK
        self._refused = (within, first)
        return sqlite3.SQLITE_DENY

    def explain(self, error: BaseException) -> BaseException:
        """Return TriggerWrites if ``error`` is SQLite's error for a refusal by this object; else ``error`` itself."""
        if not isinstance(error, sqlite3.Error) or getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_AUTH:
            return error
        trigger, table = self._refused
        return TriggerWrites(
            f"the trigger {trigger} writes to {table}, which is synced: what a trigger writes is not sent. "
            f"Drop it, or let it write to a table that is not synced"
        )
