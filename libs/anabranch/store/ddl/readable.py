"""Whether tables can be read as they are registered: a table that was altered can't until the resolver has taken that,
unless what is read of it is as it was.

Must be asked in the moment whose rows are read, behind the tables' locks: then nobody alters them until it ends. Only
their types can be, so that whoever has read for long asks ``is_altered`` at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from anabranch.store.cells.binary_cells import is_built_in
from anabranch.store.session import binary
from anabranch.store.session.engine import AsyncSession, Session
from anabranch.values import Table
from anabranch.values.postgres_binary import int8, text

UNREADABLE = b"""
select t.id::int8, coalesce(t.sql_name, t.name)
from anabranch.synced_tables t
join anabranch.databases d on d.id = t.database_id
left join pg_catalog.pg_namespace n on n.nspname = d.schema_name
left join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = coalesce(t.sql_name, t.name)
where t.id = any($1::text::int4[]) and (
    exists (select from anabranch.captured m
            where m.database_id = t.database_id and m.type = 4 and m.table_id in (0, t.id))
    or t.torn_ms is null and exists (
        select from jsonb_array_elements(t.columns) with ordinality r (one, place)
        left join pg_catalog.pg_attribute a
               on a.attrelid = c.oid and a.attname = coalesce(r.one ->> 'renamed', r.one ->> 'name') and a.attnum > 0
        where a.attnum is null or pg_catalog.format_type(a.atttypid, a.atttypmod) <> r.one ->> 'postgres_type'
           or c.oid = t.relation and a.attnum <> coalesce((r.one ->> 'number')::int4, t.column_numbers[r.place])
           or a.atttypid >= 16384 and t.shape is not null and jsonb_strip_nulls(anabranch.deep_of(a.atttypid))
              is distinct from (select s.one -> 'deep' from jsonb_array_elements(t.shape -> 'columns') s (one)
                                where (s.one ->> 'n')::int4 = a.attnum)
    )
)
order by 2
"""
"""$1 numbers of tables, as the text of an array: those that can't be read now, with their names in SQL. A table that is
set aside stays as it is registered, whatever becomes of it, and is not waited for."""

_IS_ALTERED = b"""
select true from anabranch.synced_tables t
where t.id = $1::int8 and t.changed_position = $2::int8 and not exists (
    select from anabranch.captured m
    where m.database_id = t.database_id and m.type = 4 and m.table_id in (0, t.id))
"""


def numbers_text(numbers: Iterable[int]) -> str:
    """The parameter of UNREADABLE."""
    return "{" + ",".join(map(str, numbers)) + "}"


async def unreadable(conn: AsyncSession, numbers: Iterable[int]) -> list[str]:
    """The names in SQL of those tables that can't be read now. Raises psycopg.Error."""
    cursor = _cursor(conn)
    await cursor.execute(UNREADABLE, [text(numbers_text(numbers))])
    return [name for _, name in await cursor.fetchall()]


async def is_altered(conn: AsyncSession, table: Table, changed_position: int) -> bool:
    """Whether a table was altered since the schema change at ``changed_position``, its last one by then, or is gone. Of
    a table whose types are Postgres's own nothing is asked: its lock keeps it as it is. Raises psycopg.Error."""
    if _is_fixed(table):
        return False
    cursor = _cursor(conn)
    await cursor.execute(_IS_ALTERED, [int8(table.id), int8(changed_position)])
    return await cursor.fetchone() is None


def was_altered(conn: Session, table: Table, changed_position: int) -> bool:
    """``is_altered`` for a session that blocks."""
    if _is_fixed(table):
        return False
    return binary.run(conn, _IS_ALTERED, [int8(table.id), int8(changed_position)]).fetchone() is None


def _is_fixed(table: Table) -> bool:
    """Whether its lock keeps a table as it is, since all its types are Postgres's own."""
    return all(is_built_in(column.postgres_type) for column in table.columns)


def _cursor(conn: AsyncSession) -> psycopg.AsyncRawCursor[tuple[Any, ...]]:
    cursor: psycopg.AsyncRawCursor[tuple[Any, ...]] = psycopg.AsyncRawCursor(conn)
    binary.adapt(cursor.adapters)
    return cursor
