"""Fault points: named places where a test may kill the process.

``reach("before_commit")`` does nothing unless ``ANABRANCH_FAULT_FILE`` names a file that arms that point, one
name a line. Then the name is taken out of the file and the process is killed with SIGKILL: once, however
often it is started again. Services call it; a device's client does not know it, and takes ``reach`` as an argument.
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import IO

POINTS = frozenset(
    {
        "after_claim",
        "before_commit",
        "after_commit",
        "before_append",
        "after_append",
        "before_answer",
        "after_local_commit",
        "before_apply",
        "after_apply",
        "before_publish",
        "after_publish",
        "after_floor",
        "after_removal",
    }
)
"""Of the resolver, of ingest and of a node, three each; of the compactor and of the janitor two each."""

_file = os.environ.get("ANABRANCH_FAULT_FILE")


def watch(file: Path) -> None:
    """Have this process read ``file`` from now on: for a forked process, whose environment is its parent's."""
    global _file
    _file = str(file)


def reach(point: str) -> None:
    """Die here if a test has armed ``point``."""
    if _file is not None and os.path.exists(_file) and _disarm(Path(_file), point):
        os.kill(os.getpid(), signal.SIGKILL)


def arm(file: Path, point: str) -> None:
    """Have the next process that reads ``file`` die when it reaches ``point``. Raises ValueError for no known
    point."""
    if point not in POINTS:
        raise ValueError(f"no such fault point: {point}; there are {', '.join(sorted(POINTS))}")
    with file.open("a", encoding="ascii") as handle:
        _lock(handle)
        handle.write(f"{point}\n")


def armed(file: Path) -> list[str]:
    """The points that ``file`` still arms."""
    return file.read_text(encoding="ascii").split() if file.exists() else []


def disarm(file: Path) -> list[str]:
    """Remove all points from ``file`` that it still arms; return them."""
    left = armed(file)
    return [point for point in left if _disarm(file, point)]


def _disarm(file: Path, point: str) -> bool:
    if not file.exists():
        return False
    # Two processes may share the file: under the lock only one of them finds the point.
    with file.open("r+", encoding="ascii") as handle:
        _lock(handle)
        points = handle.read().split()
        if point not in points:
            return False
        points.remove(point)
        handle.seek(0)
        handle.write("".join(f"{left}\n" for left in points))
        handle.truncate()
        handle.flush()
        os.fsync(handle.fileno())
    return True


def _lock(handle: IO[str]) -> None:
    fcntl.flock(handle, fcntl.LOCK_EX)
