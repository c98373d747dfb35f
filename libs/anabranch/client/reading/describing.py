"""Describe: the server's tables into the file, and whether it can still tell those that an app was built for."""

from __future__ import annotations

from collections.abc import Collection

from anabranch.client.errors import AppOutdated
from anabranch.client.events import State
from anabranch.client.file import state
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.remote import RemoteDb
from anabranch.client.schema import pinned
from anabranch.client.schema.describe import Described, about_to_apply, apply_description, ask_for_all
from anabranch.v1 import change_pb2


class Describing:
    """Describes the tables of ``file``. The caller sees to it that nothing else reads the log meanwhile."""

    def __init__(self, file: DeviceFile, remote: RemoteDb, pendings: Pendings) -> None:
        self._file = file
        self._remote = remote
        self._pendings = pendings
        self._told_up_to = 0
        self._aside: Collection[State] = ()
        """The states of tables that the last description told."""

    def now(self) -> None:
        """Bring the file's tables up to date. Raises CallFailed, AppOutdated, sqlite3.Error."""
        described = self._ask(self._file.current())
        if self._file.listeners.schema and (event := about_to_apply(self._file, described)) is not None:
            self._file.listeners.tell(event)
        with self._file.transaction() as tx:
            aside = apply_description(tx, described, self._pendings, self._aside)
            # In a database without any write, no position bounds the ids made by a clock that is behind.
            tx.set(**state.time_seen(tx.state, described.response.state.server_time_ms))
        self._aside = aside
        self._file.listeners.deliver()

    def _ask(self, current: state.FileState) -> Described:
        try:
            return ask_for_all(current, self._remote.describe)
        except AppOutdated as error:
            pinned.note(self._file, error)
            raise

    def require_version(self, page: change_pb2.Page) -> None:
        """Ask the server whether it can still tell the app's schema version, where a page goes beyond that. Raises
        CallFailed, AppOutdated."""
        groups = list(page.groups)
        if not any(group.schema_change for group in groups):
            return
        current = self._file.current()
        # The parts of a group that is split come on many pages.
        if pinned.is_known(current, groups) or groups[-1].position == self._told_up_to:
            return
        self._ask(current)
        self._told_up_to = groups[-1].position
