"""The questions that a service asks Postgres before it reports itself ready."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from anabranch.errors import ServerError
from anabranch.store.revisions import CODE_TABLE, SCHEMA, VERSION_TABLE
from anabranch.store.session.engine import CONNECT_S, FIXED_SETTINGS, AsyncSession, SessionOptions, aconnect, connect

SEARCH_PATH = "select current_setting('search_path')"
"""One of the settings that a session is opened with."""

REVISION = f"select version_num from {SCHEMA}.{VERSION_TABLE}"
"""The revision of the schema."""

INSTANCE = "select pg_catalog.pg_postmaster_start_time()::text"
"""Which start of which server this is: no two have the same microsecond."""

IS_SERVED = f"select exists (select from {SCHEMA}.{CODE_TABLE} where revision = %s)"
"""Whether a release works with the schema, which a newer release has made."""


_ANSWER_MS = 2_000


class PoolerError(ServerError):
    """A pooler between us and Postgres drops the settings that sessions are opened with."""


async def first_look(url: str, application_name: str, known: Sequence[str]) -> str | None:
    """``not_ready``, in a session opened for it, so that the error of opening it is raised.

    Raises:
        PoolerError: the session does not have the settings that it was opened with.
        psycopg.Error: the database does not answer.
    """
    options = SessionOptions(connect_timeout_s=CONNECT_S)
    async with await aconnect(url, application_name=application_name, autocommit=True, options=options) as conn:
        row = await (await conn.execute(SEARCH_PATH)).fetchone()
        if row is None or row[0] != FIXED_SETTINGS["search_path"]:
            raise PoolerError(
                "sessions don't have the settings that they are opened with: a pooler between here and Postgres drops "
                "them, and would hand out locks and notifications of others' sessions; give the URL of Postgres itself"
            )
        return await not_ready(conn, known)


def answers(url: str, application_name: str) -> bool:
    """Whether a server answers, and soon, and takes another session."""
    options = SessionOptions(statement_timeout_ms=_ANSWER_MS, silence_ms=_ANSWER_MS, connect_timeout_s=CONNECT_S)
    try:
        with connect(url, application_name=application_name, autocommit=True, options=options) as conn:
            conn.execute("select 1")
    except psycopg.OperationalError:
        return False
    return True


async def instance(conn: AsyncSession) -> str:
    """Which start of which server a session is with.

    Raises:
        psycopg.Error: it does not answer.
    """
    row = await (await conn.execute(INSTANCE)).fetchone()
    return str(row[0]) if row else ""


async def not_ready(conn: AsyncSession, known: Sequence[str]) -> str | None:
    """Why the schema does not fit this release, which knows the revisions ``known``, its own first; None where it does:
    the schema is at its revision, or at a newer one that declares that it serves this release, too.

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
