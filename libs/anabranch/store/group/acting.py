"""Act as the principal of a batch while its statements run, so that row-level security decides by the team's own
policies: as the role that the database's rules name, with the principal's claims as policies ask for them."""

from __future__ import annotations

from anabranch.store.session.binary import Connection, run
from anabranch.values.postgres_binary import text

ACT = b"""
select pg_catalog.set_config('role', $1::text, true), pg_catalog.set_config('request.jwt.claims', $2::text, true)
"""
"""$1 role, $2 claims."""
ONESELF = ("none", "")
"""The role and the claims of the session itself."""


def act_as(conn: Connection, role: str, claims: str) -> None:
    """Act as ``role``, with ``claims`` as JSON, until told otherwise or the transaction or its savepoint ends. Only
    sends where the session is in a pipeline.

    Raises:
        psycopg.Error: the session's role is no member of ``role``.
    """
    run(conn, ACT, [text(role), text(claims)])


def act_as_oneself(conn: Connection) -> None:
    """Act as the session's own role again."""
    act_as(conn, *ONESELF)
