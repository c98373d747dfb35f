"""The start and the end of a file's sync, by this process or by the one that holds the lease; and calls in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from anabranch.client.errors import BatchState, SyncedElsewhere
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.lease import Lease
from anabranch.client.file.owner import Owner
from anabranch.client.principal import ask_whose
from anabranch.client.queue.sender import Sender
from anabranch.client.reading.bootstrap import Progress
from anabranch.client.reading.reader import Reader
from anabranch.client.reading.row_check import RowCheck
from anabranch.client.remote import RemoteDb
from anabranch.client.sync import SyncLoop


class Syncing:
    """The sync of a file: in the background while there is a loop, else when it is told to. Every method is one of
    ``SyncedDb`` by the same name, where it is described."""

    def __init__(
        self, file: DeviceFile, remote: RemoteDb, lease: Lease, sender: Sender, reader: Reader, row_check: RowCheck
    ) -> None:
        self._file = file
        self._remote = remote
        self._lease = lease
        self._sender = sender
        self._reader = reader
        self._row_check = row_check
        self._loop: SyncLoop | None = None
        self.owner = Owner(file, remote.token, partial(ask_whose, remote))

    @property
    def is_online(self) -> bool:
        """Whether the background has reached the server, and nothing is in trouble."""
        return self._loop is not None and self._loop.is_online

    def wake(self) -> None:
        """Report that a batch was queued."""
        if self._loop is not None:
            self._loop.wake()

    def start(self, background: bool, progress: Callable[[Progress], None] | None, timeout_s: float) -> None:
        if self._loop is not None:
            raise BatchState("it is started already")
        self.owner.claim()
        if self._lease.acquire():
            with self._file.diagnosing():
                self._first_pull(progress)
        elif not background:
            raise SyncedElsewhere(f"{self._file.path} is synced by another process")
        else:
            self._await_tables(timeout_s)
        if background:
            self._loop = SyncLoop(self._file, self._sender, self._reader, self._lease)
            self._loop.start()

    def _first_pull(self, progress: Callable[[Progress], None] | None = None) -> None:
        if self._file.current().pulls > 0:
            return
        try:
            self._reader.prepare(progress)
        except BaseException:
            self._lease.release()
            raise

    def _await_tables(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._file.current().pulls == 0:
            if time.monotonic() > deadline:
                raise SyncedElsewhere("the process that syncs the file has not pulled its tables")
            if self._lease.acquire():
                self._first_pull()
                return
            time.sleep(0.05)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.stop(self._remote.close)
            self._loop = None
        self._row_check.end()
        self.owner.leave()
        self._lease.release()
        self._remote.close()

    def network_up(self) -> None:
        if self._loop is not None:
            self._loop.network_up()

    def require_here(self) -> None:
        """Take the lease for a call. Raises SyncedElsewhere, and BatchState where a batch is open here."""
        self._file.require_free()
        if not self._lease.acquire():
            raise SyncedElsewhere(f"{self._file.path} is synced by another process")

    def flush(self, timeout_s: float) -> bool:
        self.require_here()
        with self.owner.heeding(), self._file.diagnosing():
            return self._sender.flush(timeout_s)

    def read(self) -> None:
        self.require_here()
        with self.owner.heeding(), self._file.diagnosing():
            self._reader.read()
        if self._loop is None:
            self._row_check.begin()
