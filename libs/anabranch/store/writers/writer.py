"""The writer: a role as which groups are committed, so that code of the application's owners runs with few rights.

What a table's owner attaches to it (triggers, defaults, checks, generated columns) runs in the session that writes, as
its role, and no SET ROLE keeps it from there: it can reset it. So the wall is the role that the session logged in as.
A writer may do what a group does and nothing more: it reads no keys of seals, no hashes of API keys, and owns nothing.

A role is a writer where it was granted, by name, to change ``anabranch.row_versions`` (``make``). It is one of all
databases, or, by its name (``own_name``), of one. It has the rights to all tables and sequences of the schemas of its
databases (``schema_rights``), so that triggers may write to tables beside the synced ones, and to the sequences
elsewhere that synced tables take numbers from; registration gives them anew (``welcome``, ``admit``). Who may do so is
the owner of all of these, or a superuser; whatever the session's role does not own is left as it is, and
``judged.lacking`` tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg

from anabranch.store.cells.binary_cells import quote
from anabranch.store.revisions import VERSION_TABLE
from anabranch.store.writers import our_rights
from anabranch.store.writers.judged import judge
from anabranch.store.writers.names import OWN_DATABASE
from anabranch.store.writers.schema_rights import (
    grant_locked,
    grant_schema,
    grant_sequences,
    grant_table,
    is_reserved,
    lacking_tables,
    pass_on,
)

Connection = psycopg.Connection[Any]

_WRITERS: LiteralString = f"""
select r.rolname::text, {OWN_DATABASE} from pg_catalog.pg_class c
cross join lateral pg_catalog.aclexplode(c.relacl) g
join pg_catalog.pg_roles r on r.oid = g.grantee
where c.oid = 'anabranch.row_versions'::pg_catalog.regclass and g.privilege_type = 'UPDATE' and g.grantee <> c.relowner
order by 1
"""
_OF: LiteralString = f"select {OWN_DATABASE} from pg_catalog.pg_roles r where r.rolname = %(role)s"
_ONLY: LiteralString = f"""
select d.name from pg_catalog.pg_roles r join anabranch.databases d on d.id = {OWN_DATABASE}
where r.rolname = %(role)s
"""
_SCHEMAS: LiteralString = """
select d.schema_name,
       array(select coalesce(t.sql_name, t.name) from anabranch.synced_tables t where t.database_id = d.id)
from anabranch.databases d join pg_catalog.pg_namespace n on n.nspname = d.schema_name
where %(own)s::int is null or d.id = %(own)s::int
order by 1
"""
_ACTED: LiteralString = """
select distinct r.rolname::text
from anabranch.databases d join pg_catalog.pg_roles r on r.rolname::text = d.audience_rules ->> 'rls'
where (%(own)s::int is null or d.id = %(own)s::int) and not pg_catalog.pg_has_role(%(role)s, r.oid, 'MEMBER')
order by 1
"""
_OF_SCHEMA: LiteralString = "select d.id from anabranch.databases d where d.schema_name = %s"
# Registrations insert into it before they look for writers: so each of them knows this one, or is known by then.
_ALONE: LiteralString = "lock table anabranch.synced_tables in share row exclusive mode"
_BESIDE: LiteralString = "lock table anabranch.synced_tables in row exclusive mode"
# Of two who give rights to the same table at one moment, one would fail. Migrations lock it, too.
_GRANTING: LiteralString = f"lock table anabranch.{VERSION_TABLE} in share update exclusive mode"
# A registration of a table has the database's row locked while it gives rights.
_ALONE_IN: LiteralString = "select from anabranch.databases d where d.id = %s for no key update"


def writers(conn: Connection) -> list[str]:
    """The names of all writers. Raises psycopg.Error."""
    return [name for name, _ in _writers(conn)]


def only_database(conn: Connection, role: str) -> str | None:
    """The name of the one database that a role is the writer of; None for every other role. Raises psycopg.Error."""
    found = conn.execute(_ONLY, {"role": role}).fetchone()
    return None if found is None else found[0]


def make(conn: Connection, role: str, further: Sequence[str] = ()) -> list[str]:
    """Make an existing role a writer of all databases, or of its own one where it has such a name, with rights to
    ``further`` schemas. Gives in words what the role may do beyond what groups take.

    Raises:
        psycopg.errors.InvalidSchemaName: there is no such schema, or it is none of an application.
        psycopg.errors.UndefinedObject: there is no such role.
        psycopg.Error: the rights can't be given.
    """
    found = conn.execute(_OF, {"role": role}).fetchone()
    own = found[0] if found is not None else None
    # The right that makes it a writer comes last: a session that ends on the way leaves one that is not complete.
    with conn.transaction():
        alone(conn, own)
        names = [name for name, _ in conn.execute(_SCHEMAS, {"own": own}).fetchall()]
        names += (name for name in further if not is_reserved(name))
        for schema_name in names:
            pass_on(conn, schema_name, role)
    for schema_name in names:
        for tables in lacking_tables(conn, schema_name, role):
            with conn.transaction():
                conn.execute(_GRANTING)
                grant_locked(conn, tables, role)
    with conn.transaction():
        alone(conn, own)
        _grant_ours(conn, role, own)
        for schema_name, synced in conn.execute(_SCHEMAS, {"own": own}).fetchall():
            grant_schema(conn, schema_name, role)
            grant_sequences(conn, schema_name, synced, role)
        for schema_name in further:
            grant_schema(conn, schema_name, role)
        return judge(conn, role).excess


def alone(conn: Connection, database_id: int | None) -> None:
    """Keep others who make writers away, and registrations, those of a database or all of them, to the transaction's
    end. Raises psycopg.Error."""
    conn.execute(_GRANTING)
    if database_id is None:
        conn.execute(_ALONE)
    else:
        # Not behind whoever registers tables of other databases, which may take long.
        conn.execute(_ALONE_IN, (database_id,))


def is_complete(conn: Connection, role: str) -> bool:
    """Whether a role is a writer with all rights to our tables: one of an older release may lack some. Waits for no
    lock. Raises psycopg.Error."""
    return role in writers(conn) and our_rights.has_ours(conn, role)


def refresh(conn: Connection) -> None:
    """Give all writers the rights to our tables anew: a migration has made some. Raises psycopg.Error."""
    for role, own in _writers(conn):
        _grant_ours(conn, role, own)


def welcome(conn: Connection, schema_name: str) -> None:
    """Give the writers of all databases the rights to a schema that becomes one. Raises psycopg.Error."""
    conn.execute(_BESIDE)
    for role, own in _writers(conn):
        if own is None:
            grant_schema(conn, schema_name, role)


def admit(conn: Connection, schema_name: str, table: str) -> None:
    """Give a database's writers the rights to a table that is synced from now on. Raises psycopg.Error."""
    [(database_id,)] = conn.execute(_OF_SCHEMA, (schema_name,)).fetchall()
    for role, own in _writers(conn):
        if own is None or own == database_id:
            grant_table(conn, schema_name, table, role)
            pass_on(conn, schema_name, role)


def let_act(conn: Connection) -> None:
    """Let all writers act as the roles under whose policies batches of their databases are applied. Raises
    psycopg.Error."""
    for role, own in _writers(conn):
        _grant_acting(conn, role, own)


def _writers(conn: Connection) -> list[tuple[str, int | None]]:
    """All writers, each with the number of its database; None: it is one of all."""
    return conn.execute(_WRITERS).fetchall()


def _grant_ours(conn: Connection, role: str, own: int | None) -> None:
    our_rights.grant_ours(conn, role)
    _grant_acting(conn, role, own)


def _grant_acting(conn: Connection, role: str, own: int | None) -> None:
    for (acted,) in conn.execute(_ACTED, {"role": role, "own": own}).fetchall():
        conn.execute(f"grant {quote(acted)} to {quote(role)}".encode())
