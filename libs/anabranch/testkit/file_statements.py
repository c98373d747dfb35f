"""The statements that SQLite runs for a device, counted as SQLite itself tells of them: each row of an ``executemany``
is one, and one that fires triggers is one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anabranch.client import SyncedDb


class FileStatements:
    """The statements that ran since counting began, in order, with its values put in."""

    def __init__(self) -> None:
        self.run: list[str] = []

    @property
    def count(self) -> int:
        """How many."""
        return len(self.run)

    def having(self, part: str) -> int:
        """How many have ``part`` in their text."""
        return sum(part in sql for sql in self.run)

    def forget(self) -> None:
        """Begin to count anew."""
        self.run.clear()


@contextmanager
def counted(db: SyncedDb) -> Iterator[FileStatements]:
    """Count the statements of all connections to the file of ``db`` inside the block, those that are made meanwhile
    included. It costs time for each statement."""
    file = db._file
    found = FileStatements()

    def watcher() -> Callable[[str], None]:
        last = [""]

        def ran(sql: str) -> None:
            # A trigger is told of by the text of the statement that fires it, once more.
            if sql != last[0] or not sql.startswith(("INSERT", "UPDATE", "DELETE")):
                found.run.append(sql)
            last[0] = sql

        return ran

    connect = file._connect

    def connected(factory: type[sqlite3.Connection]) -> sqlite3.Connection:
        conn: sqlite3.Connection = connect(factory)
        conn.set_trace_callback(watcher())
        return conn

    for conn in [file._write, *file._readers]:
        conn.set_trace_callback(watcher())
    file._connect = connected  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        del file._connect
        for conn in [file._write, *file._readers]:
            conn.set_trace_callback(None)
