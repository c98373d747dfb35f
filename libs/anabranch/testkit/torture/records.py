"""Records that processes of the fault run append to, and that are whole whenever one of them was killed."""

from __future__ import annotations

import os

_LOOK_BACK = 16_000_000


def open_record(path: str) -> int:
    """A descriptor that appends lines. A last line that a kill has cut off is removed: its writer was killed before it
    did what the line announces."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    size = os.fstat(descriptor).st_size
    start = max(0, size - _LOOK_BACK)
    end = os.pread(descriptor, size - start, start).rfind(b"\n")
    assert end >= 0 or start == 0, f"{path}: a line of more than {_LOOK_BACK} bytes"
    os.ftruncate(descriptor, start + end + 1)
    return descriptor
