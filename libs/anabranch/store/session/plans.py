"""Prepared statements over the application's tables, which an altered table makes useless: Postgres refuses one whose
result has another type than when it was prepared, and the transaction has failed then."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import psycopg

from anabranch.store.session.direct import DirectConnection

Connection = psycopg.Connection[Any]

_planned: WeakKeyDictionary[Connection, dict[int, int]] = WeakKeyDictionary()
"""By session and database, the schema version that its statements were prepared for."""


def plan_for(conn: Connection, database_id: int, version: int) -> None:
    """Forget the prepared statements of a session that has used the database at another schema version. Must be called
    inside a transaction, outside of a pipeline. Raises psycopg.Error."""
    planned = _planned.setdefault(conn, {})
    if planned.setdefault(database_id, version) != version:
        planned[database_id] = version
        forget_plans(conn)


def forget_plans(conn: Connection) -> None:
    """Forget the prepared statements of a session. Called as ``plan_for``; raises as that."""
    if isinstance(conn, DirectConnection):
        conn.forget()
        return
    # The driver forgets all of them at a rollback, and has the server do so.
    with conn.transaction(force_rollback=True):
        pass
