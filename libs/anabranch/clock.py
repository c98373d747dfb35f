"""The wall clock, in milliseconds, as tests can move it.

All code that needs the time takes a ``Clock``. Its offset comes from ``ANABRANCH_CLOCK_OFFSET_MS``, fixed for the life
of the process, or from the file named by ``ANABRANCH_CLOCK_FILE``, which holds one whole number and may be replaced
while the process runs. Only the standard library, so that devices can use it, too.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class Clock:
    """Milliseconds since 1970, moved by an offset (milliseconds) and by the number in a file where one is
    given."""

    __slots__ = ("_file", "_file_offset_ms", "_file_state", "_offset_ms")

    def __init__(self, offset_ms: int = 0, file: Path | None = None) -> None:
        self._offset_ms = offset_ms
        self._file = file
        self._file_state: tuple[int, int] | None = None
        self._file_offset_ms = 0

    def now_ms(self) -> int:
        """The time, in milliseconds. Raises ValueError where the offset file holds no whole number."""
        offset_ms = self._offset_ms if self._file is None else self._offset_ms + self._read_file(self._file)
        return time.time_ns() // 1_000_000 + offset_ms

    def now_s(self) -> float:
        """The time, in seconds, as PyJWT takes it."""
        return self.now_ms() / 1000

    def _read_file(self, file: Path) -> int:
        try:
            found = file.stat()
        except FileNotFoundError:
            self._file_state, self._file_offset_ms = None, 0
            return 0
        # A replaced file has another inode: so two writes within one tick of the file system's clock are distinguished.
        state = (found.st_mtime_ns, found.st_ino)
        if state != self._file_state:
            self._file_offset_ms = int(file.read_text(encoding="ascii").strip() or "0")
            self._file_state = state
        return self._file_offset_ms


def clock_from_environment() -> Clock:
    """The clock of a process without settings of its own."""
    file = os.environ.get("ANABRANCH_CLOCK_FILE")
    return Clock(int(os.environ.get("ANABRANCH_CLOCK_OFFSET_MS", "0")), Path(file) if file else None)


def set_offset(file: Path, offset_ms: int) -> None:
    """Move every clock that reads ``file`` to ``offset_ms``, as one atomic step."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.draft")
    draft.write_text(f"{offset_ms}\n", encoding="ascii")
    draft.replace(file)
