"""The lock that decides which of several processes syncs a file; the end of the process that holds it frees it.

The lock is SQLite's own, on a file of its own beside the device's: the same code on every system that SQLite runs on,
where the modules for locks of files differ. Nothing is ever written to it; it has the mode of the device's file. The
lock is RESERVED (BEGIN IMMEDIATE): of several processes that try at one moment exactly one gets it, whereas with
EXCLUSIVE they could refuse each other.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from anabranch.client.errors import FileFailed
from anabranch.client.file import modes
from anabranch.client.file.identify import beside

_PRIMARY = 0xFF
"""Mask of SQLite's primary error code in an extended one."""


class Lease:
    """A lock on a file beside the device's. The operating system frees it when the process ends, in whatever way."""

    def __init__(self, path: Path) -> None:
        self._device = path
        self._path = beside(path, "-sync")
        self._lock: sqlite3.Connection | None = None
        self.taken = 0
        """How often this object has taken it."""

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._lock is not None

    def acquire(self) -> bool:
        """Take the lock if no other process has it; return whether it is held now.

        Raises:
            FileFailed: the file can't be opened or locked.
        """
        if self._lock is not None:
            return True
        self._lock = _locked(self._path, self._device)
        self.taken += self.held
        return self.held

    def release(self) -> None:
        """Let it go, if it is held."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _locked(path: Path, device: Path) -> sqlite3.Connection | None:
    """A connection that holds the lock, None if another process has it."""
    lock: sqlite3.Connection | None = None
    try:
        modes.make(path, device)
        lock = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        # Otherwise a journal would lie beside the lock's file while the lock is held.
        lock.execute("pragma journal_mode = memory")
        lock.execute("begin immediate")
    except (OSError, sqlite3.Error) as error:
        if lock is not None:
            lock.close()
        if getattr(error, "sqlite_errorcode", 0) & _PRIMARY == sqlite3.SQLITE_BUSY:
            return None
        raise FileFailed(f"{path}, the lock for syncing the device's file, can't be taken: {error}") from error
    return lock
