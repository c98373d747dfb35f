"""Who syncs a file, where several processes have it open: the one that holds a lock, which its death frees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO


class Lease:
    """A lock on a file beside the device's. The operating system frees it when the process ends, however it does."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + "-sync")
        self._file: IO[bytes] | None = None
        self.taken = 0
        """How often this object has taken it."""

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._file is not None

    def acquire(self) -> bool:
        """Take it if nobody else has it; gives whether it is held now."""
        if self._file is not None:
            return True
        file = self._path.open("ab")
        if not _lock(file):
            file.close()
            return False
        self._file = file
        self.taken += 1
        return True

    def release(self) -> None:
        """Let it go, if it is held."""
        if self._file is not None:
            self._file.close()
            self._file = None


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> bool:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
