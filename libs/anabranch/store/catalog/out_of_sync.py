"""Tables that stay registered but are not synced: their capture is turned off, or they are torn. To sync such a table
again it is removed and added anew (``gather.restart_captures``), which computes the sum of its rows again.

Every function runs in one transaction (a savepoint of the caller's, if there is one), which holds its locks to its end.
"""

from __future__ import annotations

import psycopg

from anabranch.store.capture import triggers
from anabranch.store.catalog.judging import find_database, refuse
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.registration import Connection, RegistrationLimits, at_ms, limit, tell

_CAPTURE_OFF = """
update anabranch.synced_tables set capture_off_ms = %s
where database_id = %s and name = %s returning id
"""
_MARK_TORN = """
update anabranch.synced_tables set torn_ms = %s
where database_id = %s and name = %s and torn_ms is null returning id
"""


def capture_off(
    conn: Connection,
    database: str,
    table: str,
    *,
    now_ms: int | None = None,
    limits: RegistrationLimits | None = None,
) -> None:
    """Disable the triggers of a table, as SQL calls it or by its identity, so that direct writes are not captured: for
    a restore or a load of many rows.

    Raises:
        RegistrationError: UNKNOWN_DATABASE, NOT_SYNCED or BUSY.
    """
    what = f'capture of table "{table}" can\'t be turned off'
    try:
        with conn.transaction():
            limit(conn, limits)
            found = find_database(conn, what, database)
            synced = found.find(table)
            if synced is None:
                raise refuse(what, TableRefusal.NOT_SYNCED, f'"{table}" is no synced table of "{database}"')
            triggers.lock(conn, found.schema_name, synced.sql_name)
            triggers.switch(conn, found.schema_name, synced.sql_name, on=False)
            conn.execute(_CAPTURE_OFF, (at_ms(now_ms), found.id, synced.name))
            tell(conn, found.id)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise refuse(what, TableRefusal.BUSY, "another session holds a lock on it; try again") from error


def mark_torn(conn: Connection, database_id: int, table: str, *, now_ms: int | None = None) -> None:
    """Stop the sync of the table of an identity until it is removed and added anew, since the log will lack direct
    writes to it. The listeners are notified; a table that is torn already stays so."""
    with conn.transaction():
        if conn.execute(_MARK_TORN, (at_ms(now_ms), database_id, table)).fetchone() is not None:
            tell(conn, database_id)
