"""Change who sees which rows of a synced table: its audience expression.

The table is registered anew, with another number, as if it had been removed and added in one moment: its sums begin
anew, and devices read it again. What waits of it in the inbox stays.
"""

from __future__ import annotations

from typing import Any

import psycopg

from anabranch.store.capture import triggers
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.judging import find_database, lock_and_judge, refuse, warnings
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.registration import (
    Added,
    RegistrationLimits,
    claim,
    enter,
    leave,
    limit,
    new_number,
    not_for_a_row,
)
from anabranch.store.catalog.sums import scan_sums

Connection = psycopg.Connection[Any]

_WAIVED = frozenset({TableRefusal.AUDIENCE_LEFT_OUT})
"""It is no mistake here: the table is opened on purpose."""


def set_audience(
    conn: Connection,
    database: str,
    table: str,
    expression: str | None,
    *,
    now_ms: int | None = None,
    limits: RegistrationLimits | None = None,
) -> Added:
    """Give a synced table, as SQL calls it or by its identity, another audience expression; None opens it, so that
    every device sees every row. ``now_ms``: milliseconds since 1970. Writers of the table wait until its rows are read,
    once.

    Raises:
        RegistrationError: UNKNOWN_DATABASE, NOT_SYNCED, BUSY, ROW_SECURITY_OF_OTHERS where a table with row-level
            security would be opened, or as ``registration.add_table``.
    """
    what = f'the audience of table "{table}" can\'t be changed'
    try:
        with conn.transaction():
            limit(conn, limits)
            found = find_database(conn, what, database)
            before = found.find(table)
            if before is None:
                raise refuse(what, TableRefusal.NOT_SYNCED, f'"{table}" is no synced table of "{database}"')
            name, sql_name = before.name, before.sql_name
            policy = found.table_policies[name].given()
            judged = lock_and_judge(conn, what, found, sql_name, policy, expression, _WAIVED, before)
            triggers.forget_gathered(conn, found.schema_name, sql_name, found.id)
            sums = scan_sums(conn, found.schema_name, *judged)
            claim(conn, found.id)
            if load_database(conn, database).table_policies.get(name) != found.table_policies[name]:
                raise refuse(what, TableRefusal.BUSY, "its policy was changed meanwhile; try again")
            was = leave(conn, found, name)
            if was is None:
                raise refuse(what, TableRefusal.BUSY, "it was removed meanwhile")
            triggers.remove(conn, found.id, was)
            enter(conn, what, found, judged, policy, new_number(conn), sums, now_ms=now_ms)
            after = load_database(conn, database)
    except psycopg.DataError as error:
        if expression is None:
            raise
        raise not_for_a_row(what, error) from error
    except psycopg.errors.UndefinedTable as error:
        raise refuse(what, TableRefusal.UNKNOWN_TABLE, "the table no longer exists") from error
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise refuse(what, TableRefusal.BUSY, "another session holds a lock on it; try again") from error
    return Added(after.tables[name], sums.count, tuple(warnings(after, name)))
