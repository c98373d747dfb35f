"""Values that lost a conflict, read page by page, the newest first.

No page costs more than ``MOST_LOOKED_AT`` entries of an index: a filter that finds little makes pages short, or empty,
and each names the place where the next one begins. For one row the index of its conflicts is read, else that of the
database's. A listed conflict never changes: positions grow, and conflicts are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.former_tables import Former
from anabranch.store.session.steps import Statement, Steps, arun, run
from anabranch.values import Kind, Table

MOST_LOOKED_AT = 20_000
"""Entries that one page looks at."""
OVERHEAD_BYTES = 300
"""The bytes that a conflict counts for beside its key and its losing value: names and ids."""
_AFTER_ALL = 2**63 - 1

_WHERE = """
c.database_id = %(db)s and c.position >= %(from)s and (c.position, c.batch_id, c.ordinal) {before}
      (%(position)s, %(batch)s, %(ordinal)s)
"""
_OF_ALL = "anabranch.conflicts"
_OF_ROW = """
(select r.* from unnest(%(tables)s::int[]) as t (id) cross join lateral (
    select c.* from anabranch.conflicts c
    where c.table_id = t.id and left(c.key, 500) = left(%(key)s, 500) and c.key = %(key)s and {where}
    order by c.position desc, c.batch_id desc, c.ordinal desc limit %(most)s) r)
"""
"""Of each registration so many as a page looks at, by the index of a row's conflicts, which has the beginnings of keys,
since it could not hold every key."""
_ORDER = "order by c.position desc, c.batch_id desc, c.ordinal desc"

_HAD = """
exists (
    select from unnest(c.{audiences}) a
    where a = any(%(audiences)s::text[]) and (a = any(%(claimed)s::text[]) or coalesce((
        select a = any(x.lost) from anabranch.audience_changes x
        where x.database_id = c.database_id and x.principal = %(principal)s and x.position {later} c.position
          and (a = any(x.gained) or a = any(x.lost))
        order by x.position limit 1), true))
)
"""
_SEEN = f"""(
    %(audiences)s::text[] is null
    or case when c.audience_after is null then c.table_id <> all(%(restricted)s::int[])
            else {_HAD.format(audiences="audience_after", later=">")}
                 and (c.audience_before = '{{{{}}}}' or {_HAD.format(audiences="audience_before", later=">=")}) end
)"""
"""A value that lost is shown to those who had seen the row with it, and then saw it with the other one, and may see it
now. What memberships gave at the conflict's position is what they give now, with the first later change undone."""

_END = f"""
select c.position, c.batch_id, c.ordinal from {{of}} c
where {_WHERE} {_ORDER} offset %(most)s - 1 limit 1
"""
"""The last entry that the page looks at, where there are so many."""

_PAGE = f"""
select e.position, e.batch_id, e.ordinal, e.table_id, e.key, e.column_name,
       case when e.number = 1 then substring(e.losing_value from %(offset)s::int + 1 for %(bytes)s::int)
            else e.losing_value end,
       e.number = 1 and e.size - %(offset)s > %(bytes)s,
       e.losing_batch, e.losing_node, coalesce(l.name, ''), e.winning_batch, e.winning_node, coalesce(w.name, ''),
       e.cause::int, e.found
from (
    select f.*, octet_length(f.losing_value) as size, row_number() over v as number, count(*) over () as found,
           sum(octet_length(f.losing_value) + 2 * octet_length(f.key) + {OVERHEAD_BYTES}) over v as total
    from (
        select c.* from {{of}} c
        where {_WHERE} and (c.position, c.batch_id, c.ordinal) >= (%(to)s, %(to_batch)s, %(to_ordinal)s)
          and c.table_id = any(%(tables)s::int[])
          and (%(node)s = '' or c.losing_node = %(node)s or c.winning_node = %(node)s)
          and {_SEEN}
        {_ORDER} limit %(items)s + 1
    ) f
    window v as (order by f.position desc, f.batch_id desc, f.ordinal desc)
) e
left join anabranch.nodes l on l.database_id = %(db)s and l.node_id = e.losing_node
left join anabranch.nodes w on w.database_id = %(db)s and w.node_id = e.winning_node
where e.number = 1 or (e.number <= %(items)s and e.total - %(offset)s <= %(bytes)s)
order by e.number
"""
"""Sizes are known without reading the values; only the first value can be larger than a page, and comes in parts."""


def listed_tables(database: Database, former: Iterable[Former]) -> list[Table]:
    """The tables whose conflicts are listed: the registered ones, then former registrations, the newest first."""
    return [*database.tables.values(), *(one.table for one in reversed(list(former)))]


def called(tables: Sequence[Table], name: str) -> list[Table]:
    """All registrations among the listed ``tables`` of the one that people mean by ``name``: the table that is called
    so in SQL, or was last, else the one of that identity."""
    found = next((table for table in tables if table.sql_name == name), None)
    identity = name if found is None else found.name
    return [table for table in tables if table.name == identity]


def identified(tables: Sequence[Table], name: str) -> list[Table]:
    """All registrations of the table of the identity ``name``; where there is none, of the one that is ``called`` so:
    its writers may know no identities."""
    return [table for table in tables if table.name == name] or called(tables, name)


def of_one_key(tables: Sequence[Table]) -> list[Table]:
    """The registrations whose key columns are those of the newest one, the first."""
    return [table for table in tables if _key_columns(table) == _key_columns(tables[0])]


def column_called(table: Table, identity: str) -> str:
    """The name in SQL of a column of the table, its last one where the column is gone."""
    known = table.by_name.get(identity) or next((f.column for f in table.former if f.column.name == identity), None)
    return identity if known is None else known.sql_name


def _key_columns(table: Table) -> list[tuple[str, Kind]]:
    return [(name, table.by_name[name].kind) for name in table.key_columns]


class ConflictPlace(NamedTuple):
    """The place where a listing goes on: before this conflict, or, with an ``offset``, in its value from that byte."""

    position: int
    batch_id: str
    ordinal: int
    offset: int


@dataclass(frozen=True, slots=True)
class WantedConflicts:
    """The conflicts to list: of the tables with these numbers, of the row with this key text (then all numbers are
    registrations of one table), won or lost by this node ("" for all), decided in ``[from_ms, until_ms)``.
    ``audiences``: those that the reader, ``principal``, has now, ``claimed`` of them by its token; None for all
    conflicts. ``restricted``: numbers of tables of which a conflict is for nobody that does not say whom its row was
    for."""

    database_id: int
    tables: Sequence[int]
    key: str | None = None
    node_id: str = ""
    from_ms: int = 0
    until_ms: int | None = None
    principal: str = ""
    audiences: Sequence[str] | None = None
    claimed: Sequence[str] = ()
    restricted: Sequence[int] = ()


class Lost(NamedTuple):
    """A value that lost. ``value`` is a serialized ``anabranch.v1.Value``, or a part of one; ``cause`` the number of an
    ``anabranch.v1.LossCause``."""

    position: int
    table_id: int
    key: str
    column: str
    value: bytes
    losing_batch: str
    losing_node: str
    losing_node_name: str
    winning_batch: str
    winning_node: str
    winning_node_name: str
    cause: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A page. ``incomplete``: its only value goes on; ``after``: the place of the next page, None at the end."""

    lost: Sequence[Lost]
    incomplete: bool
    after: ConflictPlace | None


def _page(wanted: WantedConflicts, place: ConflictPlace | None, items: int, max_bytes: int) -> Steps[Listed]:
    start = place or ConflictPlace(_AFTER_ALL if wanted.until_ms is None else wanted.until_ms, "", -1, 0)
    parameters: dict[str, Any] = {
        "db": wanted.database_id,
        "from": wanted.from_ms,
        "position": start.position,
        "batch": start.batch_id,
        "ordinal": start.ordinal,
        "offset": start.offset,
        "tables": list(wanted.tables),
        "key": wanted.key,
        "node": wanted.node_id,
        "audiences": None if wanted.audiences is None else list(wanted.audiences),
        "claimed": list(wanted.claimed),
        "principal": wanted.principal,
        "restricted": list(wanted.restricted),
        "most": MOST_LOOKED_AT,
        "items": items,
        "bytes": max_bytes,
    }
    before = "<=" if start.offset else "<"
    part = {
        "before": before,
        "of": _OF_ALL if wanted.key is None else _OF_ROW.format(where=_WHERE.format(before=before)),
    }
    end = yield Statement(_END.format(**part), parameters)
    to = end[0] if end else (0, "", -1)
    parameters |= {"to": to[0], "to_batch": to[1], "to_ordinal": to[2]}
    rows = yield Statement(_PAGE.format(**part), parameters)
    lost = [Lost(row[0], *row[3:7], *row[8:15]) for row in rows]
    if rows and rows[0][7]:
        return Listed(lost, True, _place(rows[0], start.offset + len(lost[0].value)))
    after = None
    if rows and rows[0][15] > len(rows):
        after = _place(rows[-1], 0)
    elif end:
        after = _place(to, 0)
    return Listed(lost, False, after)


def _place(row: Sequence[Any], offset: int) -> ConflictPlace:
    return ConflictPlace(row[0], row[1], row[2], offset)


def page(
    conn: psycopg.Connection[Any], wanted: WantedConflicts, place: ConflictPlace | None, *, items: int, max_bytes: int
) -> Listed:
    """The page that begins at ``place`` (None: with the newest): at most ``items`` conflicts and ``max_bytes``. A value
    that alone is larger comes in parts."""
    return run(conn, _page(wanted, place, items, max_bytes))


async def apage(
    conn: psycopg.AsyncConnection[Any],
    wanted: WantedConflicts,
    place: ConflictPlace | None,
    *,
    items: int,
    max_bytes: int,
) -> Listed:
    """``page`` for asyncio."""
    return await arun(conn, _page(wanted, place, items, max_bytes))
