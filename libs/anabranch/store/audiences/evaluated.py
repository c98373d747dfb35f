"""Evaluate the membership queries for all principals of a database anew, where no group's changes tell whom it
concerns: the rules have changed, or a table that a query reads is synced again."""

from __future__ import annotations

from typing import Any

import psycopg

from anabranch.errors import ServerError
from anabranch.store.audiences.principals import evaluate
from anabranch.store.catalog.databases import Database
from anabranch.store.session.steps import run

Connection = psycopg.Connection[Any]

QUERY_FAILS = (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError)
"""The errors of a query that no longer fits its tables or their values."""
_PAGE = 1_000
_PRINCIPALS = """
select principal from anabranch.principals where database_id = %s and principal > %s order by principal limit %s
"""
_UPDATE = """
update anabranch.principals set memberships = %(read)s::text[], write_memberships = %(write)s::text[]
where database_id = %(database)s and principal = %(principal)s
"""
# Those of other rules would be undone on top of what the present ones give: a reader at any position has the present
# audiences.
_FORGET_CHANGES = "delete from anabranch.audience_changes where database_id = %s"
_MISS_NOTHING = "delete from anabranch.audiences_missed where database_id = %s"
_FORGET_PRINCIPALS = "delete from anabranch.principals where database_id = %s"


class EvaluationError(ServerError, ValueError):
    """A membership query fails on the tables as they are."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(f"a membership query fails: {error.diag.message_primary or error}")


def read_failure(error: psycopg.Error) -> dict[str, str | None]:
    """The words of Postgres about a query that fails, as a log line's fields: ``sqlstate`` and ``detail``. Raises the
    error where Postgres did not say it: then a program has failed, and no query."""
    if error.sqlstate is None:
        raise error
    return {"sqlstate": error.sqlstate, "detail": error.diag.message_primary}


def evaluate_anew(conn: Connection, database: Database) -> None:
    """Keep what the queries of ``database`` give now, for every principal that is known, at every position. The caller
    holds the database's claim, and moves its schema version, by which readers learn that their audiences may be others.

    Raises:
        EvaluationError: a query fails.
    """
    conn.execute(_FORGET_CHANGES, (database.id,))
    conn.execute(_MISS_NOTHING, (database.id,))
    rules = database.audience_rules
    if not rules.memberships:
        conn.execute(_FORGET_PRINCIPALS, (database.id,))
        return
    last = ""
    while names := [name for (name,) in conn.execute(_PRINCIPALS, (database.id, last, _PAGE))]:
        last = names[-1]
        try:
            given = run(conn, evaluate(database, names))
        except QUERY_FAILS as error:
            raise EvaluationError(error) from error
        with conn.cursor() as cursor:
            cursor.executemany(
                _UPDATE,
                [
                    {
                        "database": database.id,
                        "principal": name,
                        "read": sorted(one.read),
                        "write": None if rules.write is None else sorted(one.write),
                    }
                    for name, one in given.items()
                ],
            )
