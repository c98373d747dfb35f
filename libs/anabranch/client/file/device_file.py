"""A device's file: its connections, its one write transaction at a time, its tables.

State model. One connection writes, for every thread of the process, under ``_lock``; a transaction begins IMMEDIATE, so
that another process waits for it in ``busy_timeout``, and reads ``_db_state`` first: nothing that another process may
change is kept in memory but the compiled tables, which ``tables_version`` guards. ``_holder`` identifies the code whose
transaction is open (see ``holder``): code of another thread waits for it, for ``WAIT_S`` at most; code for which the
holder would have to wait itself is refused at once. Reads use ``query_only`` connections of their thread, or the
writing one inside the holder's own transaction: one for the app's queries, and another for our own, because a cursor
that the app has not read to its end holds its connection at the moment of its query. They are closed with their thread.
The events of a transaction are queued for delivery before the lock is released, so that they keep the order of commits.
A transaction that SQLite has ended by itself is over (see ``write_connection``).
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from anabranch.client.errors import BatchState, ClientError, FileDamaged
from anabranch.client.events import Event, Listeners
from anabranch.client.file import guards, layout, opening, shape, state
from anabranch.client.file.believed import UNREADABLE, believed, cause
from anabranch.client.file.device_table import DeviceTable, DeviceTables, compiled
from anabranch.client.file.holder import Holder
from anabranch.client.file.read_connection import AppConnection, ReadConnection
from anabranch.client.file.standing import Standing
from anabranch.client.file.state import FileState
from anabranch.client.file.write_connection import WriteConnection, as_damage, explained
from anabranch.client.writes.ids import next_id
from anabranch.values.decimals import add_decimals

BUSY_TIMEOUT_MS = 30_000
WAIT_S = 120.0
"""Seconds that a writer waits for another thread's transaction at most."""
_STATEMENTS_CACHED = 512
_OURS = frozenset({__file__, str(Path(__file__).parents[1] / "db.py")})
"""Where a batch is begun for the app."""
C = TypeVar("C", bound=sqlite3.Connection)


class Tx:
    """A write transaction. ``state`` follows ``set``; ``events`` are delivered after the commit."""

    __slots__ = (
        "_explain",
        "_know",
        "_let_in",
        "_opened",
        "conn",
        "events",
        "on_undo",
        "standing",
        "state",
        "tables",
        "wants_rows",
    )

    def __init__(
        self,
        conn: WriteConnection,
        current: FileState,
        tables: DeviceTables,
        wants_rows: bool,
        explain: Callable[[BaseException], BaseException] = lambda error: error,
        know: Callable[[Collection[str]], None] = lambda names: None,
    ) -> None:
        self.conn = conn
        self._explain = explain
        self._know = know
        self._let_in = False
        self._opened = False
        self.state = current
        self.tables = tables
        self.events: list[Event] = []
        self.on_undo: list[Callable[[], None]] = []
        """Called where the transaction, or a part of it, is undone: values kept in memory may no longer hold."""
        self.standing: Standing | None = None
        """Where the file stands, while a page is applied; see ``file.standing``."""
        self.wants_rows = wants_rows
        """Whether a callback listens to changes, so that reporting them is worth the work."""

    def set(self, **changes: Any) -> None:
        """Change fields of the file's state."""
        self.state = state.store(self.conn, self.state, changes)

    def tables_changed(self) -> None:
        """Take up the tables of the file as this transaction has changed them. Values in memory that were made with
        those of before are good for no later state of the file, also where the transaction is undone."""
        self.set(tables_version=self.state.tables_version + 1)
        self.tables = compiled(self.conn)
        self._know(self.tables.by_sql_name)

    @contextmanager
    def writing(self, table: DeviceTable, rows: int) -> Iterator[None]:
        """Let the block write about ``rows`` rows of a synced table, past the triggers that refuse foreign writes.
        Where it raises, the transaction, or a part of it, is to be undone."""
        if rows >= guards.MANY:
            guards.take(self.conn, table.sql_name)
            yield
            guards.put(self.conn, table.sql_name)
            return
        if not self._let_in:
            self.conn.execute("UPDATE _db_writer SET open = 1")
            self._let_in = self._opened = True
        yield

    def forget_standing(self, table: str) -> None:
        """Note that a table's stage, sum or disagreement is changed."""
        if self.standing is not None:
            self.standing.forget(table)

    def close(self) -> None:
        """End the permission to write rows, before the commit."""
        if self._opened:
            self.conn.execute("UPDATE _db_writer SET open = 0")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the block's writes alone if it raises; or the whole transaction, if the part can't be undone."""
        kept, before = len(self.events), self.state
        self.conn.execute("SAVEPOINT part")
        try:
            yield
            self.conn.execute("RELEASE part")
        except BaseException as error:
            explained = self._explain(error)
            self.conn.failed(explained)
            del self.events[kept:]
            self.state = before
            self.undone()
            if not self.conn.has_ended:
                self._undo_part(explained)
            if explained is not error:
                raise explained from error
            raise

    def _undo_part(self, error: BaseException) -> None:
        try:
            self.conn.execute("ROLLBACK TO part")
            self.conn.execute("RELEASE part")
        except (sqlite3.Error, MemoryError):
            # The part may be half undone: nothing of the transaction may be committed.
            self.conn.abandon(error)
            raise

    def undone(self) -> None:
        """Note that the transaction, or a part of it, was undone."""
        self._let_in = False
        self.standing = None
        for forget in self.on_undo:
            forget()


class DeviceFile:
    """``path`` is created if it is missing, unless ``db_name`` is None: then it must hold a database already, any one.
    ``refuse_foreign``: whether foreign writes to synced tables are refused from now on; None leaves that as it is.

    Raises:
        ForeignFile: the file is another program's, or no file of SQLite.
        FileDamaged: it is a device's, and its own tables are not what they were. Neither file is changed.
        FileFailed: it can't be opened, or made.
        ClientError: it belongs to another database or to a later version of this package.
    """

    def __init__(
        self,
        path: Path,
        db_name: str | None,
        node_name: str,
        now_ms: Callable[[], int],
        listeners: Listeners,
        refuse_foreign: bool | None = None,
    ) -> None:
        self.path = path
        self.listeners = listeners
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._holder: Holder | None = None
        self._reading = threading.local()
        self._readers: weakref.WeakSet[sqlite3.Connection] = weakref.WeakSet()
        self._readers_lock = threading.Lock()
        self._cleared = 0
        self._compiled_tables: tuple[int, DeviceTables] = (-1, DeviceTables())
        self._authorizer = guards.Authorizer()
        is_new = opening.found_or_made(path, may_make=db_name is not None)
        self._write = self._connect(WriteConnection)
        try:
            self._db_name = opening.prepare(self._write, path, is_new, db_name, node_name, now_ms, refuse_foreign)
        except BaseException as error:
            explained = opening.as_damage(self._explained(error), path)
            self._write.close()
            if explained is not error:
                raise explained from error
            raise
        self._write.set_authorizer(self._authorizer)

    def _explained(self, error: BaseException) -> BaseException:
        return explained(self._authorizer.explain(error), self.path, self._write.has_ended)

    def _connect(self, factory: type[C]) -> C:
        try:
            conn = sqlite3.connect(
                self.path,
                timeout=BUSY_TIMEOUT_MS / 1000,
                isolation_level=None,
                check_same_thread=False,
                factory=factory,
                cached_statements=_STATEMENTS_CACHED,
            )
        except sqlite3.Error as error:
            if (found := explained(error, self.path, False)) is not error:
                raise found from error
            raise
        conn.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        add_decimals(conn)
        if isinstance(conn, ReadConnection):
            conn.path = self.path
        return conn

    @property
    def in_transaction(self) -> bool:
        """Whether the calling code is inside the open transaction."""
        holder = self._holder
        return holder is not None and holder.is_here()

    def require_free(self) -> None:
        """Raises BatchState where a batch is open that the calling code would wait for in vain: its own, or one of
        another task or generator of its thread."""
        holder = self._holder
        if holder is None or not holder.would_wait_for_itself():
            return
        if holder.is_here():
            raise BatchState("a batch is open here: end its block first")
        raise BatchState(
            f"a batch is open in {holder.name}, which can't end while this code waits for it. Write in the block "
            f"itself, or when it has ended; don't await or yield in the block"
        )

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the connection that writes, alone, for the block. Raises BatchState where it stays in use."""
        if not self._lock.acquire(blocking=False):
            self.require_free()
            if not self._lock.acquire(timeout=WAIT_S):
                who = "other code" if self._holder is None else self._holder.name
                raise BatchState(
                    f"{who} has had a batch open for more than {WAIT_S:.0f} s: "
                    f"no other code can write until its block ends"
                )
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """One write transaction; commits at the end, undoes everything where the block raises.

        Raises:
            BatchState: a batch is open that has to end first.
            DiskFull: there is no room.
            FileFailed: the file could not be written otherwise, as when another process held it for longer than the
                busy timeout.
        """
        self.require_free()
        conn = self._write
        with self._held():
            tx: Tx | None = None
            holder = self._holder = Holder(_OURS)
            try:
                conn.begin()
                current = state.load(conn)
                tables = self._compiled(conn, current)
                self._authorizer.know(tables.by_sql_name)
                wants_rows = bool(self.listeners.change)
                tx = Tx(conn, current, tables, wants_rows, self._explained, self._authorizer.know)
                yield tx
                tx.close()
                conn.execute("COMMIT")
            except BaseException as error:
                conn.failed(error)
                if tx is not None:
                    tx.undone()
                if (explained := self._explained(error)) is not error:
                    raise explained from error
                raise
            finally:
                self._holder = None
                holder.let_go()
                conn.finish()
            if tx.events:
                self.listeners.put(tx.events)

    def reader(self) -> sqlite3.Connection:
        """A connection for reads of ours: the thread's own, or the open transaction's. Every cursor is read to its end
        at once."""
        return self._read_with("ours", ReadConnection)

    def app_reader(self) -> sqlite3.Connection:
        """A connection for the app's queries: the thread's own, or the transaction's. The app closes its cursors."""
        return self._read_with("app", AppConnection)

    def _read_with(self, name: str, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
        if self.in_transaction:
            return self._write
        kept: tuple[int, sqlite3.Connection] | None = getattr(self._reading, name, None)
        if kept is not None and kept[0] == self._cleared:
            return kept[1]
        conn = self._connect(factory)
        conn.execute("PRAGMA query_only = ON")
        with self._readers_lock:
            self._readers.add(conn)
            setattr(self._reading, name, (self._cleared, conn))
        return conn

    @contextmanager
    def private_reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for one piece of reading, beside the thread's own connections."""
        with closing(self._connect(ReadConnection)) as conn:
            conn.execute("PRAGMA query_only = ON")
            yield conn

    def current(self) -> FileState:
        """The state as last committed."""
        return state.load(self.reader())

    def tables(self) -> DeviceTables:
        """The synced tables, as last committed."""
        conn = self.reader()
        return self._compiled(conn, state.load(conn))

    def _compiled(self, conn: sqlite3.Connection, current: FileState) -> DeviceTables:
        version, tables = self._compiled_tables
        if current.tables_version != version:
            with believed("the description of a table"):
                tables = compiled(conn)
            # One assignment: at worst another thread compiles the same tables once more.
            self._compiled_tables = (current.tables_version, tables)
        return tables

    @contextmanager
    def diagnosing(self) -> Iterator[None]:
        """Raise FileDamaged where the block, which syncs, fails and the file turns out to be damaged."""
        try:
            yield
        except Exception as error:
            if (found := self.diagnosed(error)) is not error:
                raise found from error
            raise

    def diagnosed(self, error: Exception) -> Exception:
        """``error`` as FileDamaged, if it is one of those by which damage shows and the file is damaged, for which all
        of it is read. Else ``error`` itself."""
        if (damaged := as_damage(error, self.path)) is not None:
            return damaged
        if isinstance(error, ClientError) or not isinstance(error, (sqlite3.Error, *UNREADABLE)):
            return error
        try:
            with self.private_reader() as conn:
                what = shape.damage(conn)
        except (sqlite3.Error, ClientError):
            return error
        return error if what is None else FileDamaged(f"{what} ({cause(error)})", self.path)

    def data_version(self) -> int:
        """Changes when another process has written to the file."""
        with self._held():
            try:
                version: int = self._write.execute("PRAGMA data_version").fetchone()[0]
            except (sqlite3.Error, MemoryError) as error:
                raise self._explained(error) from error
        return version

    def reset(self) -> None:
        """Make the file empty, as a new node: synced tables, queues, everything. Cursors of the app end. The choices of
        tables and audiences stay, and the app's schema version: they are the app's, and not the user's.

        Raises:
            ClientError: another process reads the file, so that its pages still hold the removed data; call again.
        """
        self._close_readers()
        with self.transaction() as tx:
            for name in tx.tables:
                tx.conn.execute(f"DROP TABLE IF EXISTS {tx.tables[name].quoted}")
            staged = tx.conn.execute("SELECT pull_table FROM _db_tables WHERE pull_table IS NOT NULL").fetchall()
            for (name,) in staged:
                tx.conn.execute(f'DROP TABLE IF EXISTS "{name}"')
            old, node_id = tx.state, next_id("", self._now_ms(), 0)
            for table in layout.emptied(tx.conn):
                tx.conn.execute(f"DELETE FROM {table}")
            tx.conn.execute(
                "INSERT INTO _db_state (one, db_name, node_id, node_name, tables_version, chosen, audience_choice, "
                "app_version) VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(self._db_name, node_id, old.node_name, old.tables_version + 1),
                    *(old.chosen, old.audience_choice, old.app_version),
                ),
            )
        # The removed data is another person's: not even the free pages keep it.
        with self._held():
            try:
                self._write.execute("VACUUM")
                (busy, _, _) = self._write.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except (sqlite3.Error, MemoryError) as error:
                raise self._explained(error) from error
        if busy:
            raise ClientError(
                f"{self.path} is being read by another process: the cleared data stays in it until that ends"
            )

    def close(self) -> None:
        """Close every connection. The file can't be used afterwards. Raises BatchState where a batch stays open."""
        self.require_free()
        self._close_readers()
        with self._held():
            self._write.close()

    def _close_readers(self) -> None:
        with self._readers_lock:
            for conn in self._readers:
                conn.close()
            self._readers.clear()
            self._cleared += 1
