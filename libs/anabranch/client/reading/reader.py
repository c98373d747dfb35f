"""Reading: the log into the file, by pages to the head or by following it; pulls where the log can't serve.

State model. Pages may come from two sources at once, a subscription and an explicit ``read``; each has its own
``Applier``, and the file's cursor decides which groups are new. ``_turn`` is held while a page is applied and during a
whole pull, so that no page comes between a pull's ``as_of`` and its end. ``_generation`` counts pulls: a subscription
that began before one is started again, because the cursor may have gone back. It is also started again when the file
has followed a history that the server does not have: see ``rewind``.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable

from anabranch.client.errors import CallFailed, NotReady
from anabranch.client.events import State
from anabranch.client.file import choice, state
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.principal import owned
from anabranch.client.queue import settle
from anabranch.client.reading import rewind, seen, sums
from anabranch.client.reading.ahead import Ahead
from anabranch.client.reading.apply import AppliedPage, Applier, cut
from anabranch.client.reading.arrow_rows import OtherShapeError
from anabranch.client.reading.bootstrap import Bootstrap, Progress
from anabranch.client.reading.describing import Describing
from anabranch.client.reading.gains import Gains
from anabranch.client.reading.repair import PullInstead, Repaired, repair
from anabranch.client.reading.report import Report
from anabranch.client.remote import RemoteDb, Stream, applying
from anabranch.client.renewals import Renewals
from anabranch.client.server_clock import ServerClock
from anabranch.v1 import change_pb2, position_pb2

_ATTEMPTS = 4
_PATIENCE_S = 60.0


class Reader:
    """Reads into ``file``."""

    def __init__(
        self,
        file: DeviceFile,
        remote: RemoteDb,
        pendings: Pendings,
        clock: ServerClock,
        now_ms: Callable[[], int],
        reached: Callable[[str], None],
    ) -> None:
        self._file = file
        self._remote = remote
        self._pendings = pendings
        self._clock = clock
        self._now_ms = now_ms
        self._reached = reached
        self._bootstrap = Bootstrap(file, remote, pendings)
        self._gains = Gains(file, remote, pendings)
        self._paging = Applier(file, pendings, reached)
        self._following = Applier(file, pendings, reached)
        self._gaining: Applier | None = None
        self._turn = threading.RLock()
        self._generation = 0
        self._asking = False
        self._describing = Describing(file, remote, pendings)
        self._renewals = Renewals(remote)
        self._stream: Stream[change_pb2.SubscribeResponse] | None = None
        self._patience: dict[str, float] = {}
        self._report = Report(file)
        self.heard_s = time.monotonic()
        """The time of the subscription's last message, by the monotonic clock, in seconds."""

    def prepare(self, progress: Callable[[Progress], None] | None = None) -> None:
        """Ask for the tables where they are not known, and pull those that wait for it. Raises CallFailed."""
        with self._turn, owned(self._file, self._remote):
            current = self._file.current()
            if current.schema_version == 0 or current.describe_due or current.needs_version:
                self._describing.now()
            conn = self._file.reader()
            stages = dict(conn.execute("SELECT name, stage FROM _db_tables ORDER BY ordinal").fetchall())
            new = [name for name, stage in stages.items() if stage == "new"]
            due = current.snapshot_due
            if due:
                # A file behind the floor, or in another history, may know the tables as they no longer are.
                self._describing.now()
            if due or (len(new) == len(stages) and (new or not current.pulls)):
                self._pull(None, progress)
                return
            if new:
                self._pull(new, progress)
            for name in [name for name, stage in stages.items() if stage == "aside"]:
                self._pull_again(name, progress)
            self._gain(progress)

    def _gain(self, progress: Callable[[Progress], None] | None) -> None:
        """Pull the rows of gained audiences, unless that is what the log is being read for."""
        if self._gaining is not None or not self._gains.are_owed():
            return
        # Whoever reads the log meanwhile keeps the parts of a group that it has.
        self._gaining = Applier(self._file, self._pendings, self._reached)
        try:
            self._generation += 1
            self._gains.pull(self._read_to, self._pages, progress)
        finally:
            self._gaining = None

    def _pull(self, names: list[str] | None, progress: Callable[[Progress], None] | None) -> None:
        """Pull tables; where they have been altered, or dropped, since the server described them, they are described
        anew."""
        self._generation += 1
        for _ in range(_ATTEMPTS):
            try:
                self._bootstrap.pull(names, progress)
                return
            except OtherShapeError as error:
                changed = str(error)
            except CallFailed as error:
                if error.reason != "UNKNOWN_TABLE":
                    raise
                changed = error.message
            self._describing.now()
        raise CallFailed("ABORTED", "", f"the tables change faster than they are pulled: {changed}", again=True)

    def _pull_again(self, name: str, progress: Callable[[Progress], None] | None) -> None:
        """Pull a table that was set aside; if it can't take its rows, it stays so, and is not tried for a while."""
        try:
            self._pull([name], progress)
            self._patience.pop(name, None)
        except sqlite3.IntegrityError as error:
            self._patience[name] = time.monotonic() + _PATIENCE_S
            told = self._file.tables().told(name)
            self._file.listeners.publish(State("set_aside", f"SQLite refused a row: {error}", told))

    def snapshot(self, progress: Callable[[Progress], None] | None = None) -> None:
        """Take the whole database anew into the same file; the queue is kept. Raises CallFailed."""
        with self._turn:
            self._due()
            self.prepare(progress)

    def _due(self) -> None:
        with self._file.transaction() as tx:
            tx.set(snapshot_due=max(1, tx.state.snapshot_due))

    def rewound(self, pulls: int, refused: state.Seen | None) -> None:
        """Take the server's history, because the server does not have the position ``refused`` that the file has seen,
        or (None) because this was found before. ``pulls`` is the file's number of pulls when it was found, so that it
        is done once. If the file is already recovering, a refused position is the one that it had in common with the
        server: then the server was restored once more.

        Raises:
            CallFailed: it failed, or did not get to its end; call again.
        """
        with self._turn, owned(self._file, self._remote):
            current = self._file.current()
            if current.pulls != pulls:
                return
            once_more = refused == current.greatest_seen != state.NOTHING_SEEN
            if current.snapshot_due != rewind.RECOVERING or once_more:
                self._generation += 1
                rewind.recover(self._file, self._remote, self._pendings)
            self.prepare()

    def _mended(self, error: CallFailed, presented: state.FileState) -> bool:
        """Do what a failed call asks for; return False for a failure without a remedy here. Raises CallFailed."""
        self._clock.forget()
        if error.reason in rewind.REASONS:
            self.rewound(presented.pulls, presented.greatest_seen)
        elif error.reason == "BEHIND_FLOOR":
            self._due()
        return error.reason in rewind.REASONS | {"BEHIND_FLOOR", "INVALID_TOKEN"}

    def read(self) -> None:
        """Read to where the log's head is now. Raises CallFailed and sqlite3.Error."""
        with self._turn:
            for attempt in range(1, _ATTEMPTS + 1):
                presented = self._file.current()
                try:
                    with owned(self._file, self._remote):
                        self.prepare()
                        self._pages()
                    return
                except CallFailed as error:
                    if not self._mended(error, presented) or attempt == _ATTEMPTS:
                        raise

    def verify(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Read the rows of the tables whose check is due; note and publish the results. Raises sqlite3.Error."""
        now_ms = self._now_ms()
        sums.date_verified(self._file, now_ms)
        for name in sums.due(self._file.reader(), now_ms):
            if stopped():
                return
            sums.verify(self._file, name, now_ms, stopped)

    def verify_is_due(self) -> bool:
        """Whether ``verify`` has a table to read or to date."""
        conn = self._file.reader()
        return sums.has_undated(conn) or bool(sums.due(conn, self._now_ms()))

    def repair(self, name: str) -> Repaired:
        """Mend the rows of a table, by its identity; see ``client.reading.repair``. Raises CallFailed, NotReady,
        NotChosen and sqlite3.Error."""
        with self._turn, owned(self._file, self._remote):
            self.prepare()
            row = self._file.reader().execute("SELECT stage FROM _db_tables WHERE name = ?", (name,)).fetchone()
            told = self._file.tables().told(name)
            if row is None:
                raise choice.not_there(self._file.current(), told)
            if row != ("live",):
                raise NotReady(f"{told} can't be compared: it has to be pulled first")
            try:
                try:
                    return self._compare(name)
                except CallFailed as error:
                    if not self._remote.renewed(error):
                        raise
                # The comparison is of one moment: it begins anew.
                return self._compare(name)
            except PullInstead:
                with self._file.transaction() as tx:
                    settle.set_aside(tx, name, "too much of it differs")
                self._file.listeners.deliver()
                self._pull([name], None)
            self.read()
            sums.verify(self._file, name, self._now_ms())
            return Repaired(0, True, name not in sums.disagreements(self._file.reader()))

    def _compare(self, name: str) -> Repaired:
        node_state = self._report.of(self._file.current())
        return repair(self._file, self._remote, self._pendings, name, node_state, self._read_to, self._now_ms())

    def _read_to(self, position: int) -> None:
        """Read the log up to exactly ``position``. Raises CallFailed where that is not possible."""
        if self._file.current().cursor_ms != position:
            self._pages(position)

    def _pages(self, up_to: int | None = None) -> None:
        pages = Ahead(self._remote, self._report.of)
        try:
            self._apply_all(pages, up_to)
        finally:
            pages.drop()

    def _apply_all(self, pages: Ahead, up_to: int | None) -> None:
        applier = self._gaining or self._paging
        token = b""
        goal: int | None = up_to
        begun = 0
        while True:
            current = self._file.current()
            if not token:
                applier.restart(current.cursor_ms)
            response, presented = pages.page(current, token)
            first = self._hear(response.state, presented)
            self._describing.require_version(response.page)
            token = response.next_page_token
            if goal is None:
                goal = response.state.settled.server_timestamp_ms
            reached = response.page.reached.server_timestamp_ms
            if up_to is not None and reached > up_to:
                applied = applier.page(cut(response.page, up_to), first=first)
            else:
                if token and reached < goal and up_to is None and self._gaining is None:
                    pages.ahead(current, response.page, token)
                applied = applier.page(response.page, response.sums, first)
            if applied.anew:
                begun += 1
                if begun == _ATTEMPTS:
                    raise CallFailed("ABORTED", "", "the audiences change faster than the log is read", again=True)
                token = b""
                continue
            again = self._look(applied, response.state)
            if not token or (again is False and applied.cursor_ms >= goal):
                return
            if self._file.current().cursor_ms != applied.cursor_ms:
                # A pull has moved it.
                token = b""

    def _hear(self, server: position_pb2.ServerState, presented: state.FileState) -> Callable[[Tx], None]:
        """Note an answer's report on the server, which has found the ``presented`` position in its history. What the
        file has to note of it is done by the function that is returned, in the transaction that applies the page.

        That one raises:
            CallFailed: the server is in another epoch, and the file has seen a later position meanwhile, which has to
                be presented first.
        """
        self._clock.note(server.server_time_ms)
        for event in self._clock.events():
            self._file.listeners.publish(event)

        def note(tx: Tx) -> None:
            tx.set(**state.time_seen(tx.state, server.server_time_ms))
            if not server.settled.epoch or tx.state.greatest_epoch in ("", server.settled.epoch):
                return
            if not seen.take_epoch(tx, presented, server.settled):
                raise CallFailed("ABORTED", "INVALID_TOKEN", "a new epoch has begun during the call", again=True)

        return note

    def _look(self, applied: AppliedPage, server: position_pb2.ServerState) -> bool:
        """Do what a page asks for beside its rows: new tables, tables to be pulled again, a new snapshot."""
        current = applied.state
        if applied.asked_twice:
            self.snapshot()
            return True
        caught_up = 0 < current.describe_at <= current.cursor_ms
        waiting = None if applied.standing is None else applied.standing.not_live()
        if server.schema_version > current.schema_version or current.describe_due or caught_up:
            self._describing.now()
            waiting = None
        if waiting is None:
            found = self._file.reader().execute("SELECT name FROM _db_tables WHERE stage != 'live'").fetchall()
            waiting = [name for (name,) in found]
        now = time.monotonic()
        due = any(self._patience.get(name, 0.0) <= now for name in waiting)
        if due or (self._gaining is None and current.gains_due):
            self.prepare()
        return due

    def follow(self, stopped: Callable[[], bool], online: Callable[[], None]) -> None:
        """Follow the log until the server ends the stream, its token has ended and the app has another one, or
        ``stopped``; ``online`` is called when the first answer has come. Raises CallFailed and sqlite3.Error."""
        presented = self._file.current()

        def heard() -> None:
            self._renewals.answered()
            online()

        try:
            with owned(self._file, self._remote):
                self._follow(stopped, heard)
        except CallFailed as error:
            # The server has ended the stream with its token; the next stream begins with the new one.
            if self._renewals.allow(error):
                return
            if not (self._asking and error.code == "CANCELLED") and not self._mended(error, presented):
                raise
            self.prepare()

    def heed_choice(self) -> None:
        """End the subscription where the choice has added tables, so that they are pulled at once."""
        if self._file.current().describe_due:
            self._asking = True
            self.cancel()

    def _follow(self, stopped: Callable[[], bool], online: Callable[[], None]) -> None:
        self.prepare()
        self._asking = False
        with self._turn:
            generation = self._generation
            current = self._file.current()
            self._following.restart(current.cursor_ms)
        self.heard_s = time.monotonic()
        self._stream = self._remote.subscribe(
            change_pb2.SubscribeRequest(
                db_name=current.db_name, node_state=self._report.of(current), after=current.cursor_ms
            )
        )
        try:
            for response in self._stream:
                if stopped():
                    return
                self.heard_s = time.monotonic()
                online()
                with self._turn:
                    if self._generation != generation:
                        return
                    first = self._hear(response.state, current)
                    page = response.page
                    if not response.HasField("page"):
                        page = change_pb2.Page(reached=response.state.settled)
                    self._describing.require_version(page)
                    with applying(response.traceparent):
                        applied = self._following.page(page, response.sums, first)
                    if applied.anew:
                        return
                    self._look(applied, response.state)
                    if self._generation != generation:
                        return
                    if self._report.has_news(applied):
                        # The next call reports it to the server.
                        return
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End the subscription, if there is one."""
        stream = self._stream
        if stream is not None:
            stream.cancel()
