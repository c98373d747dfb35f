"""Reading: the log into the file, by pages to the head or by following it; pulls where the log can't serve.

State model. Pages may come from two sources at once, a subscription and an explicit ``read``; each has its own
``Applier``, and the file's cursor decides what is new. ``_turn`` is held while a page is applied and during a whole
pull, so that no page comes between a pull's ``as_of`` and its end. ``_generation`` counts pulls: a subscription that
began before one is started again, because the cursor may have gone back.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable

from anabranch.client import state
from anabranch.client.apply import Applied, Applier
from anabranch.client.bootstrap import Bootstrap, Progress
from anabranch.client.describe import apply_description
from anabranch.client.errors import CallFailed
from anabranch.client.events import State
from anabranch.client.file import DeviceFile
from anabranch.client.rebase import Pendings
from anabranch.client.remote import RemoteDb, Stream
from anabranch.client.server_clock import ServerClock
from anabranch.v1 import change_pb2, position_pb2, snapshot_pb2

_NEW_SNAPSHOT = frozenset({"BEHIND_FLOOR", "INVALID_POSITION"})
_ATTEMPTS = 4
_PATIENCE_S = 60.0


class Reader:
    """Reads into ``file``."""

    def __init__(self, file: DeviceFile, remote: RemoteDb, pendings: Pendings, clock: ServerClock) -> None:
        self._file = file
        self._remote = remote
        self._clock = clock
        self._bootstrap = Bootstrap(file, remote, pendings)
        self._paging = Applier(file, pendings)
        self._following = Applier(file, pendings)
        self._turn = threading.RLock()
        self._generation = 0
        self._stream: Stream[change_pb2.SubscribeResponse] | None = None
        self._patience: dict[str, float] = {}
        self.heard_s = time.monotonic()
        """When the subscription last brought something, by the monotonic clock."""

    def prepare(self, progress: Callable[[Progress], None] | None = None) -> None:
        """Ask what the tables are where that is not known, and pull those that wait for it. Raises CallFailed."""
        with self._turn:
            if self._file.current().schema_version == 0:
                self._describe()
            conn = self._file.reader()
            stages = dict(conn.execute("SELECT name, stage FROM _db_tables ORDER BY ordinal").fetchall())
            new = [name for name, stage in stages.items() if stage == "new"]
            if self._file.current().snapshot_due or (new and len(new) == len(stages)):
                self._pull(None, progress)
                return
            if new:
                self._pull(new, progress)
            for name in [name for name, stage in stages.items() if stage == "aside"]:
                self._pull_again(name, progress)

    def _pull(self, names: list[str] | None, progress: Callable[[Progress], None] | None) -> None:
        self._generation += 1
        self._bootstrap.pull(names, progress)

    def _pull_again(self, name: str, progress: Callable[[Progress], None] | None) -> None:
        """Pull a table that was set aside; one that still can't take its rows stays so, and is left alone a while."""
        try:
            self._pull([name], progress)
            self._patience.pop(name, None)
        except sqlite3.IntegrityError as error:
            self._patience[name] = time.monotonic() + _PATIENCE_S
            self._file.listeners.tell(State("set_aside", f"SQLite refused a row: {error}", name))

    def _describe(self) -> None:
        current = self._file.current()
        response = self._remote.describe(
            snapshot_pb2.DescribeRequest(db_name=current.db_name, node_state=current.node_state)
        )
        with self._file.transaction() as tx:
            apply_description(tx, response)
        self._file.listeners.deliver()

    def snapshot(self, progress: Callable[[Progress], None] | None = None) -> None:
        """Take the whole database anew into the same file; the queue is kept. Raises CallFailed."""
        with self._turn:
            with self._file.transaction() as tx:
                tx.set(snapshot_due=1)
            self._describe()
            self._pull(None, progress)

    def read(self) -> None:
        """Read to where the log's head is now. Raises CallFailed and sqlite3.Error."""
        with self._turn:
            for attempt in range(1, _ATTEMPTS + 1):
                self.prepare()
                try:
                    self._pages()
                    return
                except CallFailed as error:
                    self._clock.forget()
                    if attempt == _ATTEMPTS or error.reason not in _NEW_SNAPSHOT | {"INVALID_TOKEN"}:
                        raise
                    if error.reason in _NEW_SNAPSHOT:
                        self.snapshot()

    def _pages(self) -> None:
        self._paging.restart()
        token = b""
        goal: int | None = None
        while True:
            current = self._file.current()
            response = self._remote.get(
                change_pb2.GetRequest(
                    db_name=current.db_name,
                    node_state=current.node_state,
                    after=current.cursor_ms,
                    page_token=token,
                )
            )
            if self._other_history(response.state):
                return
            applied = self._paging.page(response.page)
            token = response.next_page_token
            if goal is None:
                goal = response.state.settled.server_timestamp_ms
            again = self._look(applied, response.state)
            if not token or (again is False and applied.cursor_ms >= goal):
                return

    def _other_history(self, server: position_pb2.ServerState) -> bool:
        """Take a new snapshot where the server's history is not the one that the file has followed."""
        for event in self._clock.told(server.server_time_ms):
            self._file.listeners.tell(event)
        current = self._file.current()
        if state.told_time(current, server.server_time_ms):
            with self._file.transaction() as tx:
                tx.set(**state.told_time(tx.state, server.server_time_ms))
        epoch = current.greatest_epoch
        if not server.settled.epoch or epoch in ("", server.settled.epoch):
            return False
        self.snapshot()
        return True

    def _look(self, applied: Applied, server: position_pb2.ServerState) -> bool:
        """What a page asks for beside its rows: new tables, tables to be pulled again, a new snapshot."""
        current = self._file.current()
        if applied.asked_twice:
            self.snapshot()
            return True
        if server.schema_version > current.schema_version:
            self._describe()
        waiting = self._file.reader().execute("SELECT name FROM _db_tables WHERE stage != 'live'").fetchall()
        now = time.monotonic()
        due = any(self._patience.get(name, 0.0) <= now for (name,) in waiting)
        if due:
            self.prepare()
        return due

    def follow(self, stopped: Callable[[], bool], online: Callable[[], None]) -> None:
        """Follow the log until the server ends the stream or ``stopped``; ``online`` is told when the first answer
        has come. Raises CallFailed and sqlite3.Error."""
        try:
            self._follow(stopped, online)
        except CallFailed as error:
            self._clock.forget()
            if error.reason not in _NEW_SNAPSHOT:
                raise
            self.snapshot()

    def _follow(self, stopped: Callable[[], bool], online: Callable[[], None]) -> None:
        self.prepare()
        with self._turn:
            generation = self._generation
            current = self._file.current()
            self._following.restart()
        self.heard_s = time.monotonic()
        self._stream = self._remote.subscribe(
            change_pb2.SubscribeRequest(db_name=current.db_name, node_state=current.node_state, after=current.cursor_ms)
        )
        try:
            for response in self._stream:
                if stopped():
                    return
                self.heard_s = time.monotonic()
                online()
                with self._turn:
                    if self._generation != generation or self._other_history(response.state):
                        return
                    page = response.page
                    if not response.HasField("page"):
                        page = change_pb2.Page(reached=response.state.settled)
                    self._look(self._following.page(page, response.sums), response.state)
                    if self._generation != generation:
                        return
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End the subscription, if there is one."""
        stream = self._stream
        if stream is not None:
            stream.cancel()
