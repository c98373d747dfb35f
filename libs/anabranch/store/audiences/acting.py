"""The role as which batches are applied and tables pulled, where row-level security decides: whether it may be one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg

from anabranch.store.catalog.refusals import Refused, TableRefusal

_ROLE: LiteralString = """
select r.rolsuper, r.rolbypassrls, pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER'),
       pg_catalog.has_schema_privilege(r.oid, 'anabranch', 'USAGE')
from pg_catalog.pg_roles r where r.rolname = %s
"""


def why_not_acted_as(conn: psycopg.Connection[Any], role: str) -> Iterator[Refused]:
    """Each reason why the services can't act as a role. Raises psycopg.Error."""
    row = conn.execute(_ROLE, (role,)).fetchone()
    if row is None:
        yield Refused(TableRefusal.RLS_ROLE, f'there is no role "{role}"')
        return
    superuser, bypasses, member, sees_ours = row
    if superuser or bypasses:
        yield Refused(TableRefusal.RLS_ROLE, f'no policy holds for role "{role}": it is a superuser, or bypasses them')
    if not member:
        yield Refused(TableRefusal.RLS_ROLE, f"the services' role is no member of \"{role}\", and can't act as it")
    if sees_ours and not superuser:
        yield Refused(TableRefusal.RLS_ROLE, f'role "{role}" may use schema anabranch, which is the services\' own')
