"""The check of all rows where no background loop runs: beside the app's own calls, never inside one of them.

States: *resting* (no thread), *reading* (a thread reads the tables whose check is due, and then rests), *ending* (the
thread stops at its next row; the caller of ``end`` waits for that).
"""

from __future__ import annotations

import sqlite3
import threading

from anabranch.client.errors import ClientError
from anabranch.client.file.believed import UNREADABLE
from anabranch.client.logs import get_logger
from anabranch.client.reading.reader import Reader

log = get_logger(__name__)


class RowCheck:
    """The check for one ``SyncedDb``."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin to read the tables that are due, unless a thread already does. Return at once."""
        if not self._reader.verify_is_due():
            return
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._stopped = threading.Event()
            self._thread = threading.Thread(
                target=self._read, args=(self._stopped,), name="anabranch-rows", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """Stop reading, and wait until the thread has ended; tables that were not read are still due."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopped.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _read(self, stopped: threading.Event) -> None:
        try:
            self._reader.verify(stopped.is_set)
        except (sqlite3.Error, ClientError, *UNREADABLE):
            # A full or a broken disk, a damaged file, or a batch that stays open: the app gets the error from its own
            # calls, and the rows are still due.
            log.exception("rows_not_read")
