"""Reads the log: stretches of it, in order, that stop at a number of bytes wherever that falls.

The log is read as one sequence of *items*: of each batch first its effects, then the values that lost because of it.
A *cursor* is the place of the next item to read; it may lie inside a group, inside a batch, and inside the bytes of one
effect, so that nothing is too large to be read in parts.

Head, items and the groups' own rows come from one statement and so from one moment: what it sees of a group is all of
it, and nothing can appear at or below the head any more. The floor is read by a later statement, because rows at or
below the floor may go at any time: items count only if the floor, read after them, still lies below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import psycopg

from anabranch.store import binary
from anabranch.store.engine import AsyncPool, AsyncSession, SessionOptions, async_pool
from anabranch.store.seal import EMPTY_CHAIN

MOST_ITEMS = 2_000
"""Items of one stretch."""
EFFECT_OVERHEAD_BYTES = 100
LOSER_OVERHEAD_BYTES = 250
"""What an item counts for beside its content: names and ids that travel with it."""
MOST_LOSING_VALUE_BYTES = 64 * 1024
"""A losing value above it is left out of a stretch; the conflict itself is not."""

_LOSERS_FROM = 1 << 30
"""Ordinals from here on are those of a batch's losers, in a cursor."""
_AFTER_ALL_IDS = "~"
"""Sorts after every batch id in the collation "C"."""


class Cursor(NamedTuple):
    """The place of the next item. ``offset`` counts bytes of that item's effect that were read already."""

    position: int
    batch_id: str
    ordinal: int
    offset: int

    @property
    def least_needed(self) -> int:
        """The smallest position whose rows a reader at this place still needs."""
        return self.position + 1 if self.batch_id == _AFTER_ALL_IDS else self.position

    @property
    def between_groups(self) -> bool:
        """Whether every group that was begun has been read to its end."""
        return self.batch_id == _AFTER_ALL_IDS


def after(position: int) -> Cursor:
    """The place behind everything at ``position``."""
    return Cursor(position, _AFTER_ALL_IDS, 0, 0)


@dataclass(frozen=True, slots=True)
class Loser:
    """A value that lost. ``value`` is a serialized ``anabranch.v1.Value``, None where it was left out for its size;
    ``column`` is "" where a whole row lost."""

    table_id: int
    key: str
    column: str
    value: bytes | None
    batch_id: str
    node_id: str
    winner_batch_id: str


@dataclass(frozen=True, slots=True)
class Item:
    """An effect (serialized bytes, or a part of them) or a loser of a batch."""

    position: int
    batch_id: str
    node_id: str
    content: bytes | Loser


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """A group that a stretch completes. ``sums`` are serialized ``anabranch.v1.TableSum``."""

    chain: bytes
    sums: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one read gave.

    ``items`` in order; ``ends`` the groups completed, by position; ``effect_incomplete``: the last item is an effect
    that goes on; ``end`` the cursor for the next read. ``reached`` is the last position of which nothing is missing,
    and ``chain`` its chain, None where the log has no group at the position that the read started from. ``exhausted``:
    nothing more was there up to where the read was to stop, ``at_head``: nothing more at all. ``known_base``: the log
    has a group at ``base``, or ``base`` is 0 or the floor.
    """

    items: Sequence[Item]
    ends: dict[int, GroupEnd]
    effect_incomplete: bool
    end: Cursor
    reached: int
    chain: bytes | None
    exhausted: bool
    at_head: bool
    head: int
    head_chain: bytes
    known_base: bool
    epoch: str
    floor: int
    schema_version: int


STRETCH = f"""
select h.position, h.chain, b.chain,
       i.position, i.batch_id, i.kind, i.ordinal, i.node_id, i.content, i.more, i.next_position, g.chain, g.sums,
       i.table_id, i.key, i.column_name, i.losing_batch, i.losing_node, i.winning_batch
from (select 1) one
left join lateral (
    select position, chain from anabranch.groups where database_id = $1::int8 order by position desc limit 1
) h on true
left join lateral (
    select chain from anabranch.groups where database_id = $1::int8 and position = $2::int8
) b on true
left join lateral (
    select number, position, batch_id, kind, ordinal, node_id, next_position, table_id, key, column_name, losing_batch,
           losing_node, winning_batch,
           case when number = 1 and kind = 0 then substring(content from $6::int8::int + 1 for $9::int8::int)
                else content end as content,
           number = 1 and kind = 0 and bytes - $6::int8 > $9::int8 as more
    from (
        select e.*, row_number() over w as number, sum(bytes + overhead) over w as total,
               lead(position) over w as next_position
        from (
            (select position, batch_id, 0 as kind, ordinal, node_id, effect as content, octet_length(effect) as bytes,
                    {EFFECT_OVERHEAD_BYTES} as overhead, table_id, key, '' as column_name, '' as losing_batch,
                    '' as losing_node, '' as winning_batch
             from anabranch.log
             where database_id = $1::int8 and (position, batch_id, ordinal) >= ($3::int8, $4::text, $5::int8)
               and position <= least(h.position, $8::int8)
             order by position, batch_id, ordinal limit {MOST_ITEMS + 1})
            union all
            (select position, batch_id, 1, ordinal,
                    case when winning_batch = batch_id then winning_node else losing_node end,
                    case when octet_length(losing_value) <= {MOST_LOSING_VALUE_BYTES} then losing_value end,
                    case when octet_length(losing_value) <= {MOST_LOSING_VALUE_BYTES} then octet_length(losing_value)
                         else 0 end,
                    {LOSER_OVERHEAD_BYTES} + 2 * octet_length(key), table_id, key, column_name, losing_batch,
                    losing_node, winning_batch
             from anabranch.conflicts
             where database_id = $1::int8 and (position, batch_id, ordinal) >= ($3::int8, $4::text, $7::int8)
               and position <= least(h.position, $8::int8)
             order by position, batch_id, ordinal limit {MOST_ITEMS + 1})
            order by position, batch_id, kind, ordinal limit {MOST_ITEMS + 1}
        ) e
        window w as (order by position, batch_id, kind, ordinal)
    ) numbered
    where number = 1 or (number <= {MOST_ITEMS} and total - $6::int8 <= $9::int8)
) i on true
left join lateral (
    -- Looked for only where a group ends: for other items the key is NULL.
    select chain, sums from anabranch.groups
    where database_id = $1::int8
      and position = case when i.next_position is distinct from i.position and not i.more then i.position end
) g on true
order by i.number
""".encode()
"""$1 database; $2 the position that is read to its end; $3 to $7 the cursor: position, batch, ordinal of an effect,
offset, ordinal of a loser; $8 where to stop; $9 bytes. Sizes are known without reading the content."""

FLOOR = b"""
select epoch, floor_ms, schema_version from anabranch.databases where id = $1::int8
"""

SUMS = b"""
select coalesce(h.position, 0), h.chain, d.epoch, d.floor_ms, d.schema_version, t.name, s.row_count, s.row_hash
from anabranch.databases d
left join lateral (
    select position, chain from anabranch.groups where database_id = d.id order by position desc limit 1
) h on true
left join anabranch.synced_tables t on t.database_id = d.id
left join anabranch.table_sums s on s.table_id = t.id
where d.id = $1::int8
order by t.name
"""

SEEN = b"""
select coalesce((select max(position) from anabranch.groups where database_id = $1::int8), 0),
       (select chain from anabranch.groups where database_id = $1::int8 and position = $2::int8)
"""

NO_LIMIT = 2**63 - 1
"""Reads to the head."""

_PLANNING = MappingProxyType(
    {
        # Plans are kept for the life of a session, also those that were made while the log was empty: the planner is
        # left no way but by key.
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }
)


class UnknownDatabaseError(LookupError):
    """The database is gone."""


def log_pool(url: str, *, max_size: int, statement_timeout_ms: int) -> AsyncPool:
    """A pool, not yet open, of sessions for the functions here."""
    return async_pool(
        url,
        application_name="anabranch-snapshot-log",
        max_size=max_size,
        autocommit=True,
        options=SessionOptions(statement_timeout_ms=statement_timeout_ms, settings=_PLANNING),
    )


def _cursor(conn: AsyncSession) -> psycopg.AsyncRawCursor[tuple[Any, ...]]:
    cursor: psycopg.AsyncRawCursor[tuple[Any, ...]] = psycopg.AsyncRawCursor(conn)
    binary.adapt(cursor.adapters)
    return cursor


async def read_stretch(
    conn: AsyncSession, database_id: int, base: int, cursor: Cursor, *, max_bytes: int, up_to: int = NO_LIMIT
) -> Stretch:
    """The items from ``cursor`` on, of positions up to ``up_to``.

    ``base`` is the last position of which the reader misses nothing. ``max_bytes`` bounds the contents with their
    overheads; the first item is always given, an effect larger than ``max_bytes`` in part.

    Raises:
        UnknownDatabaseError: there is no such database any more.
        psycopg.Error: what Postgres refused.
    """
    parameters = [
        binary.int8(database_id),
        binary.int8(base),
        binary.int8(cursor.position),
        binary.text(cursor.batch_id),
        binary.int8(min(cursor.ordinal, _LOSERS_FROM)),
        binary.int8(cursor.offset),
        binary.int8(max(0, cursor.ordinal - _LOSERS_FROM)),
        binary.int8(up_to),
        binary.int8(max_bytes),
    ]
    async with conn.pipeline():
        stretch, floor = _cursor(conn), _cursor(conn)
        await stretch.execute(STRETCH, parameters, prepare=True, binary=True)
        # A statement of its own sees what was committed while the first one ran.
        await floor.execute(FLOOR, parameters[:1], prepare=True, binary=True)
        rows = await stretch.fetchall()
        state = await floor.fetchone()
    if state is None:
        raise UnknownDatabaseError(f"database number {database_id} is gone")
    return _stretch(rows, state, base, cursor, up_to)


def _stretch(rows: Sequence[tuple[Any, ...]], state: tuple[Any, ...], base: int, cursor: Cursor, up_to: int) -> Stretch:
    epoch, floor, schema_version = state
    head, head_chain, base_chain = rows[0][:3]
    head, head_chain = (0, EMPTY_CHAIN) if head is None else (head, head_chain)
    chain: bytes | None = EMPTY_CHAIN if base == 0 else base_chain
    known_base = chain is not None or base == floor
    items: list[Item] = []
    ends: dict[int, GroupEnd] = {}
    reached, more, next_position = base, False, None
    for row in rows if rows[0][3] is not None else ():
        _, _, _, position, batch_id, kind, ordinal, node_id, content, more, next_position, group_chain, sums = row[:13]
        items.append(Item(position, batch_id, node_id, _loser(row, content) if kind else content))
        if group_chain is not None:
            ends[position] = GroupEnd(group_chain, sums)
            reached, chain = position, group_chain
    exhausted = not more and next_position is None
    at_head = exhausted and head <= up_to
    if more:
        end = Cursor(position, batch_id, ordinal, (0 if items[:-1] else cursor.offset) + len(content))
    elif next_position is None:
        end = after(max(min(head, up_to), cursor.position))
    elif next_position == position:
        end = Cursor(position, batch_id, ordinal + 1 + (_LOSERS_FROM if kind else 0), 0)
    else:
        end = after(position)
    if at_head and head > reached:
        reached, chain = head, head_chain
    return Stretch(
        items,
        ends,
        bool(more),
        end,
        reached,
        chain,
        exhausted,
        at_head,
        head,
        head_chain,
        known_base,
        epoch,
        floor,
        schema_version,
    )


def _loser(row: tuple[Any, ...], value: bytes | None) -> Loser:
    table_id, key, column, losing_batch, losing_node, winning_batch = row[13:]
    return Loser(table_id, key, column, value, losing_batch, losing_node, winning_batch)


@dataclass(frozen=True, slots=True)
class SumRow:
    """The sum of a table: number of rows, and 16 bytes."""

    table: str
    count: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Sums:
    """The head and the sums of all tables at one moment."""

    head: int
    chain: bytes
    epoch: str
    floor: int
    schema_version: int
    rows: Sequence[SumRow]


async def read_sums(conn: AsyncSession, database_id: int) -> Sums:
    """The sums of all tables at the head.

    Raises:
        UnknownDatabaseError: there is no such database any more.
        psycopg.Error: what Postgres refused.
    """
    cursor = _cursor(conn)
    await cursor.execute(SUMS, [binary.int8(database_id)], prepare=True, binary=True)
    rows = await cursor.fetchall()
    if not rows:
        raise UnknownDatabaseError(f"database number {database_id} is gone")
    head, chain, epoch, floor, schema_version = rows[0][:5]
    sums = [SumRow(*row[5:]) for row in rows if row[6] is not None]
    return Sums(head, chain or EMPTY_CHAIN, epoch, floor, schema_version, sums)


async def read_seen(conn: AsyncSession, database_id: int, position: int) -> tuple[int, bytes | None]:
    """The head's position, and the chain of the group at ``position``, None where there is none."""
    cursor = _cursor(conn)
    await cursor.execute(SEEN, [binary.int8(database_id), binary.int8(position)], prepare=True, binary=True)
    row = await cursor.fetchone()
    assert row is not None
    return row[0], row[1]
