"""The rights of a writer to an application's schema: to its tables, synced or not, and its sequences, now and later;
and to the sequences elsewhere that defaults of its synced tables take numbers from.

What the session's role does not own is left out, as it could give no rights to it. Tables that are made later come with
the rights where their maker owns a table of the schema, or the schema, by then (default privileges).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, LiteralString

import psycopg

from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.errors import OWN_SCHEMA

Connection = psycopg.Connection[Any]

TABLE_RIGHTS = "select, insert, update, delete, truncate"
SEQUENCE_RIGHTS = "usage, select"
SCHEMA_RIGHTS = "usage"

_LOCKED_AT_ONCE = 100
"""A server of default settings has room for 6,400 locks."""
LOCK_LIMIT: LiteralString = "set local lock_timeout = '1s'"
_LOCKABLE = ("r", "p")
_HELD_OR_GONE = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.UndefinedTable)

_MISSING: LiteralString = """
select c.relkind::text, c.relname::text
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = %(schema)s and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') and c.relpersistence <> 't'
  and pg_catalog.pg_has_role(c.relowner, 'USAGE') and not case c.relkind
    when 'S' then pg_catalog.has_sequence_privilege(%(role)s, c.oid, 'USAGE')
                  and pg_catalog.has_sequence_privilege(%(role)s, c.oid, 'SELECT')
    else pg_catalog.has_table_privilege(%(role)s, c.oid, 'SELECT')
         and pg_catalog.has_table_privilege(%(role)s, c.oid, 'INSERT')
         and pg_catalog.has_table_privilege(%(role)s, c.oid, 'UPDATE')
         and pg_catalog.has_table_privilege(%(role)s, c.oid, 'DELETE')
         and pg_catalog.has_table_privilege(%(role)s, c.oid, 'TRUNCATE') end
order by 1, 2
"""
# Sequences that belong to columns, and those that defaults name, whatever schema they are in.
_SEQUENCES: LiteralString = """
with tables as materialized (
    select c.oid from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %(schema)s and c.relname = any(%(tables)s::text[])
), taken_from(oid) as (
    select p.objid from tables t join pg_catalog.pg_depend p
      on p.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass and p.refobjid = t.oid
    where p.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
  union
    select p.refobjid from tables t join pg_catalog.pg_attrdef f on f.adrelid = t.oid
    join pg_catalog.pg_depend p on p.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass and p.objid = f.oid
    where p.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
)
select n.nspname::text, s.relname::text
from taken_from f join pg_catalog.pg_class s on s.oid = f.oid join pg_catalog.pg_namespace n on n.oid = s.relnamespace
where s.relkind = 'S' and pg_catalog.pg_has_role(s.relowner, 'USAGE')
  and not (pg_catalog.has_sequence_privilege(%(role)s, s.oid, 'USAGE')
           and pg_catalog.has_sequence_privilege(%(role)s, s.oid, 'SELECT'))
order by 1, 2
"""
# Roles that make tables in the schema, as far as one can tell, and do not pass the rights on yet.
_MAKERS: LiteralString = """
select r.rolname::text from pg_catalog.pg_namespace n join pg_catalog.pg_roles r
  on r.oid = n.nspowner or r.rolname = current_user
     or r.oid in (select c.relowner from pg_catalog.pg_class c where c.relnamespace = n.oid and c.relkind in ('r', 'p'))
where n.nspname = %(schema)s and pg_catalog.pg_has_role(r.oid, 'USAGE') and r.rolname !~ '^pg_'
  and not exists (
    select from pg_catalog.pg_default_acl d cross join lateral pg_catalog.aclexplode(d.defaclacl) a
    where d.defaclnamespace = n.oid and d.defaclrole = r.oid and d.defaclobjtype = 'r'
      and a.grantee = (select w.oid from pg_catalog.pg_roles w where w.rolname = %(role)s)
      and a.privilege_type = 'TRUNCATE')
order by 1
"""
_SCHEMA: LiteralString = "select from pg_catalog.pg_namespace where nspname = %s"
_MAY_GRANT: LiteralString = """
select pg_catalog.has_schema_privilege(n.oid, 'USAGE WITH GRANT OPTION')
       and not pg_catalog.has_schema_privilege(%(role)s, n.oid, 'USAGE')
from pg_catalog.pg_namespace n where n.nspname = %(schema)s
"""


def is_reserved(schema_name: str) -> bool:
    """Whether a schema is Postgres's own or ours: none of it is synced, and a writer gets no rights to it."""
    return schema_name in (OWN_SCHEMA, "information_schema") or schema_name.startswith("pg_")


def grant_schema(conn: Connection, schema_name: str, role: str) -> None:
    """Give a role the rights to a schema's tables and sequences, those that are there and those to come.

    Raises:
        psycopg.errors.InvalidSchemaName: there is no such schema, or it is none of an application.
        psycopg.Error: Postgres refused a statement.
    """
    if is_reserved(schema_name):
        raise psycopg.errors.InvalidSchemaName(f'schema "{schema_name}" is not the application\'s')
    if conn.execute(_SCHEMA, (schema_name,)).fetchone() is None:
        raise psycopg.errors.InvalidSchemaName(f'there is no schema "{schema_name}"')
    _grant_usage(conn, schema_name, role)
    tables: list[str] = []
    sequences: list[str] = []
    for kind, name in conn.execute(_MISSING, {"schema": schema_name, "role": role}).fetchall():
        (sequences if kind == "S" else tables).append(f"{quote(schema_name)}.{quote(name)}")
    _grant(conn, f"{TABLE_RIGHTS} on table", tables, role)
    _grant(conn, f"{SEQUENCE_RIGHTS} on sequence", sequences, role)
    pass_on(conn, schema_name, role)


def lacking_tables(conn: Connection, schema_name: str, role: str) -> Iterator[list[str]]:
    """The tables of a schema to which a role lacks rights, quoted, as many at a time as are to be locked at once.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    missing = conn.execute(_MISSING, {"schema": schema_name, "role": role}).fetchall()
    tables = [f"{quote(schema_name)}.{quote(name)}" for kind, name in missing if kind in _LOCKABLE]
    for start in range(0, len(tables), _LOCKED_AT_ONCE):
        yield tables[start : start + _LOCKED_AT_ONCE]


def grant_locked(conn: Connection, tables: Sequence[str], role: str) -> None:
    """Give a role the rights to some tables, with these locked, and so behind an application that alters one: GRANT
    takes no lock, and where CREATE TRIGGER or ALTER TABLE runs beside it, one of both fails. Where one of them stays
    locked, or is gone, no rights are given.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    try:
        with conn.transaction():
            conn.execute(LOCK_LIMIT)
            # As a statement that writes: no DDL begins beside it, and nothing else waits for it.
            _run(conn, f"lock table only {', only '.join(tables)} in row exclusive mode")
            _grant(conn, f"{TABLE_RIGHTS} on table", tables, role)
    except _HELD_OR_GONE:
        return


def grant_table(conn: Connection, schema_name: str, table: str, role: str) -> None:
    """Give a role the rights to a table and to the sequences that it takes numbers from.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    _grant_usage(conn, schema_name, role)
    _grant(conn, f"{TABLE_RIGHTS} on table", [f"{quote(schema_name)}.{quote(table)}"], role)
    grant_sequences(conn, schema_name, [table], role)


def grant_sequences(conn: Connection, schema_name: str, tables: Sequence[str], role: str) -> None:
    """Give a role the rights to the sequences, in whatever schema, that tables of one schema take numbers from.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    asked = {"schema": schema_name, "tables": list(tables), "role": role}
    found = [names for names in conn.execute(_SEQUENCES, asked).fetchall() if not is_reserved(names[0])]
    for schema in sorted({schema for schema, _ in found}):
        _grant_usage(conn, schema, role)
    _grant(conn, f"{SEQUENCE_RIGHTS} on sequence", [".".join(map(quote, names)) for names in found], role)


def pass_on(conn: Connection, schema_name: str, role: str) -> None:
    """Have tables and sequences that are made later come with a role's rights.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    for (maker,) in conn.execute(_MAKERS, {"schema": schema_name, "role": role}).fetchall():
        for what in (f"{TABLE_RIGHTS} on tables", f"{SEQUENCE_RIGHTS} on sequences"):
            _run(
                conn,
                f"alter default privileges for role {quote(maker)} in schema {quote(schema_name)}"
                f" grant {what} to {quote(role)}",
            )


def _grant_usage(conn: Connection, schema_name: str, role: str) -> None:
    if conn.execute(_MAY_GRANT, {"schema": schema_name, "role": role}).fetchone() == (True,):
        _grant(conn, f"{SCHEMA_RIGHTS} on schema", [quote(schema_name)], role)


def _grant(conn: Connection, what: str, names: Sequence[str], role: str) -> None:
    """Give rights to all objects of a list in one statement."""
    if names:
        _run(conn, f"grant {what} {', '.join(names)} to {quote(role)}")


def _run(conn: Connection, statement: str) -> None:
    conn.execute(statement.encode())
