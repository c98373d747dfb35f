"""Savepoints, deferred constraints and the search path: what stands around the statements of a wave.

Constraints that can wait are made to wait while a wave runs, so that its statements may come in any order, and are
judged before the wave counts as done: none is left to speak at COMMIT.

The application's own code (functions in checks, defaults, generated columns and triggers) often names things without
their schema. In the waves of a database they are looked for behind the system's catalog in its schema and in
``public``, until the transaction ends. Our own statements name every schema, and see no difference.

The session says that it is the resolver, so that what it writes is not captured as if somebody else had (see
``store.capture.triggers``): what it causes beside that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import ExecStatus

from anabranch.store.capture.triggers import MARK_RESOLVER
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.binary import run
from anabranch.values.postgres_binary import text

T = TypeVar("T")
Connection = psycopg.Connection[Any]

DatabaseError = psycopg.Error
"""What Postgres refused, or the loss of the session; ``store.session.errors.read_error`` says what it means."""

SAVEPOINT = b"savepoint anabranch_wave"
DEFER = b"set constraints all deferred"
SETTINGS = f"select pg_catalog.set_config('search_path', $1, true), ({MARK_RESOLVER})".encode()
JUDGE = b"set constraints all immediate"
RELEASE = b"release savepoint anabranch_wave"
UNDO = b"rollback to savepoint anabranch_wave; release savepoint anabranch_wave"


class Wave(Generic[T]):
    """A wave that is open. ``begun`` is what its first call gave."""

    __slots__ = ("_conn", "begun", "undone")

    def __init__(self, conn: Connection, begun: T) -> None:
        self._conn = conn
        self.begun = begun
        self.undone = False

    def undo(self) -> None:
        """Undo as a whole what ran inside, though Postgres refused nothing of it."""
        self.undone = True
        _undo(self._conn, None)


@contextmanager
def wave(conn: Connection, schema_name: str, first: Callable[[], T], *, judged: bool = False) -> Iterator[Wave[T]]:
    """What runs inside is kept as a whole, with its constraints judged, or undone as a whole: where it raises, or says
    so (``Wave.undo``). ``schema_name``: the database's schema. ``first`` is called within, in the pipeline that opens
    the wave. ``judged``: the body judges (``judge``), and nothing but records comes after it, so that the savepoint may
    stay until the transaction ends.

    Raises:
        psycopg.Error: what the body raised, or what a constraint says; undone, unless the session is lost.
    """
    opened: Wave[T] | None = None
    try:
        with conn.pipeline():
            run(conn, SAVEPOINT, ())
            run(conn, DEFER, ())
            run(conn, SETTINGS, [text(f"pg_catalog, {quote(schema_name)}, public, pg_temp")])
            begun = first()
        opened = Wave(conn, begun)
        yield opened
        if not judged and not opened.undone:
            with conn.pipeline():
                run(conn, JUDGE, ())
                run(conn, RELEASE, ())
    except BaseException as error:
        if not conn.closed and (opened is None or not opened.undone):
            _undo(conn, error)
        raise


LOCKED_TABLES = b"""
select distinct c.relname::text from pg_catalog.pg_locks l
join pg_catalog.pg_class c on c.oid = l.relation join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where l.locktype = 'relation' and l.pid is distinct from pg_backend_pid() and n.nspname = $1::text
  and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
  and l.mode = any(array['ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'])
"""
"""$1 schema. Also those for which somebody waits: whoever comes later waits behind."""


def locked_tables(conn: Connection, schema_name: str) -> set[str]:
    """The tables of a schema that others have locked against writers as a whole, or are about to."""
    return {row[0] for row in run(conn, LOCKED_TABLES, [text(schema_name)])}


def judge(conn: Connection) -> None:
    """Have the constraints that waited speak, and from now on at every statement."""
    run(conn, JUDGE, ())


_undone: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()
_FORGET_EVERY = 200


def _undo(conn: Connection, error: BaseException | None) -> None:
    # Not through the driver's cursor: at every ROLLBACK, also one to a savepoint, that forgets its prepared statements,
    # and all would have to be planned anew. Now and then it shall: a statement that fails the first time that it runs
    # stays with Postgres, and the driver does not know it.
    _undone[conn] = _undone.get(conn, 0) + 1
    if _undone[conn] % _FORGET_EVERY == 0:
        conn.execute(UNDO, prepare=False)
        return
    result = conn.pgconn.exec_(UNDO)
    if result.status != ExecStatus.COMMAND_OK:
        raise psycopg.OperationalError(f"what failed can't be undone: {result.get_error_message()}") from error
