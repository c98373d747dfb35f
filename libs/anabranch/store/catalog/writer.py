"""The writer: a role as which groups are committed, so that code of the application's owners runs with few rights.

What a table's owner attaches to it (triggers, defaults, checks, generated columns) runs in the session that writes, as
its role, and no SET ROLE keeps it from there: it can reset it. So the wall is the role that the session logged in as.
A writer may do what a group does and nothing more: it reads no keys of seals, no hashes of API keys, and owns nothing.

A role is a writer where it was granted, by name, to change ``anabranch.row_versions`` (``make``). Registration gives
each writer the rights to a table, its schema and its sequences (``admit``), and the end of one takes them away
(``dismiss``). Who may do so is the owner of both schemas, or a superuser.
"""

from __future__ import annotations

from typing import Any, LiteralString, NamedTuple

import psycopg

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
    "anabranch.batches, anabranch.captured, anabranch.claims, anabranch.conflicts, anabranch.groups, anabranch.inbox, "
    "anabranch.log, anabranch.nodes, anabranch.row_versions, anabranch.table_sums, anabranch.undertaken"
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
_SYNCED: LiteralString = """
select d.schema_name, t.name from anabranch.synced_tables t join anabranch.databases d on d.id = t.database_id
where pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', d.schema_name, t.name)) is not null
  and (%(schema)s::text is null or d.schema_name = %(schema)s) and (%(table)s::text is null or t.name = %(table)s)
"""
# Sequences that belong to columns, and those that defaults name.
_SEQUENCES: LiteralString = """
select n.nspname::text, s.relname::text
from pg_catalog.pg_class s join pg_catalog.pg_namespace n on n.oid = s.relnamespace
where s.relkind = 'S' and s.oid in (
    select p.objid from pg_catalog.pg_depend p
    where p.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
      and p.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
      and p.refobjid = %(relation)s::pg_catalog.regclass
    union all
    select p.refobjid from pg_catalog.pg_attrdef f
    join pg_catalog.pg_depend p on p.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass and p.objid = f.oid
    where f.adrelid = %(relation)s::pg_catalog.regclass
)
"""

_KEYS: LiteralString = """
pg_catalog.has_any_column_privilege(r.oid, 'anabranch.api_keys', 'SELECT')
or pg_catalog.has_column_privilege(r.oid, 'anabranch.databases', 'seal_key', 'SELECT')
"""
JUDGE: LiteralString = f"""
select r.rolname::text, r.rolsuper, {_KEYS} from pg_catalog.pg_roles r where r.rolname = session_user
"""
EXCESS: LiteralString = f"""
select r.rolsuper, {_KEYS}, r.rolcreaterole from pg_catalog.pg_roles r where r.rolname = %(role)s
"""
LACKS: LiteralString = f"""
select s.schema_name || '.' || s.name from ({_SYNCED}) s
where not (
    select pg_catalog.bool_and(pg_catalog.has_table_privilege(pg_catalog.format('%%I.%%I', s.schema_name, s.name), p))
    from unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
)
order by 1
"""


class Judged(NamedTuple):
    """The role of a session that commits groups. ``keys``: it may read keys or their hashes."""

    name: str
    superuser: bool
    keys: bool


def judge(conn: Connection) -> Judged:
    """The rights of the session's role that a writer does not need. Raises psycopg.Error."""
    [row] = conn.execute(JUDGE).fetchall()
    return Judged._make(row)


def lacking(conn: Connection) -> list[str]:
    """The synced tables that the session's role may not write to. Raises psycopg.Error."""
    return [name for (name,) in conn.execute(LACKS, {"schema": None, "table": None}).fetchall()]


def writers(conn: Connection) -> list[str]:
    """The names of all writers. Raises psycopg.Error."""
    return [name for (name,) in conn.execute(WRITERS).fetchall()]


def make(conn: Connection, role: str) -> list[str]:
    """Make an existing role a writer, of all tables that are synced now. Gives in words what the role may do beyond
    that.

    Raises:
        psycopg.errors.UndefinedObject: there is no such role.
        psycopg.Error: the rights can't be given.
    """
    with conn.transaction():
        _grant_ours(conn, role)
        for schema_name, table in conn.execute(_SYNCED, {"schema": None, "table": None}).fetchall():
            _grant(conn, schema_name, table, role)
        [(superuser, keys, makes_roles)] = conn.execute(EXCESS, {"role": role}).fetchall()
    words = {"is a superuser": superuser, "may read keys": keys, "may make roles": makes_roles}
    return [text for text, holds in words.items() if holds]


def refresh(conn: Connection) -> None:
    """Give all writers the rights to our tables anew: a migration has made some. Raises psycopg.Error."""
    for role in writers(conn):
        _grant_ours(conn, role)


def admit(conn: Connection, schema_name: str, table: str) -> None:
    """Give all writers the rights to a table. Raises psycopg.Error."""
    for role in writers(conn):
        _grant(conn, schema_name, table, role)


def dismiss(conn: Connection, schema_name: str, table: str) -> None:
    """Take them away. Raises psycopg.Error."""
    for role in writers(conn):
        _run(conn, f"revoke all on table {quote(schema_name)}.{quote(table)} from {quote(role)}")


def _grant_ours(conn: Connection, role: str) -> None:
    to = quote(role)
    [(columns,)] = conn.execute(_COLUMNS).fetchall()
    _run(conn, f"grant usage on schema anabranch to {to}")
    _run(conn, f"grant select, insert, update, delete on {_CHANGED} to {to}")
    _run(conn, f"grant select on {_READ} to {to}")
    _run(conn, f"grant select ({columns}), update (schema_version) on anabranch.databases to {to}")
    _run(conn, f"grant update (torn_ms) on anabranch.synced_tables to {to}")


def _grant(conn: Connection, schema_name: str, table: str, role: str) -> None:
    relation, to = f"{quote(schema_name)}.{quote(table)}", quote(role)
    _run(conn, f"grant usage on schema {quote(schema_name)} to {to}")
    _run(conn, f"grant select, insert, update, delete on table {relation} to {to}")
    for schema, name in conn.execute(_SEQUENCES, {"relation": relation}).fetchall():
        _run(conn, f"grant usage on sequence {quote(schema)}.{quote(name)} to {to}")


def _run(conn: Connection, statement: str) -> None:
    conn.execute(statement.encode())
