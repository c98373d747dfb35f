"""The schema that ``anabranch smoke`` works in: one table of its own, apart from the application's tables."""

from __future__ import annotations

from anabranch.store.session.engine import Session

SCHEMA = "anabranch_smoke"
TABLE = "probe"

CREATE_SCHEMA = f"create schema if not exists {SCHEMA}"
"""The schema; it stays."""
CREATE_TABLE = f"create table if not exists {SCHEMA}.{TABLE} (id text primary key, body text not null)"
"""Rows that a run writes and removes."""


def prepare(session: Session) -> None:
    """Make schema and table where they are not there.

    Raises:
        psycopg.Error: the role may not, or the server is gone.
    """
    session.execute(CREATE_SCHEMA)
    session.execute(CREATE_TABLE)
