"""The tear of a table whose captured changes can't be read: the log lacks them, so it is not synced until its rows are
pulled anew.

Where a change of the table by DDL is known that may be why, as of a type which no value of before can be brought to,
the table itself is as it has to be: it is pulled anew by itself. Else nobody knows what it has become, and it is left
to an operator.
"""

from __future__ import annotations

import structlog

from anabranch.store.capture.captured import UndecodableError
from anabranch.store.catalog.out_of_sync import mark_torn
from anabranch.store.ddl.markers import mark_to_pull
from anabranch.store.session.engine import Session
from anabranch_conflict_resolver.group.tables import SyncedDatabase

_log = structlog.get_logger()


def tear(conn: Session, synced: SyncedDatabase, error: UndecodableError, now_ms: int) -> None:
    """Tear the table of an error. It is recorded before anything is dropped, so that no reader goes on as if the log
    had it.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    database = synced.database
    table = database.tables.get(error.table)
    anew = table is not None and synced.older is not None and synced.older.has_older(table.id)
    with conn.transaction():
        mark_torn(conn, database.id, error.table, now_ms=now_ms)
        if anew:
            mark_to_pull(conn, database.id, error.table, "captured changes of it, from before, can't be read")
    if anew:
        _log.error("captured changes of an altered table are dropped: it is pulled anew", detail=error)
    else:
        _log.error("captured changes are dropped: the table has to be registered anew", detail=error)
