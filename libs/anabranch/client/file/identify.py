"""Finds whether a file is a device's, before anything in it, or beside it, is changed.

``PRAGMA application_id`` is the mark of a device's file. Files of earlier releases have none, and are known by their
tables and format; the transaction that opens them sets it. All else is somebody else's, and left alone: SQLite would
take any file that it can read, and add tables to it.

The file is opened by SQLite alone. A plain ``open``, when it is closed, would end the locks of every connection that
this process has to the file. First the file is read by itself (``immutable``: no lock, no file beside it). Where there
is a write-ahead log that may hold what the file lacks, the two are read together, through an index (``-shm``) that is
only read; where that is missing, too, nobody has the file open, and a copy is read.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from anabranch.client.errors import FileDamaged, FileFailed, ForeignFile
from anabranch.client.file import layout
from anabranch.client.file.write_connection import explained

_FIRST_TABLES = frozenset({"_db_state", "_db_tables", "_db_mutations_queue"})
"""Tables that a device's file of every format has."""
_SMALLEST = 512
"""Bytes of the smallest page."""
_ALONE = "mode=ro&immutable=1"
_WITH_LOG = ("mode=ro&readonly_shm=1", "mode=ro")
"""The second where the index can't be used as it is: its owner is about to change it."""


def is_devices(path: Path) -> bool:
    """Whether the file is a device's; False where it is still to be made: there is none, or an empty one.

    Raises:
        ForeignFile: it is another program's, or no file of SQLite.
        FileDamaged: it was cut to nothing, and its write-ahead log was not.
        FileFailed: it can't be looked at.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise FileFailed(f"{path} can't be opened: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ForeignFile(path, "it is a folder" if stat.S_ISDIR(status.st_mode) else "it is no plain file")
    # SQLite's files stand beside the file itself, wherever a link to it is.
    file = Path(os.path.realpath(path))
    if not status.st_size:
        if _size(beside(file, "-wal")):
            # SQLite would remove the log, and with it what is queued.
            raise FileDamaged("it has no bytes, and its write-ahead log has some", path)
        return False
    if status.st_size < _SMALLEST:
        # One of a single byte SQLite would take for an empty one.
        raise ForeignFile(path, "it is too small for a database")
    try:
        return _look(file, path)
    except UnicodeDecodeError as error:
        # SQLite's message has bytes of the file.
        raise ForeignFile(path, f"SQLite can't read it ({error}); or it is damaged") from error
    except sqlite3.DatabaseError as error:
        if (found := explained(error, path, False)) is error or isinstance(found, FileDamaged):
            raise ForeignFile(path, f"SQLite can't read it ({error}); or it is damaged") from error
        raise found from error
    except OSError as error:
        raise FileFailed(f"{path} can't be looked at: {error}") from error


def beside(path: Path, ending: str) -> Path:
    """A file beside the file: ``ending`` is ``-wal``, ``-shm``, ``-journal`` or ``-sync``."""
    return path.with_name(path.name + ending)


def _look(file: Path, named: Path) -> bool:
    has_log = _size(beside(file, "-wal")) > 0
    try:
        with _opened(file, _ALONE) as conn:
            if _pragma(conn, "application_id") == layout.APPLICATION_ID:
                return True
            if not has_log:
                return _by_content(conn, named)
    except sqlite3.DatabaseError:
        if not has_log:
            raise
    with _opened_with_log(file) as conn:
        return _by_content(conn, named)


def _by_content(conn: sqlite3.Connection, named: Path) -> bool:
    mark, version = _pragma(conn, "application_id"), _pragma(conn, "user_version")
    if mark == layout.APPLICATION_ID:
        return True
    names = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    if mark == 0 and version > 0 and names >= _FIRST_TABLES:
        return True
    if mark or version or names:
        of = f"application_id {mark}" if mark else f"{len(names)} tables and indexes that are not a device's"
        raise ForeignFile(named, f"it is another program's database ({of})")
    # A database without anything in it: an earlier release may have been killed when it had made no more.
    return False


def _pragma(conn: sqlite3.Connection, name: str) -> int:
    value: int = conn.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@contextmanager
def _opened(path: Path, options: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, isolation_level=None)) as conn:
        yield conn


@contextmanager
def _opened_with_log(path: Path) -> Iterator[sqlite3.Connection]:
    if not beside(path, "-shm").exists():
        with tempfile.TemporaryDirectory(prefix="anabranch-") as folder:
            copy = Path(folder) / "file"
            shutil.copyfile(path, copy)
            shutil.copyfile(beside(path, "-wal"), beside(copy, "-wal"))
            with closing(sqlite3.connect(copy, isolation_level=None)) as conn:
                yield conn
        return
    for options in _WITH_LOG:
        with _opened(path, options) as conn:
            try:
                _pragma(conn, "user_version")
            except sqlite3.OperationalError:
                if options == _WITH_LOG[-1]:
                    raise
                continue
            yield conn
            return
