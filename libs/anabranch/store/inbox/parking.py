"""Batches of the inbox that wait: to park them, to set them free, and to tell which of them wait for a row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg

from anabranch import limits
from anabranch.store.cells.index_keys import index_key, index_keys

Connection = psycopg.Connection[Any]

AWAITS_ROW: LiteralString = f"waits_for_key is not null and park_deadline_ms >= arrived_ms + {limits.BATCH_EXPIRY_MS}"
"""True of a row of the inbox whose batch waits for a row of a table, beyond its park time."""

AWAITED: LiteralString = f"""
    {AWAITS_ROW} as awaits, x.park_deadline_ms, x.waits_for_key as awaited_key,
    (select t.name from anabranch.synced_tables t where t.id = x.waits_for_table limit 1) as awaited_in
"""
"""Of a row ``x`` of the inbox: whether its batch waits for a row in this way, until when, and for which row."""

AWAITING_ROWS = f"""
select q.id from unnest(%(ids)s::text[]) q(id)
where (select {AWAITS_ROW} from anabranch.inbox i
       where i.database_id = %(db)s and i.batch_id = q.id limit 1)
"""

PARK = """
update anabranch.inbox i
set park_deadline_ms = q.at, waits_for_batch = q.batch, waits_for_table = q.table_id, waits_for_key = q.key
from unnest(%(ids)s::text[], %(at)s::bigint[], %(batches)s::text[], %(tables)s::int[], %(keys)s::text[])
     q(id, at, batch, table_id, key)
where i.database_id = %(db)s and i.batch_id = q.id
"""

# A chain of batches that wait for one another is set free as a whole: they are decided in one group, by id.
FREE = """
with recursive freed(batch_id) as (
    (select i.batch_id from unnest(%(decided)s::text[]) q(id)
        join anabranch.inbox i on i.database_id = %(db)s and i.waits_for_batch = q.id
     union
     select i.batch_id from unnest(%(tables)s::int[], %(keys)s::text[]) q(table_id, key)
        join anabranch.inbox i on i.waits_for_table = q.table_id and i.waits_for_key = q.key
     where i.database_id = %(db)s)
  union
    select i.batch_id from freed f
        join anabranch.inbox i on i.database_id = %(db)s and i.waits_for_batch = f.batch_id
)
update anabranch.inbox i
set park_deadline_ms = null, waits_for_batch = null, waits_for_table = null, waits_for_key = null
from freed f
where i.database_id = %(db)s and i.batch_id = f.batch_id
"""


def awaiting_rows(conn: Connection, database_id: int, batch_ids: Collection[str]) -> set[str]:
    """Those of ``batch_ids`` that wait for a row, beyond their park time."""
    rows = conn.execute(AWAITING_ROWS, {"db": database_id, "ids": list(batch_ids)})
    return {row[0] for row in rows}


class Parking(NamedTuple):
    """A batch that waits until ``until_ms`` at the latest, for a batch, for a row, or only for that time."""

    batch_id: str
    until_ms: int
    for_batch: str | None = None
    for_table: int | None = None
    for_key: str | None = None


def park(conn: Connection, database_id: int, parkings: Sequence[Parking]) -> None:
    """Have batches of the inbox wait."""
    ids, at, batches, tables, keys = zip(*parkings, strict=True)
    conn.execute(
        PARK,
        {
            "db": database_id,
            "ids": list(ids),
            "at": list(at),
            "batches": list(batches),
            "tables": list(tables),
            "keys": [key if key is None else index_key(key) for key in keys],
        },
    )


def free(
    conn: Connection,
    database_id: int,
    *,
    decided: Sequence[str],
    rows: Sequence[tuple[int, str]],
) -> None:
    """Make ready the batches that wait for one that is now ``decided`` or for one of the ``rows`` (table id, key
    text) that are now there, and those that wait for them in turn."""
    conn.execute(
        FREE,
        {
            "db": database_id,
            "decided": list(decided),
            "tables": [table for table, _ in rows],
            "keys": index_keys([key for _, key in rows]),
        },
    )
