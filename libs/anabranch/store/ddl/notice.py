"""Notice DDL where no event trigger does: the catalog is compared with the shapes that are on record.

The resolver asks before it drains or writes, and again before it commits: what others have altered meanwhile shows
there, and then the group is rolled back. A table may have been altered before some of the captured images that wait:
these tell by the number and the types of their columns on which side they stand, and the marker is placed between them.
DDL keeps all other sessions from its table, so that every older image can be seen by then; a marker's place is right
behind the last of them.

Where a table was written anew by the same DDL nothing tells of USING: values of columns whose type is another one are
sent, those of others are not.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
from psycopg.types.json import Jsonb

from anabranch.store.catalog.databases import Database
from anabranch.store.ddl.shapes import Shape, columns_of

Connection = psycopg.Connection[Any]

# A table is found by its triggers wherever it is; one that lost them by its oid, if it still has its name, and else by
# its name alone. One that has the triggers of another table is that one, whatever it is called.
_DIFFERENT: LiteralString = """
with last as (
    select distinct on (c.table_id) c.table_id, c.id, pg_catalog.convert_from(c.new, 'UTF8')::jsonb as told
    from anabranch.captured c where c.database_id = %(database)s and c.type = 4 order by c.table_id, c.id desc
), on_record as (
    select s.id as number, coalesce(m.told ->> 'sql_name', s.sql_name, s.name) as sql_name,
           coalesce((m.told ->> 'relation')::int8, s.relation) as relation,
           case when m.told is null then s.shape else nullif(m.told -> 'shape', 'null') end as shape,
           coalesce((m.told ->> 'dropped')::boolean, false) as dropped, coalesce(m.id, 0) as marker
    from anabranch.synced_tables s left join last m on m.table_id = s.id
    where s.database_id = %(database)s and coalesce(s.id = %(number)s, true)
), of_schema as (
    select coalesce((select told ->> 'schema_name' from last where table_id = 0), d.schema_name) as name
    from anabranch.databases d where d.id = %(database)s
), triggers as (
    select t.tgrelid, pg_catalog.split_part(pg_catalog.encode(t.tgargs, 'escape'), '\\000', 2)::int as number
    from pg_catalog.pg_trigger t
    where t.tgfoid = 'anabranch.capture_truncate()'::pg_catalog.regprocedure and t.tgname = '~anabranch_truncate'
      and pg_catalog.split_part(pg_catalog.encode(t.tgargs, 'escape'), '\\000', 1) = (%(database)s::int)::text
), found as (
    select r.*, n.nspname, c.relname, c.oid,
           case when r.shape ->> 'seen' = anabranch.seen_of(c.oid) and r.sql_name = c.relname
                     and r.relation = c.oid::int8 and not r.shape ? 'refused'
                then null else anabranch.shape_of(c.oid) end as has
    from on_record r cross join of_schema o
    left join triggers t on t.number = r.number
    left join pg_catalog.pg_namespace own on own.nspname = o.name
    left join pg_catalog.pg_class named
        on named.relnamespace = own.oid and named.relname = r.sql_name and named.relkind = 'r'
        and not exists (select from triggers o where o.tgrelid = named.oid and o.number <> r.number)
    left join pg_catalog.pg_class c on c.oid = coalesce(t.tgrelid, named.oid)
    left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
)
select f.number, f.sql_name, f.shape, f.dropped, f.marker, f.nspname, f.relname, f.oid::int8,
       coalesce(f.has, anabranch.shape_of(f.oid)), f.same,
       o.name, exists (select from pg_catalog.pg_namespace x where x.nspname = o.name)
from (
    select f.*, f.oid is not null and f.has is null or coalesce(
        case when f.shape ? 'refused' then true else f.relation = f.oid::int8 end
        and anabranch.is_on_record(f.shape, f.sql_name, f.oid, f.relname, f.has), false) as same
    from found f
) f cross join of_schema o
where case when f.oid is null then not f.dropped else f.dropped <> (f.nspname <> o.name) or not f.same end
order by f.number
"""

# An image begins with the number of its columns.
_WAITING: LiteralString = """
select id, ('x' || pg_catalog.encode(pg_catalog.substring(coalesce(new, old), 1, 4), 'hex'))::bit(32)::int
from anabranch.captured where database_id = %s and table_id = %s and type <> 4 and id > %s order by id
"""
_IMAGE: LiteralString = "select coalesce(new, old) from anabranch.captured where database_id = %s and id = %s"
_MARK: LiteralString = """
insert into anabranch.captured (database_id, table_id, xid, type, depth, new)
values (%(database)s, %(table)s, pg_catalog.pg_current_xact_id(), 4, 1,
        pg_catalog.convert_to((%(told)s::jsonb)::text, 'UTF8'))
"""
_count_of = struct.Struct(">i").unpack_from
_field_of = struct.Struct(">Ii").unpack_from
_REWRITTEN = 2
"""As of a column's default or expression: no column has other values that its type or expression does not tell."""


def notice(conn: Connection, database: Database, number: int | None = None) -> bool:
    """Compare the tables of a database with their shapes on record (the last marker's that waits, else that of the
    registration), and write a marker for each that differs. Whether there was one. Cheap enough for each group
    where nothing differs. Where event triggers are installed it finds only what these missed. ``number``: of one table
    alone.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    rows = [
        _Different(*row) for row in conn.execute(_DIFFERENT, {"database": database.id, "number": number}).fetchall()
    ]
    moved = {row.now_in for row in rows if row.oid and not row.schema_there}
    if len(moved) == 1:
        # The schema itself has another name.
        [schema_name] = moved
        _mark(conn, database.id, 0, {"schema_name": schema_name, "tag": ""})
        rows = [row for row in (replace(row, schema_name=str(schema_name)) for row in rows) if row.differs]
    for row in rows:
        told: dict[str, Any] = {"sql_name": row.name_now or row.sql_name, "relation": row.oid or 0, "shape": row.has}
        if row.oid is None or row.now_in != row.schema_name:
            told["dropped"] = True
        elif row.has is not None:
            placed, ambiguous = _placed(conn, database.id, row)
            told |= {"before_id": placed, "ambiguous": ambiguous, "rewritten": _REWRITTEN}
        _mark(conn, database.id, row.number, told)
    return bool(rows or len(moved) == 1)


@dataclass(frozen=True)
class _Different:
    """A table that is not as it is on record. ``marker``: its last marker that waits, 0 where none does. ``same``: all
    is so but the schema."""

    number: int
    sql_name: str
    shape: dict[str, Any] | None
    dropped: bool
    marker: int
    now_in: str | None
    name_now: str | None
    oid: int | None
    has: dict[str, Any] | None
    same: bool
    schema_name: str
    schema_there: bool

    @property
    def differs(self) -> bool:
        """Whether it still does."""
        if self.oid is None:
            return not self.dropped
        return self.dropped != (self.now_in != self.schema_name) or not self.same


def _mark(conn: Connection, database_id: int, number: int, told: dict[str, Any]) -> None:
    conn.execute(_MARK, {"database": database_id, "table": number, "told": Jsonb(told)})


def _placed(conn: Connection, database_id: int, row: _Different) -> tuple[int, str]:
    """The number before which images of the table are older, and why that is not known, "" where it is."""
    assert row.has is not None
    found = conn.execute(_WAITING, (database_id, row.number, row.marker)).fetchall()
    ids = [number for number, _ in found]
    if not ids:
        # Whatever comes was captured after it.
        return row.marker + 1, ""
    if row.shape is None:
        return ids[0], "it was altered, and captured changes of it wait whose columns nobody wrote down"
    was, now = Shape.from_json(row.shape), Shape.from_json(row.has)
    first: int | None = len(ids)
    if _types(was) != _types(now):
        first = _first_newer(conn, database_id, ids, _types(was), _types(now))
    elif [c.number for c in was.columns] != [c.number for c in now.columns]:
        return ids[0], "it was altered, and captured changes of it wait that may be older or newer"
    counts = [count for _, count in found]
    if first is None or counts != [len(was.columns)] * first + [len(now.columns)] * (len(ids) - first):
        return ids[0], "it was altered more than once, and captured changes of it wait"
    return (ids[first - 1] + 1 if first else row.marker + 1), ""


def _types(shape: Shape) -> list[int]:
    return [column.oid for column in columns_of(shape)]


def _first_newer(
    conn: Connection, database_id: int, ids: Sequence[int], was: Sequence[int], now: Sequence[int]
) -> int | None:
    """The place of the first image that is of the new types; None where one is of neither. Those before it are older:
    a few looks find it among many."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        [(image,)] = conn.execute(_IMAGE, (database_id, ids[middle])).fetchall()
        found = _oids(bytes(image))
        if found == list(now):
            high = middle
        elif found == list(was):
            low = middle + 1
        else:
            return None
    return low


def _oids(image: bytes) -> list[int]:
    """The types of a captured row's columns (see ``capture.rows``)."""
    (count,) = _count_of(image)
    found, at = [], 4
    for _ in range(count):
        oid, size = _field_of(image, at)
        found.append(oid)
        at += 8 + max(size, 0)
    return found
