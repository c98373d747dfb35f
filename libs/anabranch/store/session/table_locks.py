"""Locks on tables that services are working with, for migrations that change several of them."""

from __future__ import annotations

from collections.abc import Sequence

from alembic import op
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

PATIENCE_S = 300.0
HALF_OF_DEADLOCK = """
select set_config('lock_timeout', greatest(setting::int / 2, 1)::text, true)
from pg_settings where name = 'deadlock_timeout'
"""
"""Makes this transaction give up a lock before a session that waits for it looks for a deadlock and fails."""


def give_up_early(connection: Connection) -> None:
    """Set how long the transaction waits for a lock: half of ``deadlock_timeout``."""
    connection.execute(text(HALF_OF_DEADLOCK))


def take_tables(names: Sequence[str]) -> None:
    """Lock tables of schema anabranch against all other sessions until the migration's end, all of them or, for now,
    none: so a session that has one and wants another does not wait for long. Slow steps of the migration come before.

    Raises:
        sqlalchemy.exc.DBAPIError: LockNotAvailable where that could not be done in five minutes.
    """
    bind = op.get_bind()
    tables = ", ".join(f'anabranch."{name}"' for name in names)
    retrying = Retrying(
        retry=retry_if_exception(_is_taken),
        wait=wait_random(0.02, 0.2),
        stop=stop_after_delay(PATIENCE_S),
        reraise=True,
    )
    for attempt in retrying:
        with attempt, bind.begin_nested():
            # A rollback to the savepoint releases the locks taken so far.
            bind.execute(text(f"lock table {tables} in access exclusive mode"))


def _is_taken(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and isinstance(error.orig, LockNotAvailable | DeadlockDetected)
