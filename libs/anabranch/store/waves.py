"""Savepoints and deferred constraints: what stands around the statements of a wave.

Constraints that can wait are made to wait while a wave runs, so that its statements may come in any order, and are
judged before the wave counts as done: none is left to speak at COMMIT.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

DatabaseError = psycopg.Error
"""What Postgres refused, or the loss of the session; ``store.errors.read_error`` says what it means."""

OPEN = "savepoint anabranch_wave; set constraints all deferred"
KEEP = "set constraints all immediate; release savepoint anabranch_wave"
UNDO = "rollback to savepoint anabranch_wave; release savepoint anabranch_wave"


@contextmanager
def wave(conn: Connection) -> Iterator[None]:
    """What runs inside is kept as a whole, with its constraints judged, or undone as a whole.

    Raises:
        psycopg.Error: what the body raised, or what a constraint says; undone, unless the session is lost.
    """
    # Several statements in one text can't be prepared.
    conn.execute(OPEN, prepare=False)
    try:
        yield
        conn.execute(KEEP, prepare=False)
    except BaseException:
        if not conn.closed:
            conn.execute(UNDO, prepare=False)
        raise
