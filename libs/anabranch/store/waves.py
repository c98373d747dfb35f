"""Savepoints, deferred constraints and the search path: what stands around the statements of a wave.

Constraints that can wait are made to wait while a wave runs, so that its statements may come in any order, and are
judged before the wave counts as done: none is left to speak at COMMIT.

The application's own code (functions in checks, defaults, generated columns and triggers) often names things without
their schema. In the waves of a database they are looked for behind the system's catalog in its schema and in
``public``, until the transaction ends. Our own statements name every schema, and see no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from anabranch.store.binary_cells import quote

Connection = psycopg.Connection[Any]

DatabaseError = psycopg.Error
"""What Postgres refused, or the loss of the session; ``store.errors.read_error`` says what it means."""

OPEN = """
savepoint anabranch_wave; set constraints all deferred; set local search_path = pg_catalog, {schema}, public, pg_temp
"""
KEEP = "set constraints all immediate; release savepoint anabranch_wave"
UNDO = "rollback to savepoint anabranch_wave; release savepoint anabranch_wave"


@contextmanager
def wave(conn: Connection, schema_name: str) -> Iterator[None]:
    """What runs inside is kept as a whole, with its constraints judged, or undone as a whole. ``schema_name``: the
    database's schema.

    Raises:
        psycopg.Error: what the body raised, or what a constraint says; undone, unless the session is lost.
    """
    # Several statements in one text can't be prepared.
    conn.execute(OPEN.format(schema=quote(schema_name)).encode(), prepare=False)
    try:
        yield
        conn.execute(KEEP, prepare=False)
    except BaseException:
        if not conn.closed:
            conn.execute(UNDO, prepare=False)
        raise
