"""The modes of the files that a device makes: its own, SQLite's beside it (``-wal``, ``-shm``, ``-journal``), the lock
for syncing (``-sync``).

A new file can be read and written by its owner alone, whatever the umask. A file that is there keeps its mode, narrow
or wide: an app may share it with a group on purpose. Files beside it get its mode, so that whoever may open it may
open these, too, and nobody else; SQLite sees to its own. Windows has no modes.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

_PRIVATE = 0o600
_READ_AND_WRITE = 0o666
_MAKING = threading.Lock()
"""Held while a file is made: to close a file ends all locks that the process has on it (POSIX), so that no connection
of another thread may open it before that."""


def make(path: Path, beside: Path | None = None) -> None:
    """Make an empty file, unless there is one. ``beside``: the device's file, if that is another.

    Raises:
        OSError: it can't be made.
    """
    if os.name != "posix":
        return  # SQLite makes it.
    with _MAKING:
        # Through a link that leads nowhere yet, SQLite would make the file that it names.
        target = os.path.realpath(path)
        try:
            made = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        except FileExistsError:
            return
        try:
            # The umask may have taken bits from the mode.
            os.fchmod(made, _mode_of(beside))
        finally:
            os.close(made)


def _mode_of(beside: Path | None) -> int:
    try:
        return _PRIVATE if beside is None else beside.stat().st_mode & _READ_AND_WRITE
    except FileNotFoundError:
        return _PRIVATE
