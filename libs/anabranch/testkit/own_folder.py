"""A folder in the temporary directory that is removed with its run, at the latest when the next one of its kind starts.

A run that is killed removes nothing. So each run holds a lock in its folder for as long as its process lives, and each
that starts removes the folders of its kind whose lock is free. A folder without a lock file is foreign, or has none
yet.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

LOCK = "run.lock"
_SHARED_MEMORY = Path("/dev/shm")
MEMORY = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
"""A directory whose files are in memory, where there is one."""
_ROOM_BYTES = 4 * 2**30


@contextmanager
def own_folder(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder ``anabranch-KIND-…`` for the block, in ``parent`` (None: the temporary directory).

    Raises:
        OSError: a killed run's folder can't be removed.
    """
    prefix, parent = f"anabranch-{kind}-", parent or Path(tempfile.gettempdir())
    for left in parent.glob(f"{prefix}*"):
        # Another run that starts may have removed the folder.
        with suppress(FileNotFoundError):
            _remove_where_left(left)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        folder = Path(name)
        fresh = folder / f"{LOCK}.new"
        with fresh.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The lock is taken before other runs can see the file.
            fresh.rename(folder / LOCK)
            yield folder


def memory_folder(kind: str) -> AbstractContextManager[Path]:
    """``own_folder`` in memory, where the machine has room for it: to make a database costs a tenth there."""
    roomy = MEMORY is not None and shutil.disk_usage(MEMORY).free >= _ROOM_BYTES
    return own_folder(kind, MEMORY if roomy else None)


def _remove_where_left(folder: Path) -> None:
    if folder.is_symlink() or folder.stat().st_uid != os.getuid() or not (folder / LOCK).is_file():
        return
    with (folder / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(folder)
