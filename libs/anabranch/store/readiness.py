"""What a service asks Postgres before it calls itself ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from anabranch.store import migrate

REVISION = f"select version_num from {migrate.SCHEMA}.{migrate.VERSION_TABLE}"
"""The revision of the schema."""

IS_SERVED = f"select exists (select from {migrate.SCHEMA}.{migrate.CODE_TABLE} where revision = %s)"
"""Whether a release works with the schema, which a newer one has made."""


async def not_ready(conn: psycopg.AsyncConnection[tuple[Any, ...]], known: Sequence[str]) -> str | None:
    """Why the schema does not fit this release, which knows the revisions ``known``, its own first; None where it does:
    the schema is at its revision, or at a newer one that says it serves this release as well.

    Raises:
        psycopg.Error: the database does not answer.
    """
    own = known[0]
    try:
        row = await (await conn.execute(REVISION)).fetchone()
        revision = row[0] if row else None
        if revision == own:
            return None
        if revision is None or revision in known:
            return f"the schema is at revision {revision}, this release needs {own}: migrations have not run"
        row = await (await conn.execute(IS_SERVED.encode(), (own,))).fetchone()
    except psycopg.errors.UndefinedTable:
        return "the schema anabranch does not exist; migrations have not run"
    if row is not None and row[0]:
        return None
    return f"the schema is at revision {revision}, made by a newer release, and no longer works with this one ({own})"
