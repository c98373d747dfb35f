"""The changes of a table that are captured, but in no group yet: with these undone, the table is as the log has it at
the head.

A row's undrained changes are a chain of images, each one's end the next one's beginning, whatever the order in which
they were captured. So the image that begins it is the one that is an end less often than a beginning; where there is
none, the chain has come back to where it began. A key that an update changed ends one row and begins another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from anabranch.errors import ServerError
from anabranch.store.capture.growth import growing_columns, image_growth
from anabranch.store.capture.rows import decode
from anabranch.store.catalog.databases import Database
from anabranch.store.cells.binary_cells import Row
from anabranch.store.log.history import SeenGroup
from anabranch.store.session.binary import Connection, run
from anabranch.store.session.engine import AsyncSession
from anabranch.values import Table, key_text
from anabranch.values.canonical import RowEncoder
from anabranch.values.postgres_binary import int8

MOST = 20_000
"""The most changes that are undone; with more of them the caller waits for the drain."""
MOST_BYTES = 64 * 2**20
"""The most bytes of images that are undone; with more of them the caller waits for the drain."""

NEWEST = """
select table_id::int8, max(id) from anabranch.captured where database_id = $1::int8::int group by table_id
"""
"""$1 database: the newest change that waits, of each table that has one."""

_DRAINED = """
select h.position, h.chain,
       (select chain from anabranch.groups where database_id = %(database)s and position = %(shown)s limit 1),
       (select floor_ms from anabranch.databases where id = %(database)s)
from (select position, chain from anabranch.groups where database_id = %(database)s order by position desc limit 1) h
where not exists (
    select from anabranch.captured where database_id = %(database)s and table_id = %(table)s and id <= %(newest)s
)
"""

# Sizes are known without reading values that are stored out of line.
_SIZE = b"""
select count(*), coalesce(sum(coalesce(octet_length(old), 0) + coalesce(octet_length(new), 0)), 0)::int8
from (
    select old, new from anabranch.captured
    where database_id = $1::int8::int and table_id = $2::int8::int and type <> 4 limit $3::int8
) c
"""

_WAITING = b"""
select old, new from anabranch.captured
where database_id = $1::int8::int and table_id = $2::int8::int and type <> 4 limit $3::int8
"""


class UndrainedError(ServerError):
    """More than ``MOST`` changes of the table wait for the resolver, or more than ``MOST_BYTES``, or such as can't be
    undone: the caller may ask again when the resolver has drained them."""

    REASON = "UNAVAILABLE"

    def __init__(self, table: str, why: str = "") -> None:
        too_many = f"more than {MOST} changes of {table!r}, or {MOST_BYTES >> 20} MiB, wait for the resolver"
        super().__init__(why or too_many)


class OtherHistoryError(ServerError):
    """The history lacks a position that was read before: the server was restored meanwhile."""

    REASON = "UNAVAILABLE"


async def head_when_drained(
    conn: AsyncSession, database_id: int, table_id: int, newest: int, shown: SeenGroup
) -> SeenGroup | None:
    """Position and chain of the head, where no change of the table up to the number ``newest`` waits any more.
    ``shown`` is the moment in which those were seen.

    Raises:
        OtherHistoryError: the history does not have that moment.
        psycopg.Error: it can't be looked at.
    """
    parameters = {"database": database_id, "table": table_id, "newest": newest, "shown": shown.position}
    row = await (await conn.execute(_DRAINED, parameters)).fetchone()
    if row is None:
        return None
    head, chain, found, floor = row
    if shown.is_lost(found, floor, head):
        raise OtherHistoryError
    return SeenGroup(head, bytes(chain))


@dataclass
class _Ends:
    """The images of one row by their hashes (None: no row), and how often each begins a change and ends one."""

    images: dict[int | None, Row | None] = field(default_factory=dict)
    surplus: Counter[int | None] = field(default_factory=Counter)


def rows_before(conn: Connection, database: Database, table: Table) -> dict[str, Row | None]:
    """The rows of ``table`` that undrained changes have touched, by key text, as they were before these; None where
    there was none. Rows that are again as they were are left out. Must be called inside a transaction of one moment.

    Raises:
        UndrainedError: there are too many.
        UndecodableError: the table is no longer what it was when it was registered.
        psycopg.Error: Postgres refused it.
    """
    wanted = [int8(database.id), int8(table.id), int8(MOST + 1)]
    [(count, size)] = run(conn, _SIZE, wanted).fetchall()
    if count > MOST or size > MOST_BYTES:
        raise UndrainedError(table.name)
    changes = run(conn, _WAITING, wanted).fetchall() if count else []
    raws = [raw for change in changes for raw in change]
    places = growing_columns([table]).get(table.id)
    if places is not None and size + sum([image_growth(raw, places) for raw in raws if raw is not None]) > MOST_BYTES:
        raise UndrainedError(table.name)
    decoded = iter(decode(conn, database.schema_name, table, [raw for raw in raws if raw is not None]))
    rows = [None if raw is None else next(decoded) for raw in raws]
    return undone(table, zip(rows[::2], rows[1::2], strict=True))


def undone(table: Table, changes: Iterable[tuple[Row | None, Row | None]]) -> dict[str, Row | None]:
    """The rows that ``changes`` touch, each given by the row before and after it, as they were before all of these.
    Rows that are again as they were are left out."""
    hash_of = RowEncoder(table).hash
    found: dict[str, _Ends] = {}
    for old, new in changes:
        was, became = (None if row is None else key_text([row[i] for i in table.key_index]) for row in (old, new))
        for key in {was, became} - {None}:
            ends = found.setdefault(str(key), _Ends())
            for row, of_key, step in ((old, was == key, 1), (new, became == key, -1)):
                image = row if of_key else None
                name = None if image is None else hash_of(image)
                ends.images[name] = image
                ends.surplus[name] += step
    return {
        key: ends.images[name] for key, ends in found.items() for name, surplus in ends.surplus.items() if surplus > 0
    }
