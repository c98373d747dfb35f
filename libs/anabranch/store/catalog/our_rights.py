"""The rights of a writer to our tables and functions, and to the Postgres database.

They are given for whole tables, so that they reach the rows of all databases: what keeps a database's own writer from
others' rows is that nobody gave it rights to their schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg

from anabranch.store.cells.binary_cells import quote

Connection = psycopg.Connection[Any]

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


def has_ours(conn: Connection, role: str) -> bool:
    """Whether a role has all rights to our tables: one that an older release made may lack some. Waits for no lock.
    Raises psycopg.Error."""
    asked = {"role": role, "changed": list(_CHANGED), "read": list(_READ), "called": list(_CALLED)}
    return conn.execute(_HAS_OURS, asked).fetchone() == (True,)


def grant_ours(conn: Connection, role: str) -> None:
    """Give a role all rights to our tables. Raises psycopg.Error."""
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


def _named(tables: Sequence[str]) -> str:
    return ", ".join(f"anabranch.{name}" for name in tables)


def _run(conn: Connection, statement: str) -> None:
    conn.execute(statement.encode())
