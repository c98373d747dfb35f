"""Finds rights that a role as which groups are committed has too many of, and those that it lacks."""

from __future__ import annotations

from typing import Any, LiteralString, NamedTuple

import psycopg

from anabranch.store.writers.names import OWN_DATABASE

Connection = psycopg.Connection[Any]

_KEYS: LiteralString = """
pg_catalog.has_any_column_privilege(r.oid, 'anabranch.api_keys', 'SELECT')
or pg_catalog.has_column_privilege(r.oid, 'anabranch.databases', 'seal_key', 'SELECT')
"""
_TOLD: LiteralString = "3"
"""The most databases that are named."""
# Rights that PUBLIC has are the role's, too.
_REACHED: LiteralString = f"""
(
    select pg_catalog.count(*), pg_catalog.string_agg(f.name, ', ' order by f.name) filter (where f.place <= {_TOLD}),
           pg_catalog.count(*) filter (where not f.own)
    from (
        select d.name, coalesce(d.id = {OWN_DATABASE}, false) as own,
               pg_catalog.row_number() over (order by d.name) as place
        from anabranch.databases d join pg_catalog.pg_namespace n on n.nspname = d.schema_name
        where pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE') and exists (
            select from anabranch.synced_tables t join pg_catalog.pg_class c
              on c.relnamespace = n.oid and c.relname = coalesce(t.sql_name, t.name)
            where t.database_id = d.id
              and pg_catalog.has_table_privilege(r.oid, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
        )
    ) f
)
"""
_EXCESS: LiteralString = f"""
select r.rolname::text, case when r.rolsuper then array['is a superuser'] else pg_catalog.array_remove(array[
    case when {_KEYS} then 'may read keys' end,
    case when pg_catalog.has_table_privilege(r.oid, 'anabranch.inbox', 'INSERT') then 'may send batches as anybody' end,
    case when r.rolcreaterole then 'may make roles' end,
    case when r.rolcreatedb then 'may make databases' end,
    case when r.rolreplication then 'may replicate' end,
    case when pg_catalog.has_schema_privilege(r.oid, 'anabranch', 'CREATE') then 'may change schema anabranch' end
], null) || array(
    select 'has the rights of role ' || g.rolname
    from pg_catalog.pg_auth_members m join pg_catalog.pg_roles g on g.oid = m.roleid
    where m.member = r.oid and not exists (
        select from anabranch.databases d
        where d.audience_rules ->> 'rls' = g.rolname::text and d.id = coalesce({OWN_DATABASE}, d.id)
    )
    order by g.rolname
) || array(
    select 'reaches the tables of ' || case f.found when 1 then 'another database' else f.found || ' databases' end
           || ': ' || f.names || case when f.found > {_TOLD} then ', …' else '' end
    from {_REACHED} f (found, names, foreign_ones)
    where f.found > 1 or f.foreign_ones > 0 and {OWN_DATABASE} is not null
) end
from pg_catalog.pg_roles r where r.rolname = coalesce(%(role)s::text, session_user)
"""
_LACKS: LiteralString = f"""
select d.schema_name || '.' || c.relname
from pg_catalog.pg_roles r
join anabranch.databases d on d.id = coalesce({OWN_DATABASE}, d.id)
join anabranch.synced_tables t on t.database_id = d.id
join pg_catalog.pg_namespace n on n.nspname = d.schema_name
join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = coalesce(t.sql_name, t.name)
where r.rolname = coalesce(%(role)s::text, session_user) and (
   not pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE')
   or not (
       select pg_catalog.bool_and(pg_catalog.has_table_privilege(r.oid, c.oid, p))
       from unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
   )
   or c.relrowsecurity and not (
       r.rolsuper or r.rolbypassrls
       or pg_catalog.pg_has_role(r.oid, c.relowner, 'USAGE') and not c.relforcerowsecurity
   )
)
order by 1
"""


class JudgedRole(NamedTuple):
    """A role as which groups are committed, and in words the rights that this does not take."""

    name: str
    excess: list[str]


def judge(conn: Connection, role: str | None = None) -> JudgedRole:
    """The rights of a role that a writer does not need; None is the session's role. Raises psycopg.Error."""
    [judged] = conn.execute(_EXCESS, {"role": role}).fetchall()
    return JudgedRole._make(judged)


def lacking(conn: Connection, role: str | None = None) -> list[str]:
    """The synced tables, of the databases that a role is a writer of, that it may not write to, or whose rows policies
    hide from it; None is the session's role. Raises psycopg.Error."""
    return [name for (name,) in conn.execute(_LACKS, {"role": role}).fetchall()]
