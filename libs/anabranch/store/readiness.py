"""What a service asks Postgres before it calls itself ready."""

from __future__ import annotations

from typing import Any

import psycopg

from anabranch.store import migrate

REVISION = f"select version_num from {migrate.SCHEMA}.{migrate.VERSION_TABLE}"
"""The revision of the schema."""


async def not_ready(conn: psycopg.AsyncConnection[tuple[Any, ...]], head: str) -> str | None:
    """Why the schema does not fit this release, whose revision is ``head``; None where it does.

    Raises:
        psycopg.Error: the database does not answer.
    """
    try:
        row = await (await conn.execute(REVISION)).fetchone()
    except psycopg.errors.UndefinedTable:
        return "the schema anabranch does not exist; migrations have not run"
    revision = row[0] if row else None
    return None if revision == head else f"the schema is at revision {revision}, this release needs {head}"
