"""The tables of the fault run that DDL changes while it goes on: how they begin, and what Postgres has of them now.

They are a database of their own on the same services, so that the judge of the other one knows its tables; nodes,
networks and services are the same, and die in the same ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

NAME = "changing"
GONE = "written.gone"
"""Keys of rows that were removed by SQL; it is not synced."""
FIRST = ("alpha", "beta")
POLICY: Mapping[str, Any] = {"park_ms": 5_000, "new_tables": "all", "retention_days": 3_650}
SQL = f"""
create schema {NAME};
create type {NAME}.mood as enum ('fine', 'so so', 'bad');
create table {NAME}.alpha (id text primary key, title text, n integer, made timestamptz);
create table {NAME}.beta (a text, b integer, body text, mood {NAME}.mood default 'fine', primary key (a, b));
insert into {NAME}.alpha select 'a' || g, 'title ' || g, g, '2026-01-01T00:00:00Z' from generate_series(1, 40) g;
insert into {NAME}.beta select 'b' || g, g % 3, 'body ' || g from generate_series(1, 40) g;
create table {GONE} (key text);
"""
_LOOK = """
select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated <> '' or a.attidentity <> '',
       coalesce(a.attnum = any(k.conkey), false)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_constraint k on k.conrelid = c.oid and k.contype = 'p'
where n.nspname = %s and c.relkind = 'r' order by c.relname, a.attnum
"""


@dataclass(frozen=True, slots=True)
class ColumnThere:
    """A column as Postgres has it. ``fixed``: it is generated, or an identity, so that nobody writes it."""

    name: str
    type: str
    fixed: bool
    key: bool


TablesThere = Mapping[str, tuple[ColumnThere, ...]]


def tables_there(conn: Connection[Any]) -> TablesThere:
    """The tables that have a key, with their columns, by Postgres's own catalog."""
    found: dict[str, tuple[ColumnThere, ...]] = {}
    for table, *column in conn.execute(_LOOK, (NAME,)).fetchall():
        found[table] = (*found.get(table, ()), ColumnThere(*column))
    return found
