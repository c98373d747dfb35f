"""Savepoints, deferred constraints and the search path around the statements of a wave.

Deferrable constraints are deferred while a wave runs, so that its statements may come in any order. They are checked
before the wave counts as done: none is left to fail at COMMIT.

The application's own code (functions in checks, defaults, generated columns and triggers) often names things without
their schema. In the waves of a database they are looked for behind the system's catalog in its schema and in
``public``, until the transaction ends. Our own statements name every schema, and see no difference.

The session marks itself as the resolver, so that its own writes are not captured as foreign ones (see
``store.capture.triggers``). The changes that its writes cause (cascades, triggers) are captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import ExecStatus

from anabranch.store.audiences.queries import search_path
from anabranch.store.capture.triggers import MARK_RESOLVER
from anabranch.store.session.binary import run
from anabranch.store.session.direct import DirectConnection
from anabranch.values.postgres_binary import text

T = TypeVar("T")
Connection = psycopg.Connection[Any]

DatabaseError = psycopg.Error
"""A refusal by Postgres, or the loss of the session; ``store.session.errors.read_error`` returns its meaning."""

SAVEPOINT = b"savepoint anabranch_wave"
DEFER = b"set constraints all deferred"
SETTINGS = f"select pg_catalog.set_config('search_path', $1, true), ({MARK_RESOLVER})".encode()
JUDGE = b"set constraints all immediate"
RELEASE = b"release savepoint anabranch_wave"
BACK = b"rollback to savepoint anabranch_wave"
UNDO = BACK + b"; " + RELEASE


class Wave(Generic[T]):
    """A wave that is open. ``begun`` is the result of its first call."""

    __slots__ = ("_conn", "begun", "undone")

    def __init__(self, conn: Connection, begun: T) -> None:
        self._conn = conn
        self.begun = begun
        self.undone = False

    def undo(self) -> None:
        """Undo all statements of the wave, though Postgres refused none of them."""
        self.undone = True
        _undo(self._conn, None)


@contextmanager
def wave(conn: Connection, schema_name: str, first: Callable[[], T], *, judged: bool = False) -> Iterator[Wave[T]]:
    """Keep the statements of the body as a whole, with its constraints checked, or undo them as a whole: where the body
    raises, or calls ``Wave.undo``. ``schema_name``: the database's schema. ``first`` is called within, in the pipeline
    that opens the wave. ``judged``: the body itself checks the constraints (``judge``), and nothing but records comes
    after it, so that the savepoint may stay until the transaction ends.

    Raises:
        psycopg.Error: the body raised it, or a constraint failed; all is undone, unless the session is lost.
    """
    opened: Wave[T] | None = None
    try:
        with conn.pipeline():
            run(conn, SAVEPOINT, ())
            run(conn, DEFER, ())
            run(conn, SETTINGS, [text(search_path(schema_name))])
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
"""$1 schema. Also the tables for which another session waits for such a lock: later sessions wait behind it."""


def locked_tables(conn: Connection, schema_name: str) -> set[str]:
    """The tables of a schema that others have locked against writers as a whole, or are about to."""
    return {row[0] for row in run(conn, LOCKED_TABLES, [text(schema_name)])}


def judge(conn: Connection) -> None:
    """Check the deferred constraints now, and from now on at every statement."""
    run(conn, JUDGE, ())


_undone: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()
_FORGET_EVERY = 200


def _undo(conn: Connection, error: BaseException | None) -> None:
    if isinstance(conn, DirectConnection):
        with conn.pipeline():
            run(conn, BACK, ())
            run(conn, RELEASE, ())
        return
    # Not through the driver's cursor: at every ROLLBACK, also one to a savepoint, that forgets its prepared statements,
    # and all would have to be planned anew. Every _FORGET_EVERY times it is done so: a statement that fails the first
    # time that it runs stays prepared in Postgres, and the driver does not know it.
    _undone[conn] = _undone.get(conn, 0) + 1
    if _undone[conn] % _FORGET_EVERY == 0:
        conn.execute(UNDO, prepare=False)
        return
    result = conn.pgconn.exec_(UNDO)
    if result.status != ExecStatus.COMMAND_OK:
        raise psycopg.OperationalError(
            f"the failed statements can't be rolled back: {result.get_error_message()}"
        ) from error
