"""Connections that read: SQLite's word that the file's content is damaged becomes FileDamaged, which names the file.

No row costs anything for it but where a cursor is iterated over, which passes through a generator.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anabranch.client.errors import FileDamaged
from anabranch.client.file.write_connection import as_damage


class _Rows:
    """A cursor as SQLite's module iterates over it: no row passes through more of Python than a generator."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: Iterator[Any]) -> None:
        self._cursor = cursor

    def __iter__(self) -> Iterator[Any]:
        return self._cursor


_FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""The second comes in the place of the first, where the error's message has bytes of the file that are no text."""


def _name(conn: sqlite3.Connection, error: Exception) -> None:
    """Raise FileDamaged if that is what the error says."""
    path = getattr(conn, "path", None)
    damaged = as_damage(error, path)
    if isinstance(error, UnicodeDecodeError):
        damaged = FileDamaged(f"its schema has bytes that are no text ({error})", path)
    if damaged is not None and damaged is not error:
        raise damaged from error


class _Cursor(sqlite3.Cursor):
    """A cursor whose every way to read rows names damage."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:  # type: ignore[override]
        try:
            return super().execute(*arguments)
        except _FAILURES as error:
            _name(self.connection, error)
            raise

    def fetchone(self) -> Any:
        try:
            return super().fetchone()
        except _FAILURES as error:
            _name(self.connection, error)
            raise

    def fetchmany(self, *arguments: Any, **options: Any) -> list[Any]:
        try:
            return super().fetchmany(*arguments, **options)
        except _FAILURES as error:
            _name(self.connection, error)
            raise

    def fetchall(self) -> list[Any]:
        try:
            return super().fetchall()
        except _FAILURES as error:
            _name(self.connection, error)
            raise

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        try:
            yield from _Rows(self)
        except _FAILURES as error:
            _name(self.connection, error)
            raise


class ReadConnection(sqlite3.Connection):
    """A connection that allows weak references."""

    path: Path | None = None

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        return self.cursor(_Cursor).execute(*arguments)


class AppConnection(ReadConnection):
    """Closes its cursors when it is closed: an open cursor would keep its snapshot, and the WAL's pages, in use."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        cursor = self.cursor(_Cursor)
        self._cursors.add(cursor)
        return cursor.execute(*arguments)

    def close(self) -> None:
        for cursor in list(self._cursors):
            cursor.close()
        super().close()
