"""Waits, before a pull or a comparison, for tables that were altered: until the log has that they can't be read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database
from anabranch.store.ddl.readable import unreadable
from anabranch.store.session.engine import AsyncPool
from anabranch.v1 import errors_pb2
from anabranch_snapshot.databases import ServedDatabases

_FIRST_S, _MOST_S = 0.02, 0.2
"""Between two looks; each pause is twice the one before."""


async def until_readable(
    pool: AsyncPool, databases: ServedDatabases, database: Database, names: Collection[str], wait_ms: int
) -> Database:
    """The database as it is once its tables ``names``, identities, can be read; all of them where there are no names.
    The resolver has ``wait_ms`` to take what was altered.

    Raises:
        CallError: UNAVAILABLE, where it takes too long; UNKNOWN_DATABASE.
        psycopg.Error: it can't be looked at.
    """
    deadline, pause_s = time.monotonic() + wait_ms / 1000, _FIRST_S
    while True:
        numbers = [table.id for name, table in database.tables.items() if not names or name in names]
        async with pool.connection() as conn:
            waiting = await unreadable(conn, numbers)
        if not waiting:
            return database
        if time.monotonic() > deadline:
            raise altered(waiting)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MOST_S)
        database = await databases.read(database.name)


def altered(names: Sequence[str]) -> CallError:
    """The failure of a call that reads tables, with these names in SQL, which were altered a moment ago."""
    which = ", ".join(map(repr, names))
    return CallError(
        errors_pb2.REASON_UNAVAILABLE, f"{which} can't be read before the log has how it was altered: call again"
    )
