"""Sessions for ingest's statements (``inbox``, ``nodes``, ``verdicts``, ``heads``).

They commit by themselves: one statement is one transaction, so that no lock is held while ingest computes, and an
append costs one round trip. Statements take whole columns (see ``anabranch.store.session.binary``).

A statement's plan is kept for the life of its session, also one that was made while the tables were empty. So every
look-up in a table is a probe by key, written as a subquery of its own, and the planner has no other choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import psycopg

from anabranch.store.session import binary
from anabranch.store.session.engine import CONNECT_S, SessionOptions, aconnect
from anabranch.values.postgres_binary import Parameter

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """A connection, and the one cursor that runs its statements: a cursor remembers how to write parameters of each
    type, which costs more than the parameters do."""

    conn: psycopg.AsyncConnection[Row]
    cursor: psycopg.AsyncRawCursor[Row]

    @property
    def broken(self) -> bool:
        """Whether the connection is closed or lost."""
        return self.conn.closed

    async def close(self) -> None:
        """End it."""
        await self.conn.close()


_PLANNING = MappingProxyType(
    {
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "plan_cache_mode": "force_generic_plan",
        "tcp_user_timeout": "5000",
    }
)
_IDLE_IN_TRANSACTION_MS = 2_000
"""Only the locking check of a node's token holds locks from one statement to the next."""
_LOCK_TIMEOUT_MS = 3_000


async def open_session(url: str, *, statement_timeout_ms: int) -> Session:
    """A session for ingest's statements.

    Raises:
        psycopg.OperationalError: the server can't be reached, or refuses the session.
    """
    options = SessionOptions(
        statement_timeout_ms=statement_timeout_ms,
        lock_timeout_ms=_LOCK_TIMEOUT_MS,
        idle_in_transaction_session_timeout_ms=_IDLE_IN_TRANSACTION_MS,
        client_connection_check_interval_ms=1_000,
        connect_timeout_s=CONNECT_S,
        settings=_PLANNING,
    )
    conn = await aconnect(url, application_name="anabranch-ingest", autocommit=True, options=options)
    cursor: psycopg.AsyncRawCursor[Row] = psycopg.AsyncRawCursor(conn)
    binary.adapt(cursor.adapters)
    return Session(conn, cursor)


async def run(session: Session, statement: bytes, parameters: Sequence[Parameter]) -> list[Row]:
    """Execute a prepared ``statement`` (``$1``) with binary parameters, and return its rows, if it has any.

    Raises:
        psycopg.Error: Postgres refused it; with its SQLSTATE.
    """
    cursor = session.cursor
    await cursor.execute(statement, parameters, prepare=True, binary=True)
    return await cursor.fetchall() if cursor.description else []


def names_missing_database(error: BaseException) -> bool:
    """Whether a statement failed because its database no longer exists: its rows refer to nothing else."""
    return isinstance(error, psycopg.errors.ForeignKeyViolation)
