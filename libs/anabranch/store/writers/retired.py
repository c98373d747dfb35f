"""Writers that nobody commits groups as any more: the one that older releases made for all databases, and those of
databases that are gone. They are dropped, so that no session of theirs can come back.

One that is in use is left for the next time. One that owns something is left for good: what it owns is code of the
application's owners that ran as it, or rows, which nobody may drop or hand on unasked.
"""

from __future__ import annotations

from typing import Any, LiteralString, NamedTuple

import psycopg

from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import connect
from anabranch.store.writers import writer
from anabranch.store.writers.names import OWN_DATABASE, SHARED_NAME
from anabranch.store.writers.schema_rights import LOCK_LIMIT

_RETIRED: LiteralString = f"""
select r.rolname::text, exists (
    select from pg_catalog.pg_shdepend o
    where o.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass and o.refobjid = r.oid and o.deptype = 'o'
)
from pg_catalog.pg_roles r, pg_catalog.pg_roles s
where s.rolname = session_user and s.rolsuper and not pg_catalog.pg_is_in_recovery()
  and (r.rolname::text = {SHARED_NAME}
       or {OWN_DATABASE} is not null and not exists (select from anabranch.databases d where d.id = {OWN_DATABASE}))
  and not exists (select from pg_catalog.pg_stat_activity a where a.usesysid = r.oid)
order by 1
"""


class Retired(NamedTuple):
    """The names of writers that are dropped, and of those that are left as they own something."""

    dropped: list[str]
    owners: list[str]


def drop_retired(url: str) -> Retired:
    """Drop writers that are of no use, where ``url`` is a superuser's.

    Raises:
        psycopg.Error: the server can't be reached, or refuses something.
    """
    retired = Retired([], [])
    with connect(url, application_name="anabranch-writer", autocommit=True) as conn:
        found = conn.execute(_RETIRED).fetchall()
        retired.owners.extend(role for role, owns in found if owns)
        if useless := [role for role, owns in found if not owns]:
            try:
                with conn.transaction():
                    # A registration of a table of many rows keeps no process from starting.
                    conn.execute(LOCK_LIMIT)
                    # Rights are taken from them to tables to which others may be given some.
                    writer.alone(conn, None)
                    retired.dropped.extend(role for role in useless if _drop(conn, role))
            except psycopg.errors.LockNotAvailable:
                retired.dropped.clear()
    return retired


def _drop(conn: psycopg.Connection[Any], role: str) -> bool:
    """False where it has rights in another Postgres database, or another process, of an older release, drops it at this
    moment."""
    try:
        with conn.transaction():
            if (role, False) not in conn.execute(_RETIRED).fetchall():
                return False
            # It owns nothing: its rights go.
            conn.execute(f"drop owned by {quote(role)}".encode())
            conn.execute(f"drop role {quote(role)}".encode())
    except (psycopg.errors.DependentObjectsStillExist, psycopg.errors.UndefinedObject):
        return False
    return True
