"""The rights of a writer to our tables and functions, and to the Postgres database.

They reach the rows of all databases: what keeps a database's own writer from the tables of others is that nobody gave
it rights to their schemas. So they are no more than a group takes: a writer sends no batch, changes no verdict, and
reads no token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, LiteralString

import psycopg

from anabranch.store.cells.binary_cells import quote

Connection = psycopg.Connection[Any]

_ALL = ("select", "insert", "update", "delete")
_MARKS = ("attempts", "failure", "park_deadline_ms", "waits_for_batch", "waits_for_key", "waits_for_table")
_RIGHTS: Mapping[str, Sequence[str | tuple[str, Sequence[str]]]] = MappingProxyType(
    {
        "audience_changes": _ALL,
        "audience_sums": _ALL,
        "audiences_missed": _ALL,
        # Verdicts are for ever, as are conflicts and groups.
        "batches": ("select", "insert"),
        "captured": ("select", "insert", "delete"),
        "captured_shapes": _ALL,
        "claims": ("select", "insert", "update"),
        "code_revisions": ("select",),
        "conflicts": ("insert",),
        "databases": (("update", ("ddl_version", "schema_version")),),
        "epochs": ("select",),
        "former_tables": ("select",),
        "groups": ("select", "insert"),
        # Nobody sends a batch by it, or has another one applied than was sent.
        "inbox": ("select", "delete", ("update", _MARKS)),
        # A large effect is written piece by piece.
        "log": (
            "insert",
            ("select", ("batch_id", "database_id", "effect", "ordinal", "position")),
            ("update", ("effect",)),
        ),
        # Not the tokens by which nodes are known.
        "nodes": (
            ("select", ("database_id", "last_accepted", "missing", "node_id", "principal")),
            ("update", ("last_accepted", "missing")),
        ),
        "principals": _ALL,
        "row_versions": _ALL,
        "schema_changes": ("select", "insert"),
        "schema_revision": ("select",),
        "synced_tables": ("select", ("update", ("torn_ms",))),
        "table_sums": _ALL,
        "undertaken": _ALL,
    }
)
"""By our table, what a group does with it, all of it or some of its columns; and every column of ``databases`` but that
of the key is read."""
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
  and (select pg_catalog.bool_and(
           case when g.given_column = '' then pg_catalog.has_table_privilege(r.oid, 'anabranch.' || g.name, g.given)
                else pg_catalog.has_column_privilege(r.oid, 'anabranch.' || g.name, g.given_column, g.given) end)
       from unnest(%(tables)s::text[], %(rights)s::text[], %(columns)s::text[]) g (name, given, given_column))
  and (select pg_catalog.bool_and(pg_catalog.has_column_privilege(r.oid, 'anabranch.databases', c.attname, 'SELECT'))
       from ({_READABLE}) c)
  and (select pg_catalog.bool_and(pg_catalog.has_function_privilege(r.oid, 'anabranch.' || f.name, 'EXECUTE'))
       from unnest(%(called)s::text[]) f(name))
from pg_catalog.pg_roles r where r.rolname = %(role)s
"""


def has_ours(conn: Connection, role: str) -> bool:
    """Whether a role has all rights to our tables: one that an older release made may lack some. Waits for no lock.
    Raises psycopg.Error."""
    tables, rights, columns = zip(*_each(), strict=True)
    asked = {"tables": list(tables), "rights": list(rights), "columns": list(columns), "called": list(_CALLED)}
    return conn.execute(_HAS_OURS, {"role": role, **asked}).fetchone() == (True,)


def grant_ours(conn: Connection, role: str) -> None:
    """Give a role all rights to our tables, and take others from it, which an older release may have given. Raises
    psycopg.Error."""
    to = quote(role)
    for (database,) in conn.execute(_DATABASE, {"role": role}).fetchall():
        _run(conn, f"grant connect, temporary on database {quote(database)} to {to}")
    columns = ", ".join(quote(name) for (name,) in conn.execute(_READABLE).fetchall())
    _run(conn, f"grant usage on schema anabranch to {to}")
    _run(conn, f"revoke all on {', '.join(f'anabranch.{name}' for name in _RIGHTS)} from {to}")
    for name, rights in _RIGHTS.items():
        given = [one if isinstance(one, str) else f"{one[0]} ({', '.join(one[1])})" for one in rights]
        _run(conn, f"grant {', '.join(given)} on anabranch.{name} to {to}")
    _run(conn, f"grant select ({columns}) on anabranch.databases to {to}")
    _run(conn, f"grant execute on function {', '.join(f'anabranch.{name}' for name in _CALLED)} to {to}")


def _each() -> Iterator[tuple[str, str, str]]:
    """Every right: table, right, and column, "" for all of them."""
    for name, rights in _RIGHTS.items():
        for one in rights:
            if isinstance(one, str):
                yield name, one, ""
            else:
                yield from ((name, one[0], column) for column in one[1])


def _run(conn: Connection, statement: str) -> None:
    conn.execute(statement.encode())
