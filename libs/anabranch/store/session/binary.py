"""Cursors that take parameters in Postgres's binary format (``anabranch.values.postgres_binary``) and give binary
results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol
from weakref import WeakSet

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper, PyFormat
from psycopg.pq import Format
from psycopg.types.numeric import Int4BinaryLoader, Int8BinaryLoader
from psycopg.types.string import TextBinaryLoader

from anabranch.store.session.direct import DirectConnection, Reply
from anabranch.values.postgres_binary import DATE, TIME, TIMESTAMP, TIMESTAMPTZ, Parameter

Connection = psycopg.Connection[Any]


class Cursor(Protocol):
    """The answer to a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows it gave or changed."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that were not given yet."""
        ...

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, if there is one."""
        ...

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...


class _BinaryDumper(Dumper):
    format = Format.BINARY

    def get_key(self, obj: Any, format: PyFormat) -> Any:
        return Parameter, obj.oid, obj.binary

    def upgrade(self, obj: Any, format: PyFormat) -> Dumper:
        dumper = _BinaryDumper(Parameter) if obj.binary else _TextDumper(Parameter)
        dumper.oid = obj.oid
        return dumper

    def dump(self, obj: Any) -> Buffer:
        data: bytes = obj.data
        return data


class _TextDumper(_BinaryDumper):
    format = Format.TEXT


def adapt(adapters: AdaptersMap) -> None:
    """Let the cursors or connections that use ``adapters`` take Parameters."""
    adapters.register_dumper(Parameter, _BinaryDumper)


def _read_raw(adapters: AdaptersMap) -> None:
    for oid in (TIMESTAMP, TIMESTAMPTZ, TIME):
        adapters.register_loader(oid, Int8BinaryLoader)
    adapters.register_loader(DATE, Int4BinaryLoader)
    adapters.register_loader(0, TextBinaryLoader)


_dedicated: WeakSet[Connection] = WeakSet()


def dedicate(conn: Connection) -> None:
    """Let all cursors of a session take Parameters and read as those of ``cursor`` do: they then cost nothing to make.
    Only for sessions that read no timestamps in any other way."""
    adapt(conn.adapters)
    _read_raw(conn.adapters)
    _dedicated.add(conn)


def cursor(conn: Connection) -> psycopg.RawCursor[tuple[Any, ...]]:
    """A cursor whose statements use ``$1`` and take Parameters. Read from it with ``run``: timestamps come as
    microseconds since 2000, dates as days since 2000, times as microseconds, and values of types that psycopg doesn't
    know as text."""
    cur: psycopg.RawCursor[tuple[Any, ...]] = psycopg.RawCursor(conn)
    if conn not in _dedicated:
        adapt(cur.adapters)
        _read_raw(cur.adapters)
    return cur


def run(conn: Connection, statement: bytes, parameters: Sequence[Parameter]) -> Cursor:
    """Execute ``statement`` with binary parameters and results.

    Raises:
        psycopg.Error: Postgres refused it; with its SQLSTATE.
    """
    if isinstance(conn, DirectConnection):
        return conn.ask(statement, parameters)
    cur = cursor(conn)
    cur.execute(statement, parameters, binary=True)
    return cur


def flush(conn: Connection) -> None:
    """Have Postgres begin with what a pipeline was given, while the caller does something else."""
    if isinstance(conn, DirectConnection):
        conn.flush()


def was_refused(cursor: Cursor) -> bool:
    """Whether it was this statement that made a send fail; False where the session does not know."""
    return isinstance(cursor, Reply) and cursor.refused


def commits_behind(conn: Connection) -> bool:
    """Whether a session can send COMMIT behind other statements (``commit_behind``)."""
    return isinstance(conn, DirectConnection)


def commit_behind(conn: Connection) -> None:
    """Put COMMIT behind the statements of a pipeline: it is carried out where none of them fails."""
    assert isinstance(conn, DirectConnection)
    conn.commit_behind()
