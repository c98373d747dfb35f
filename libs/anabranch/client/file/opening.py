"""Open a device's file: find out whose it is, make it, bring it to the present format, and mend it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from anabranch.client.errors import ClientError, FileDamaged, FileFailed, ForeignFile
from anabranch.client.file import identify, layout, modes, shape, state
from anabranch.client.file.believed import UNREADABLE, cause
from anabranch.client.file.mend import mend
from anabranch.client.file.redeclare import redeclare
from anabranch.client.file.write_connection import WriteConnection
from anabranch.client.writes.ids import next_id

_PATIENCE_S = 30.0
_AGAIN_S = 0.01
_NOT_AS_MADE = frozenset(
    {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG}
)
"""Codes that our own statements get only from a file whose tables are not as we made them."""


def found_or_made(path: Path, may_make: bool) -> bool:
    """Return whether the file is new; it exists then, empty.

    Raises:
        ForeignFile: it is not a device's, or it is missing and ``may_make`` is False.
        FileDamaged, FileFailed: it can't be looked at, or made.
    """
    if identify.is_devices(path):
        return False
    if not may_make:
        raise ForeignFile(path, "there is nothing in it" if path.exists() else "there is no file")
    try:
        modes.make(path)
    except OSError as error:
        raise FileFailed(f"{path} can't be made: {error}") from error
    return True


def prepare(
    conn: WriteConnection,
    path: Path,
    is_new: bool,
    db_name: str | None,
    node_name: str,
    now_ms: Callable[[], int],
    refuse_foreign: bool | None,
) -> str:
    """Make the file ready for use; return the name of its database, which ``db_name`` must be, where that is given.

    Raises:
        FileDamaged: its own tables are not what they were. Nothing was changed.
        ClientError: it holds another database, or is of a later format. Nothing was changed.
    """
    if is_new:
        # Before anything else: a process that ends right after it leaves a file that is known as a device's.
        conn.execute(f"PRAGMA application_id = {layout.APPLICATION_ID}")
    _in_wal_mode(conn)
    conn.execute("PRAGMA synchronous = FULL")
    conn.begin()
    try:
        (found,) = conn.execute("PRAGMA user_version").fetchone()
        if found > layout.FORMAT:
            raise ClientError(f"{path} was written by a later version (format {found})")
        layout.bring_up(conn, found)
        if 0 < found <= layout.PLAIN_DECIMALS:
            redeclare(conn)
        if found == 0:
            conn.execute(
                "INSERT INTO _db_state (one, db_name, node_id, node_name) VALUES (1, ?, ?, ?)",
                (db_name, next_id("", now_ms(), 0), node_name),
            )
        shape.check(conn)
        current = state.load(conn)
        if db_name not in (None, current.db_name):
            raise ClientError(f"{path} holds the database {current.db_name!r}, not {db_name!r}")
        if node_name and current.node_name != node_name:
            state.store(conn, current, {"node_name": node_name})
        mend(conn, refuse_foreign)
        conn.execute("COMMIT")
    except BaseException as error:
        conn.failed(error)
        raise
    finally:
        conn.finish()
    return current.db_name


def _in_wal_mode(conn: WriteConnection) -> None:
    """Switch to the write-ahead log, where that is not the file's mode yet. For the switch SQLite reads first, and then
    does not wait for another process that writes, as one does that makes the file at the same moment."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            conn.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_S)


def as_damage(error: BaseException, path: Path) -> BaseException:
    """An error of ``prepare`` as FileDamaged, if its cause can only be that the file is not as we made it; else the
    error itself."""
    if isinstance(error, ClientError):
        return error
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return FileDamaged(str(error), path) if code is None or code & 0xFF in _NOT_AS_MADE else error
    if isinstance(error, UNREADABLE):
        return FileDamaged(f"its own tables can't be read ({cause(error)})", path)
    return error
