"""Registrations that have ended, with the columns of their tables: the log may still have changes of theirs, and these
can be read only with their columns. To alter a table is to end its registration and to begin another."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from anabranch.store.catalog.databases import columns_from_json, former_columns_from_json
from anabranch.store.session.engine import Session
from anabranch.store.session.steps import Statement, Steps, arun, run
from anabranch.values import Table

KEEP = """
with gone as (
    delete from anabranch.synced_tables where database_id = %s and name = %s
    returning id, database_id, name, columns, key_columns, audience, sql_name, former_columns
)
insert into anabranch.former_tables
    (id, database_id, name, columns, key_columns, last_position, audience, sql_name, former_columns)
select g.id, g.database_id, g.name, g.columns, g.key_columns,
       coalesce((select position from anabranch.groups where database_id = g.database_id
                 order by position desc limit 1), 0), g.audience, g.sql_name, g.former_columns
from gone g
returning id
"""
"""Ends a registration. The caller holds the database's claim, so that no group comes meanwhile."""
_FORMER: LiteralString = """
select f.id, f.name, f.columns, f.key_columns, f.last_position, coalesce(f.sql_name, ''), f.former_columns,
       ended.state
from anabranch.former_tables f left join lateral (
    select nullif(c.tables -> f.id::text -> 'before', 'null') as state from anabranch.schema_changes c
    where c.database_id = f.database_id and c.position > f.last_position and c.tables ? f.id::text
    order by c.position limit 1
) ended on true
"""
"""Where a schema change ended a registration, what is known of it is how it was before: its key may be another one by
now, and the log has no change of it by that."""
READ: LiteralString = f"{_FORMER} where f.database_id = %s and f.id = any(%s::int[]) order by f.id"

LAST_AUDIENCE = """
select audience from anabranch.former_tables
where database_id = %s and coalesce(sql_name, name) = %s order by id desc limit 1
"""
"""The audience expression of the last registration of the table that SQL called so."""

READ_ALL: LiteralString = f"{_FORMER} where f.database_id = %(db)s order by f.id"


@dataclass(frozen=True, slots=True)
class Former:
    """A table as it was; ``last_position``: the head when its registration ended."""

    table: Table
    last_position: int


def read_former(conn: Session, database_id: int, numbers: Collection[int]) -> list[Former]:
    """The ended registrations with these numbers, in the order of their registrations."""
    return _former(conn.execute(READ, (database_id, sorted(numbers))).fetchall())


def all_former(conn: Session, database_id: int) -> list[Former]:
    """All ended registrations of a database, in the order of their registrations."""
    return run(conn, _all(database_id))


async def aall_former(conn: psycopg.AsyncConnection[Any], database_id: int) -> list[Former]:
    """``all_former`` for asyncio."""
    return await arun(conn, _all(database_id))


def _all(database_id: int) -> Steps[list[Former]]:
    rows = yield Statement(READ_ALL, {"db": database_id})
    return _former(rows)


def _former(rows: Iterable[tuple[Any, ...]]) -> list[Former]:
    found = []
    for number, name, columns, key, last, called, former, state in rows:
        if state is not None:
            columns, key, former = state["columns"], state["key_columns"], state.get("former_columns") or []
        known, gone = columns_from_json(columns, {}), former_columns_from_json(former)
        found.append(Former(Table(name, known, tuple(key), number, renamed=called, former=gone), last))
    return found
