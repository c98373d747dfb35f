"""The connection that writes: once SQLite has ended a transaction by itself, nothing more of it runs.

On a full disk, without memory, after an I/O error or an interruption SQLite may undo the whole transaction and go on
without one, where each statement is written for good at once; so may a trigger of the app, by RAISE(ROLLBACK).

State model: *free* (no transaction of ours), *open* (from ``begin`` to ``finish``), *ended* (open for us, but SQLite
has undone it: seen at every statement by ``in_transaction``, and never left but by ``finish``).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from anabranch.client.errors import DiskFull, FileDamaged, FileFailed

_CAUSES = {
    sqlite3.SQLITE_BUSY: "another process has held the file for too long; let it finish its transaction",
    sqlite3.SQLITE_LOCKED: "another connection has held a table of the file for too long",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write it; look at the disk and at limits on files",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_INTERRUPT: "the statement was interrupted",
    sqlite3.SQLITE_READONLY: "it can't be written; look at its permissions, and its folder's",
    sqlite3.SQLITE_CANTOPEN: "it, or a file beside it, can't be opened; look at permissions and at limits on files",
}
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_NO_TEXT = "Could not decode to UTF-8"
"""How the message begins of the one error about a file's content that has no code."""


class WriteConnection(sqlite3.Connection):
    """A connection in autocommit mode, whose transactions are begun by ``begin`` and end by ``finish``."""

    _guarded = False
    _why: BaseException | None = None

    def begin(self) -> None:
        """Begin a transaction, IMMEDIATE. An earlier one that could not be rolled back is rolled back first."""
        if self.in_transaction:
            super().execute("ROLLBACK")
        super().execute("BEGIN IMMEDIATE")
        self._guarded, self._why = True, None

    def finish(self) -> None:
        """End the transaction: undo it, if it was not committed."""
        self._guarded, self._why = False, None
        if self.in_transaction:
            super().execute("ROLLBACK")

    @property
    def has_ended(self) -> bool:
        """Whether SQLite has undone the transaction that is open for us."""
        return self._guarded and not self.in_transaction

    def failed(self, error: BaseException) -> None:
        """Remember the first error that ended the transaction, to name it wherever the app goes on."""
        if self._why is None and self.has_ended:
            self._why = error

    def abandon(self, error: BaseException) -> None:
        """Undo the transaction now; from then on it counts as ended."""
        super().execute("ROLLBACK")
        self.failed(error)

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        if self._guarded and not self.in_transaction:
            self._refuse()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        if self._guarded and not self.in_transaction:
            self._refuse()
        return super().executemany(*arguments)

    def _refuse(self) -> None:
        cause = f": {self._why}" if self._why is not None else ""
        kind = DiskFull if isinstance(self._why, DiskFull) or _code(self._why) == sqlite3.SQLITE_FULL else FileFailed
        raise kind(f"an error before this one has undone the whole transaction, so that nothing more of it runs{cause}")


def explained(error: BaseException, path: Path, has_ended: bool) -> BaseException:
    """Return FileFailed, DiskFull or FileDamaged with the cause and a remedy if ``error`` says that SQLite could not
    use the file at ``path``; else ``error`` itself. ``has_ended``: SQLite has ended the transaction, too."""
    damaged = as_damage(error, path)
    if damaged is not None:
        return damaged
    if isinstance(error, FileFailed):
        return error
    code = _code(error)
    made: FileFailed
    if code == sqlite3.SQLITE_FULL:
        made = DiskFull(
            f"database or disk is full: {path} can't grow, and the write under way was undone. Make room on its "
            f"disk, or raise the limit on its size, and do it again"
        )
    elif code in _CAUSES:
        made = FileFailed(f"{path}: {_CAUSES[code]}; the work under way was undone ({str(error) or 'out of memory'})")
    elif has_ended and isinstance(error, sqlite3.Error):
        made = FileFailed(f"{path}: SQLite, or a trigger of the app, has undone the whole transaction: {error}")
    else:
        return error
    return _with_code(made, error)


def as_damage(error: BaseException, path: Path | None) -> FileDamaged | None:
    """``error`` as a FileDamaged that names the path, if it says that the file's content is damaged."""
    if isinstance(error, FileDamaged):
        return error if error.path is not None else FileDamaged(error.found, path)
    if not isinstance(error, sqlite3.Error):
        return None
    if _code(error) in _DAMAGED or (isinstance(error, sqlite3.OperationalError) and str(error).startswith(_NO_TEXT)):
        made = FileDamaged(str(error), path)
        _with_code(made, error)
        return made
    return None


def _with_code(made: FileFailed, error: BaseException) -> FileFailed:
    for name in ("sqlite_errorcode", "sqlite_errorname"):
        if hasattr(error, name):
            setattr(made, name, getattr(error, name))
    return made


def _code(error: BaseException | None) -> int | None:
    """SQLite's primary result code; None where it was not SQLite that failed."""
    if isinstance(error, MemoryError):
        return sqlite3.SQLITE_NOMEM
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
