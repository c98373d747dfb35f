"""The writer: a role as which groups are committed, so that code of the application's owners runs with few rights.

What a table's owner attaches to it (triggers, defaults, checks, generated columns) runs in the session that writes, as
its role, and no SET ROLE keeps it from there: it can reset it. So the wall is the role that the session logged in as.
A writer may do what a group does and nothing more: it reads no keys of seals, no hashes of API keys, and owns nothing.

A role is a writer where it was granted, by name, to change ``anabranch.row_versions`` (``make``). It has the rights to
all tables and sequences of the schemas that are databases (``schema_rights``), so that triggers may write to tables
beside the synced ones; registration gives them anew (``welcome``, ``admit``). Who may do so is the owner of all of
these, or a superuser; whatever the session's role does not own is left as it is, and ``lacking`` tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg

from anabranch.store.catalog.schema_rights import grant_schema, grant_table, pass_on
from anabranch.store.cells.binary_cells import quote

Connection = psycopg.Connection[Any]

WRITERS: LiteralString = """
select r.rolname::text from pg_catalog.pg_class c
cross join lateral pg_catalog.aclexplode(c.relacl) g
join pg_catalog.pg_roles r on r.oid = g.grantee
where c.oid = 'anabranch.row_versions'::pg_catalog.regclass and g.privilege_type = 'UPDATE' and g.grantee <> c.relowner
order by 1
"""

_CHANGED = (
    "anabranch.audience_changes, anabranch.audience_sums, anabranch.batches, anabranch.captured, anabranch.claims, "
    "anabranch.conflicts, anabranch.groups, anabranch.inbox, anabranch.log, anabranch.nodes, anabranch.principals, "
    "anabranch.row_versions, anabranch.table_sums, anabranch.undertaken"
)
_READ = (
    "anabranch.code_revisions, anabranch.epochs, anabranch.former_tables, anabranch.schema_revision, "
    "anabranch.synced_tables"
)
_COLUMNS: LiteralString = """
select pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' order by a.attnum) from pg_catalog.pg_attribute a
where a.attrelid = 'anabranch.databases'::pg_catalog.regclass and a.attnum > 0 and not a.attisdropped
  and a.attname <> 'seal_key'
"""
# A database's rights are taken from PUBLIC where somebody hardens it. Images of altered tables take a temporary type.
_DATABASE: LiteralString = """
select pg_catalog.current_database()::text
where pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY WITH GRANT OPTION')
  and not (pg_catalog.has_database_privilege(%(role)s, pg_catalog.current_database(), 'CONNECT')
           and pg_catalog.has_database_privilege(%(role)s, pg_catalog.current_database(), 'TEMPORARY'))
"""
_SCHEMAS: LiteralString = """
select d.schema_name from anabranch.databases d join pg_catalog.pg_namespace n on n.nspname = d.schema_name order by 1
"""
_ACTED: LiteralString = """
select distinct r.rolname::text
from anabranch.databases d join pg_catalog.pg_roles r on r.rolname::text = d.audience_rules ->> 'rls'
where not pg_catalog.pg_has_role(%(role)s, r.oid, 'MEMBER') order by 1
"""
# Registrations insert into it before they look for writers: so each of them knows this one, or is known by then.
_ALONE: LiteralString = "lock table anabranch.synced_tables in share row exclusive mode"
_BESIDE: LiteralString = "lock table anabranch.synced_tables in row exclusive mode"

_KEYS: LiteralString = """
pg_catalog.has_any_column_privilege(r.oid, 'anabranch.api_keys', 'SELECT')
or pg_catalog.has_column_privilege(r.oid, 'anabranch.databases', 'seal_key', 'SELECT')
"""
EXCESS: LiteralString = f"""
select case when r.rolsuper then array['is a superuser'] else pg_catalog.array_remove(array[
    case when {_KEYS} then 'may read keys' end,
    case when r.rolcreaterole then 'may make roles' end,
    case when r.rolcreatedb then 'may make databases' end,
    case when r.rolreplication then 'may replicate' end,
    case when pg_catalog.has_schema_privilege(r.oid, 'anabranch', 'CREATE') then 'may change schema anabranch' end
], null) || array(
    select 'has the rights of role ' || g.rolname
    from pg_catalog.pg_auth_members m join pg_catalog.pg_roles g on g.oid = m.roleid
    where m.member = r.oid and not exists (
        select from anabranch.databases d where d.audience_rules ->> 'rls' = g.rolname::text
    )
    order by g.rolname
) end
from pg_catalog.pg_roles r where r.rolname = coalesce(%(role)s::text, session_user)
"""
_LACKS: LiteralString = """
select d.schema_name || '.' || t.name
from anabranch.synced_tables t join anabranch.databases d on d.id = t.database_id
join pg_catalog.pg_namespace n on n.nspname = d.schema_name
join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = t.name
where not pg_catalog.has_schema_privilege(n.oid, 'USAGE')
   or not (
       select pg_catalog.bool_and(pg_catalog.has_table_privilege(c.oid, p))
       from unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
   )
   or pg_catalog.row_security_active(c.oid)
order by 1
"""


class Judged(NamedTuple):
    """The role of a session that commits groups, and in words the rights that this does not take."""

    name: str
    excess: list[str]


def judge(conn: Connection) -> Judged:
    """The rights of the session's role that a writer does not need. Raises psycopg.Error."""
    [(name,)] = conn.execute("select session_user::text").fetchall()
    return Judged(name, excess(conn, name))


def excess(conn: Connection, role: str) -> list[str]:
    """The rights of a role that a writer does not need, in words. Raises psycopg.Error."""
    [(words,)] = conn.execute(EXCESS, {"role": role}).fetchall()
    return list(words)


def lacking(conn: Connection) -> list[str]:
    """The synced tables that the session's role may not write to, or whose rows policies hide from it. Raises
    psycopg.Error."""
    return [name for (name,) in conn.execute(_LACKS).fetchall()]


def writers(conn: Connection) -> list[str]:
    """The names of all writers. Raises psycopg.Error."""
    return [name for (name,) in conn.execute(WRITERS).fetchall()]


def make(conn: Connection, role: str, further: Sequence[str] = ()) -> list[str]:
    """Make an existing role a writer of all databases, with rights to ``further`` schemas. Gives in words what the role
    may do beyond what groups take.

    Raises:
        psycopg.errors.InvalidSchemaName: there is no such schema, or it is none of an application.
        psycopg.errors.UndefinedObject: there is no such role.
        psycopg.Error: the rights can't be given.
    """
    with conn.transaction():
        alone(conn)
        _grant_ours(conn, role)
        of_databases = [name for (name,) in conn.execute(_SCHEMAS).fetchall()]
        for schema_name in (*of_databases, *further):
            grant_schema(conn, schema_name, role)
        return excess(conn, role)


def alone(conn: Connection) -> None:
    """Keep registrations and others who make writers away, to the transaction's end. Raises psycopg.Error."""
    conn.execute(_ALONE)


def refresh(conn: Connection) -> None:
    """Give all writers the rights to our tables anew: a migration has made some. Raises psycopg.Error."""
    for role in writers(conn):
        _grant_ours(conn, role)


def welcome(conn: Connection, schema_name: str) -> None:
    """Give all writers the rights to a schema that becomes a database. Raises psycopg.Error."""
    conn.execute(_BESIDE)
    for role in writers(conn):
        grant_schema(conn, schema_name, role)


def admit(conn: Connection, schema_name: str, table: str) -> None:
    """Give all writers the rights to a table that is synced from now on. Raises psycopg.Error."""
    for role in writers(conn):
        grant_table(conn, schema_name, table, role)
        pass_on(conn, schema_name, role)


def let_act(conn: Connection) -> None:
    """Let all writers act as the roles under whose policies batches are applied. Raises psycopg.Error."""
    for role in writers(conn):
        _grant_acting(conn, role)


def _grant_acting(conn: Connection, role: str) -> None:
    for (acted,) in conn.execute(_ACTED, {"role": role}).fetchall():
        _run(conn, f"grant {quote(acted)} to {quote(role)}")


def _grant_ours(conn: Connection, role: str) -> None:
    to = quote(role)
    for (database,) in conn.execute(_DATABASE, {"role": role}).fetchall():
        _run(conn, f"grant connect, temporary on database {quote(database)} to {to}")
    [(columns,)] = conn.execute(_COLUMNS).fetchall()
    _run(conn, f"grant usage on schema anabranch to {to}")
    _run(conn, f"grant select, insert, update, delete on {_CHANGED} to {to}")
    _run(conn, f"grant select on {_READ} to {to}")
    _run(conn, f"grant select ({columns}), update (schema_version) on anabranch.databases to {to}")
    _run(conn, f"grant update (torn_ms) on anabranch.synced_tables to {to}")
    _grant_acting(conn, role)


def _run(conn: Connection, statement: str) -> None:
    conn.execute(statement.encode())
