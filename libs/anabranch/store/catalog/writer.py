"""The writer: a role as which groups are committed, so that code of the application's owners runs with few rights.

What a table's owner attaches to it (triggers, defaults, checks, generated columns) runs in the session that writes, as
its role, and no SET ROLE keeps it from there: it can reset it. So the wall is the role that the session logged in as.
A writer may do what a group does and nothing more: it reads no keys of seals, no hashes of API keys, and owns nothing.

A role is a writer where it was granted, by name, to change ``anabranch.row_versions`` (``make``). It has the rights to
all tables and sequences of the schemas that are databases (``schema_rights``), so that triggers may write to tables
beside the synced ones, and to the sequences elsewhere that synced tables take numbers from; registration gives them
anew (``welcome``, ``admit``). Who may do so is the owner of all of these, or a superuser; whatever the session's role
does not own is left as it is, and ``lacking`` tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg

from anabranch.store.catalog.schema_rights import grant_schema, grant_sequences, grant_table, pass_on
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
    "audience_changes",
    "audience_sums",
    "audiences_missed",
    "batches",
    "captured",
    "captured_shapes",
    "claims",
    "conflicts",
    "groups",
    "inbox",
    "log",
    "nodes",
    "principals",
    "row_versions",
    "schema_changes",
    "table_sums",
    "undertaken",
)
"""Our tables that a writer reads and changes."""
_READ = ("code_revisions", "epochs", "former_tables", "schema_revision", "synced_tables")
"""Our tables that it only reads."""
_CALLED = (
    "begin_table(int, int, text, jsonb, text[], jsonb, bigint)",
    "end_table(int)",
    "follow_table(int, jsonb, jsonb, text[], text, jsonb, jsonb, bigint)",
    "followed_audience(int)",
    "leave_table(int, int)",
    "move_database(int)",
    "refuse_table(int, oid, text, bigint)",
    "renew_table(int, bigint)",
)
"""Our functions by which it has the catalog follow the tables."""
_READABLE: LiteralString = """
select a.attname::text from pg_catalog.pg_attribute a
where a.attrelid = 'anabranch.databases'::pg_catalog.regclass and a.attnum > 0 and not a.attisdropped
  and a.attname <> 'seal_key'
order by a.attnum
"""
# A database's rights are taken from PUBLIC where somebody hardens it. Images of altered tables take a temporary type.
_DATABASE: LiteralString = """
select pg_catalog.current_database()::text
where pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY WITH GRANT OPTION')
  and not (pg_catalog.has_database_privilege(%(role)s, pg_catalog.current_database(), 'CONNECT')
           and pg_catalog.has_database_privilege(%(role)s, pg_catalog.current_database(), 'TEMPORARY'))
"""
# Of the catalog alone, so that it waits for nobody who holds one of our tables. Each right by itself: of several in one
# text one would do.
_HAS_OURS: LiteralString = f"""
select pg_catalog.has_schema_privilege(r.oid, 'anabranch', 'USAGE')
  and pg_catalog.has_database_privilege(r.oid, pg_catalog.current_database(), 'CONNECT')
  and pg_catalog.has_database_privilege(r.oid, pg_catalog.current_database(), 'TEMPORARY')
  and (select pg_catalog.bool_and(pg_catalog.has_table_privilege(r.oid, 'anabranch.' || t.name, p.name))
       from unnest(%(changed)s::text[]) t(name), unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p(name))
  and (select pg_catalog.bool_and(pg_catalog.has_table_privilege(r.oid, 'anabranch.' || t.name, 'SELECT'))
       from unnest(%(read)s::text[]) t(name))
  and (select pg_catalog.bool_and(pg_catalog.has_column_privilege(r.oid, 'anabranch.databases', c.attname, 'SELECT'))
       from ({_READABLE}) c)
  and (select pg_catalog.bool_and(pg_catalog.has_function_privilege(r.oid, 'anabranch.' || f.name, 'EXECUTE'))
       from unnest(%(called)s::text[]) f(name))
  and pg_catalog.has_column_privilege(r.oid, 'anabranch.databases', 'schema_version', 'UPDATE')
  and pg_catalog.has_column_privilege(r.oid, 'anabranch.databases', 'ddl_version', 'UPDATE')
  and pg_catalog.has_column_privilege(r.oid, 'anabranch.synced_tables', 'torn_ms', 'UPDATE')
from pg_catalog.pg_roles r where r.rolname = %(role)s
"""
_SCHEMAS: LiteralString = """
select d.schema_name,
       array(select coalesce(t.sql_name, t.name) from anabranch.synced_tables t where t.database_id = d.id)
from anabranch.databases d join pg_catalog.pg_namespace n on n.nspname = d.schema_name order by 1
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
_EXCESS: LiteralString = f"""
select r.rolname::text, case when r.rolsuper then array['is a superuser'] else pg_catalog.array_remove(array[
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
select d.schema_name || '.' || c.relname
from anabranch.synced_tables t join anabranch.databases d on d.id = t.database_id
join pg_catalog.pg_namespace n on n.nspname = d.schema_name
join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = coalesce(t.sql_name, t.name)
where not pg_catalog.has_schema_privilege(n.oid, 'USAGE')
   or not (
       select pg_catalog.bool_and(pg_catalog.has_table_privilege(c.oid, p))
       from unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
   )
   or pg_catalog.row_security_active(c.oid)
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


def lacking(conn: Connection) -> list[str]:
    """The synced tables that the session's role may not write to, or whose rows policies hide from it. Raises
    psycopg.Error."""
    return [name for (name,) in conn.execute(_LACKS).fetchall()]


def writers(conn: Connection) -> list[str]:
    """The names of all writers. Raises psycopg.Error."""
    return [name for (name,) in conn.execute(WRITERS).fetchall()]


def has_ours(conn: Connection, role: str) -> bool:
    """Whether a role is a writer with all rights to our tables: one of an older release may lack some. Waits for no
    lock. Raises psycopg.Error."""
    asked = {"role": role, "changed": list(_CHANGED), "read": list(_READ), "called": list(_CALLED)}
    return role in writers(conn) and conn.execute(_HAS_OURS, asked).fetchone() == (True,)


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
        for schema_name, synced in conn.execute(_SCHEMAS).fetchall():
            grant_schema(conn, schema_name, role)
            grant_sequences(conn, schema_name, synced, role)
        for schema_name in further:
            grant_schema(conn, schema_name, role)
        return judge(conn, role).excess


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
    columns = ", ".join(quote(name) for (name,) in conn.execute(_READABLE).fetchall())
    _run(conn, f"grant usage on schema anabranch to {to}")
    _run(conn, f"grant select, insert, update, delete on {_named(_CHANGED)} to {to}")
    _run(conn, f"grant select on {_named(_READ)} to {to}")
    _run(conn, f"grant select ({columns}), update (schema_version, ddl_version) on anabranch.databases to {to}")
    _run(conn, f"grant update (torn_ms) on anabranch.synced_tables to {to}")
    _run(conn, f"grant execute on function {_named(_CALLED)} to {to}")
    _grant_acting(conn, role)


def _named(tables: Sequence[str]) -> str:
    return ", ".join(f"anabranch.{name}" for name in tables)


def _run(conn: Connection, statement: str) -> None:
    conn.execute(statement.encode())
