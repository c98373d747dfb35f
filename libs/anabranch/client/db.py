"""SyncedDb, the class that an app uses."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from anabranch.client import queries, status
from anabranch.client.events import Change, ConflictEvent, DeadLetter, Listeners, Schema, State
from anabranch.client.file import choice
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.file.lease import Lease
from anabranch.client.letters import conflicts, dead, replay
from anabranch.client.letters.conflicts import Conflict, Filter
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.queue import verdicts
from anabranch.client.queue.sender import Sender
from anabranch.client.queue.verdicts import BatchVerdict, Explanation
from anabranch.client.reading import audience_choice, sums
from anabranch.client.reading.bootstrap import Progress
from anabranch.client.reading.reader import Reader
from anabranch.client.reading.repair import Repaired
from anabranch.client.reading.row_check import RowCheck
from anabranch.client.remote import RemoteDb
from anabranch.client.schema import pinned
from anabranch.client.schema.describe import ask
from anabranch.client.server_clock import ServerClock
from anabranch.client.status import Status
from anabranch.client.synced_table import Batch, SyncedTable
from anabranch.client.syncing import Syncing
from anabranch.client.writes.local import BatchBuilder, WriteChecks
from anabranch.client.writes.payload import PayloadCache
from anabranch.clock import clock_from_environment

_FLUSH_S = 60.0
_ASK_S = 3.0
"""Seconds that a write waits for the server's answer before it is refused because of a rule that may have changed."""


class SyncedDb:
    """A database of the server in a SQLite file, readable and writable at any time.

    ``path`` is created if it is missing, ``node_name`` is for people, ``now_ms`` is the device's clock in milliseconds
    since 1970. Usable from any thread, and from several processes at once, of which one syncs.

    ``refuse_foreign_writes``: a write to a synced table otherwise than by ``table`` (a plain SQLite connection, an
    ORM's commit, a shell) is not sent, and a repair would undo it. Such a write raises sqlite3.IntegrityError, unless
    this is False. The file keeps the choice of the process that opened it last.

    ``tables``: the names of the synced tables that the device wants, None for all, later ones too: see
    ``choose_tables``. ``audiences``: those whose rows it wants of restricted tables, None for all that its principal
    may see. Processes that share a file name the same: it keeps the choices of the one that opened it last.

    ``schema_version``: the database's schema version that the app was built for (``status().schema_version`` when it
    was). Tables and columns keep the names of then, whatever the server does to its own; columns that came later are
    not seen, those that went are NULL. Where the server can't tell that version any more, syncing stops with
    AppOutdated and the state "app_outdated", the queue stays, and reads go on. Without it names are those of the day:
    the app hears of changes by ``on_schema``. An app that was updated names its new version, or none, and goes on with
    the file.

    ``reached`` is for tests: it is called with the name of a point at which the process may end and must lose nothing:
    after a local commit (``after_local_commit``) and around a page of the log (``before_apply``, ``after_apply``).

    A file that is made here can be read and written by its owner alone, and so can the files beside it (``-wal``,
    ``-shm``, ``-sync``), whatever the umask. One that exists keeps its mode, and those beside it get the same: an app
    may share its file with a group.

    Raises:
        ForeignFile: the file is another program's, or no SQLite file. Nothing was changed.
        FileDamaged: its own tables are damaged. What is queued in it stays there.
        ClientError: the file holds another database, or was written by a later version.
    """

    def __init__(
        self,
        path: str | Path,
        remote: RemoteDb,
        db_name: str,
        node_name: str = "",
        now_ms: Callable[[], int] | None = None,
        refuse_foreign_writes: bool = True,
        reached: Callable[[str], None] = lambda point: None,
        tables: Iterable[str] | None = None,
        audiences: Iterable[str] | None = None,
        schema_version: int | None = None,
    ) -> None:
        wanted, seen, version = (
            choice.checked(tables),
            audience_choice.checked(audiences),
            pinned.checked(schema_version),
        )
        self._reached = reached
        self._now_ms = now_ms or clock_from_environment().now_ms
        self._remote = remote
        self._listeners = Listeners()
        self._file = DeviceFile(Path(path), db_name, node_name, self._now_ms, self._listeners, refuse_foreign_writes)
        self._lease = Lease(Path(path))
        pendings = Pendings(PayloadCache(), lambda: self._lease.taken)
        pinned.take_up(self._file, version, pendings)
        choice.take_up(self._file, wanted)
        audience_choice.take_up(self._file, seen, pendings)
        self._clock = ServerClock(self._now_ms)
        self._reader = Reader(self._file, remote, pendings, self._clock, self._now_ms, reached)
        self._sender = Sender(self._file, remote, pendings, self._now_ms, self._clock, self._reader.rewound)
        self._row_check = RowCheck(self._reader)
        self._syncing = Syncing(self._file, remote, self._lease, self._sender, self._reader, self._row_check)
        self._owner = self._syncing.owner
        self._checks: dict[str, WriteChecks] = {}
        self._builder: BatchBuilder | None = None
        self._listeners.state.append(self._owner.heed)

    def choose_tables(self, tables: Iterable[str] | None) -> None:
        """Keep these synced tables alone from now on, or (None) all. The rows of others leave the file at once; queued
        writes stay, whatever they touch, and are sent. What is new in the choice is pulled by the background, or by the
        next ``read``, with queued writes on top. A name that the server does not have waits (``status().awaited``).
        Raises ValueError, BatchState, DiskFull, FileFailed, WrongPrincipal: the choice is the one before.
        """
        wanted = choice.checked(tables)
        self._owner.require()
        choice.keep(self._file, wanted)

    # Syncing

    def start(
        self,
        background: bool = True,
        progress: Callable[[Progress], None] | None = None,
        timeout_s: float = 3600.0,
    ) -> None:
        """Begin to sync. The first start waits until the tables are pulled, and calls ``progress`` meanwhile; later
        ones return at once, and catch up and flush in the background. Without ``background`` only ``sync``, ``flush``
        and ``read`` sync. Where another process syncs the file, this one takes over when that one ends.

        Raises:
            WrongPrincipal: the file belongs to another principal.
            CallFailed: the first pull failed; call again, and it goes on where it stopped.
            SyncedElsewhere: another process syncs the file, and ``background`` is False or ``timeout_s`` passed
                before it had pulled the tables.
        """
        self._syncing.start(background, progress, timeout_s)

    def stop(self) -> None:
        """End syncing; queued batches stay. The file can still be read and written, and started again."""
        self._syncing.stop()

    def close(self) -> None:
        """Stop, and close the file."""
        self.stop()
        self._file.close()

    def __enter__(self) -> SyncedDb:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def network_up(self) -> None:
        """Report that the network is back: a call that waits for its next attempt is made now."""
        self._syncing.network_up()

    def flush(self, timeout_s: float = _FLUSH_S) -> bool:
        """Send the queued batches and wait for the verdicts; return whether all came in time.

        Raises:
            CallFailed: the server can't be reached or refuses; everything is still queued.
            SyncedElsewhere: another process syncs the file.
            BatchState: a batch is open here.
            WrongPrincipal: the file belongs to another principal.
        """
        return self._syncing.flush(timeout_s)

    def read(self) -> None:
        """Read the log to its head. Tables' sums are compared with the server's at every page. A table's rows are
        compared with its sum in a thread of its own, after a pull and then once a day: ``on_state``, ``status`` and the
        next call report the result. Raises CallFailed, SyncedElsewhere, BatchState."""
        self._syncing.read()

    def sync(self, timeout_s: float = _FLUSH_S) -> bool:
        """``flush``, then ``read``; return whether every batch has its verdict. Raises as both do."""
        done = self.flush(timeout_s)
        self.read()
        return done

    def verify(self, table: str | None = None) -> tuple[str, ...]:
        """Read all rows of a table, or of every one, and compare them with the sum that is kept while the log is read:
        this finds changes that a disk, or another program, made in the file. Return the names of all tables that are
        now known to differ from the server's, these and others; ``repair`` mends them. Pending writes don't count.

        Raises:
            ValueError: there is no such table; NotChosen, NotReady: it is not here, or not yet.
            BatchState: a batch is open here.
        """
        self._file.require_free()
        wanted = self._file.tables().values() if table is None else [queries.require_table(self._file, table)]
        for one in wanted:
            with self._file.diagnosing():
                sums.verify(self._file, one.name, self._now_ms())
        return self.status().disagreeing

    def repair(self, table: str) -> Repaired:
        """Compare a table with the server's by key ranges and fetch the rows that differ; writes that wait in the queue
        are kept and shown on top. Call it where a table's sums disagree; it does no harm where they agree. It reads the
        log up to one position of the server first, and the whole table, here and there.

        Raises:
            ValueError: there is no such table; NotChosen, where the device has not chosen it.
            CallFailed: the server can't be reached or refuses, or the table has changed meanwhile; call again.
            NotReady: the table waits for a pull.
            SyncedElsewhere: another process syncs the file.
            BatchState: a batch is open here.
            WrongPrincipal: the file belongs to another principal.
        """
        self._syncing.require_here()
        name = queries.require_table(self._file, table).name
        with self._file.diagnosing():
            return self._reader.repair(name)

    def clear(self) -> None:
        """Make the file empty and a new node, for any principal that logs in next. Rows, queues and dead letters are
        gone for good.

        Raises:
            SyncedElsewhere: another process syncs the file.
            ClientError: another process reads the file, so that the removed rows can still be read there; call again.
        """
        self._syncing.require_here()
        self.stop()
        self._file.reset()
        self._owner.forget()

    # Writing

    def table(self, name: str) -> SyncedTable:
        """The synced table ``name``; its first use checks whether it exists."""
        return SyncedTable(name, self._write)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """All writes inside the block are one batch; if the block raises, none of them is made. A batch inside a batch
        is an error.

        The block belongs to the code that opened it: to its thread, its asyncio task, and the generator that it stands
        in, unless that is a context manager's. Other threads, the sync and other processes wait until it ends, for two
        minutes at most; other code in the same thread, for which the block could never end, gets BatchState. So don't
        await or yield inside: gather first, then write. Reads by other code show the rows as committed before.

        Raises:
            BatchState: a batch is open here, or one that has to end first.
            ValueError: the batch is above a limit.
            DiskFull: there is no room. FileFailed: the file could not be written otherwise. The whole batch was undone,
                also where the block caught the error and went on.
            WrongPrincipal: the file belongs to another principal.
        """
        self._owner.require()
        batch = Batch()
        queued = ""
        with self._file.transaction() as tx:
            builder = self._builder = BatchBuilder(tx, self._checks, self._ask)
            try:
                yield batch
            finally:
                self._builder = None
            if not builder.is_empty:
                # A device's clock that is behind would make a new batch look old enough to expire.
                queued = builder.queue(max(self._now_ms(), self._clock.now_ms() or 0))
        batch.id = queued
        self._committed(batch)

    def _ask(self, tx: Tx, table: str) -> DeviceTable | None:
        """The server's present description of a table, None if it can't be asked at once: other writers wait."""
        if not self._syncing.is_online:
            return None
        return ask(tx, table, lambda request: self._remote.describe(request, timeout_s=_ASK_S))

    def _committed(self, batch: Batch) -> None:
        self._reached("after_local_commit")
        self._listeners.deliver()
        if batch.id:
            self._syncing.wake()

    @contextmanager
    def _write(self) -> Iterator[tuple[BatchBuilder, Batch]]:
        """The open batch, in which a failing call is undone alone, or a batch for this one call."""
        builder = self._builder
        if builder is not None and self._file.in_transaction:
            with builder.call():
                yield builder, Batch()
            return
        with self.batch() as batch:
            assert self._builder is not None
            yield self._builder, batch

    # Reading

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        """Run a query. It sees the committed rows and, inside a batch, the rows that the batch has written.

        Raises:
            sqlite3.OperationalError: the SQL is wrong, or writes.
            FileDamaged: what it reads is damaged; also later, while its rows are fetched.
            NotReady: it failed before the first pull, or that of a table chosen since: it may not have arrived yet.
            BatchState: the SQL would end the open batch before its block ends.
            WrongPrincipal: the file belongs to another principal.
        """
        self._owner.require()
        return queries.execute(self._file, sql, parameters)

    def status(self) -> Status:
        """The state of the file: queue, sync and tables."""
        return status.of_file(self._file, leader=self._lease.held, clock_skew_ms=self._clock.skew_ms)

    def table_sums(self) -> dict[str, tuple[int, bytes]]:
        """Count and hash (16 bytes) of every pulled table's base rows, as kept: pending writes are not in them."""
        tables = self._file.tables()
        return {tables.told(name): kept for name, kept in sums.kept(self._file.reader()).items()}

    # Events, dead letters, verdicts and conflicts

    def on_change(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``callback`` for every change of a shown row, once, after its commit, from the thread that made it.
        Register before ``start`` to get the first pull's rows, too. The process that makes the change calls back: for
        changes from the server the one that syncs the file, for a local write the one that writes. The other processes
        get the state "changed_elsewhere". The function that this and the other two return ends the calls; it may be
        called from a callback, from any thread, and more than once."""
        return self._listeners.listen(self._listeners.change, callback)

    def on_conflict(self, callback: Callable[[ConflictEvent], None]) -> Callable[[], None]:
        """Call ``callback`` where an own batch met others' changes: a lost value, a merge or a rejection."""
        return self._listeners.listen(self._listeners.conflict, callback)

    def on_state(self, callback: Callable[[State], None]) -> Callable[[], None]:
        """Call ``callback`` with every state of the sync: see ``STATE_KINDS``."""
        return self._listeners.listen(self._listeners.state, callback)

    def on_schema(self, callback: Callable[[Schema], None]) -> Callable[[], None]:
        """Call ``callback`` before the tables of the file become others, because the server's did, and after it: close
        statements and cursors, look up names anew. The process that syncs the file calls back, between two of its
        transactions; where the callback raises, the error is logged and the change is made all the same."""
        return self._listeners.listen(self._listeners.schema, callback)

    def dead_letters(self) -> list[DeadLetter]:
        """The batches that were rejected or have expired, in the order in which they were made. Each is kept for two
        weeks after it was first shown here."""
        if self.status().dead:
            self._owner.require()
        with self._file.transaction() as tx:
            dead.mark_shown(tx, self._now_ms(), self._clock.now_ms())
            return dead.letters(tx.conn, tx.tables)

    def replay(self, letter_id: str, set: Mapping[str, Any] | None = None, leave_out: Collection[str] = ()) -> str:
        """Write a dead letter again as a new batch, with the values in ``set`` in the place of its own and without the
        columns ``leave_out``; return the new batch's id.

        Raises:
            ValueError: there is no such letter, ``set`` or ``leave_out`` does not fit it, or a column of it is gone.
            RowMissing, RowExists: it does not fit the rows shown now. The letter stays in each case.
        """
        with self.batch() as batch:
            assert self._builder is not None
            replay.replay(self._builder.tx, self._builder, letter_id, set or {}, leave_out)
        return batch.id

    def discard(self, letter_id: str) -> None:
        """Remove a dead letter. Raises ValueError if there is no letter of that id."""
        self._owner.require()
        with self._file.transaction() as tx:
            dead.discard(tx, letter_id)

    def verdict(self, batch_id: str) -> BatchVerdict | None:
        """The verdict on an own batch, as far as the file knows it; None for a batch that the file has forgotten."""
        self._owner.require()
        return verdicts.of_batch(self._file.reader(), self._file.tables(), batch_id, self._sender.awaiting)

    def explain(self, batch_id: str) -> Explanation:
        """Ask the server for the verdict that a queued batch would get if it arrived now. Nothing is changed. Raises
        ValueError where no such batch is in the queue, CallFailed where the server can't be reached or refuses."""
        return verdicts.explain(self._file, self._remote, batch_id)

    def conflicts(
        self,
        table: str | None = None,
        key: Any = None,
        *,
        node_id: str | None = None,
        from_ms: int = 0,
        until_ms: int | None = None,
    ) -> Iterator[Conflict]:
        """The values that lost a conflict, the newest first: of all tables or one, of all rows or that of ``key`` (in
        one of the forms that ``delete`` takes), of all nodes or those that one node won or lost, decided at ``from_ms``
        or later and before ``until_ms``, in milliseconds since 1970. Pages are read from the server as they are needed.

        Raises:
            ValueError: the key does not fit the table.
            CallFailed: the server can't be reached or refuses, also later, while iterating.
        """
        self._owner.require()
        wanted = Filter(table, key, node_id, from_ms, until_ms)
        if table is not None:
            queries.require_table(self._file, table)
        first = conflicts.request(self._file.current().db_name, wanted, self._file.tables())
        return conflicts.pages(self._file, self._remote, first)

    def restore(self, *lost: Conflict | ConflictEvent) -> str:
        """Put values that lost a conflict back, as a new batch; return its id ("" inside a batch).

        Raises:
            ValueError: a value is not known, or its column is gone, or it does not fit the column any more.
            RowMissing: the row is not there any more.
        """
        with self._write() as (builder, batch):
            conflicts.restore(builder, lost)
        return batch.id
