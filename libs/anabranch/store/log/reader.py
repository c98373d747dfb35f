"""Reads the log: stretches of it, in order, that stop at a number of bytes wherever that falls.

Head, items and the groups' own rows come from one statement and so from one moment: it sees each group as a whole, and
nothing can appear at or below the head any more. The floor is read by a later statement, because rows at or below the
floor may go at any time: items count only if the floor, read after them, still lies below. That statement also says
where schema changes are, which are read where a stretch has some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import psycopg

from anabranch.store.catalog.databases import UnknownDatabaseError
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.logged_changes import LoggedChange, cut_before, end_of_page, with_changes
from anabranch.store.log.reader_statements import (
    AUDIENCE_STRETCH,
    AUDIENCE_SUMS,
    CHANGES,
    FLOOR,
    MOST_CHANGES,
    STRETCH,
    SUMS,
)
from anabranch.store.log.seal import EMPTY_CHAIN
from anabranch.store.log.stretch import Cursor, GroupEnd, Item, Loser, Scope, Stretch, after
from anabranch.store.session import binary
from anabranch.store.session.engine import AsyncPool, AsyncSession, SessionOptions, async_pool
from anabranch.values import postgres_binary

_HEAD_BYTES = 65
"""So many bytes of an effect have the name of its table."""

_LOSERS_FROM = 1 << 30
"""Ordinals from here on are those of a batch's losers, in a cursor."""

NO_LIMIT = 2**63 - 1
"""Reads to the head."""

_PLANNING = MappingProxyType(
    {
        # Plans are kept for the life of a session, also those that were made while the log was empty: the planner may
        # look rows up by key only.
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }
)


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
    conn: AsyncSession,
    database_id: int,
    base: int,
    cursor: Cursor,
    *,
    max_bytes: int,
    up_to: int = NO_LIMIT,
    known: Sequence[SeenGroup] = (),
    scoped: bool = False,
) -> Stretch:
    """The items from ``cursor`` on, of positions up to ``up_to``; where they are ``scoped``, with whose rows they are.

    ``base`` is the last position of which the reader misses nothing. ``max_bytes`` bounds the contents with their
    overheads; the first item is always returned, an effect larger than ``max_bytes`` in part. ``known`` are the groups
    that the history must have, looked for at the very moment that is read.

    Raises:
        UnknownDatabaseError: there is no such database any more.
        psycopg.Error: Postgres refused it.
    """
    parameters = [
        postgres_binary.int8(database_id),
        postgres_binary.int8(base),
        postgres_binary.int8(cursor.position),
        postgres_binary.text(cursor.batch_id),
        postgres_binary.int8(min(cursor.ordinal, _LOSERS_FROM)),
        postgres_binary.int8(cursor.offset),
        postgres_binary.int8(max(0, cursor.ordinal - _LOSERS_FROM)),
        postgres_binary.int8(up_to),
        postgres_binary.int8(max_bytes),
        postgres_binary.int8_array([one.position for one in known]),
    ]
    async with conn.pipeline():
        stretch, floor = _cursor(conn), _cursor(conn)
        await stretch.execute(AUDIENCE_STRETCH if scoped else STRETCH, parameters, prepare=True, binary=True)
        # A statement of its own sees the commits made while the first one ran.
        looked_at = [parameters[0], postgres_binary.int8(cursor.least_needed), parameters[7]]
        await floor.execute(FLOOR, looked_at, prepare=True, binary=True)
    # Asked for inside, the answers would be waited for apart from the pipeline's end.
    rows = await stretch.fetchall()
    state = await floor.fetchone()
    if state is None:
        raise UnknownDatabaseError(f"database number {database_id} is gone")
    *state_then, positions, sizes = state
    found = _stretch(rows, state_then, base, cursor, up_to, known, scoped)
    if not positions or positions[0] > found.end.position:
        return found
    waiting = {at: size for at, size in zip(positions, sizes, strict=True) if at <= found.end.position}
    end = end_of_page(found, waiting, max_bytes, most=MOST_CHANGES)
    if end is not None:
        found, waiting = cut_before(found, end), {at: size for at, size in waiting.items() if at < end}
    return await _with_changes(conn, database_id, found, waiting)


async def _with_changes(conn: AsyncSession, database_id: int, found: Stretch, positions: Iterable[int]) -> Stretch:
    cursor = _cursor(conn)
    wanted = [postgres_binary.int8(database_id), postgres_binary.int8_array(list(positions))]
    await cursor.execute(CHANGES, wanted, prepare=True, binary=True)
    rows = await cursor.fetchall()
    if not rows:
        raise UnknownDatabaseError(f"database number {database_id} is gone")
    return with_changes(found, rows[0][0], [LoggedChange(*row[1:]) for row in rows])


def _stretch(
    rows: Sequence[tuple[Any, ...]],
    state: Sequence[Any],
    base: int,
    cursor: Cursor,
    up_to: int,
    known: Sequence[SeenGroup],
    scoped: bool,
) -> Stretch:
    epoch, floor, schema_version = state
    head, head_chain, base_chain = rows[0][:3]
    head, head_chain = (0, EMPTY_CHAIN) if head is None else (head, head_chain)
    lost = [one for one, found in zip(known, rows[0][20] or (), strict=True) if one.is_lost(found, floor, head)]
    chain: bytes | None = EMPTY_CHAIN if base == 0 else base_chain
    known_base = chain is not None or base == floor
    items: list[Item] = []
    ends: dict[int, GroupEnd] = {}
    reached, more, next_position = base, False, None
    for row in rows if rows[0][3] is not None else ():
        position, batch_id, kind, ordinal, node_id, content, more, next_position, group_chain, sums = row[3:13]
        scope = _scope(row, content, goes_on=not items and cursor.offset > 0) if scoped else None
        items.append(Item(position, batch_id, node_id, _loser(row, content) if kind else content, scope))
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
        lost,
        epoch,
        floor,
        schema_version,
    )


def _loser(row: tuple[Any, ...], value: bytes | None) -> Loser:
    table_id, key, column, losing_batch, losing_node, winning_batch, cause = row[13:20]
    return Loser(table_id, key, column, value, losing_batch, losing_node, winning_batch, cause)


def _scope(row: tuple[Any, ...], content: bytes | None, *, goes_on: bool) -> Scope:
    table_id, key = row[13:15]
    kind, before, after, head = row[21:25]
    return Scope(table_id, key, kind, before, after, head or (content or b"")[:_HEAD_BYTES], goes_on)


@dataclass(frozen=True, slots=True)
class LoggedSum:
    """The sum of a table, or of the rows of an audience of a restricted one: number of rows, and 16 bytes. It has been
    so since ``position``. One of a whole table that is ``restricted`` is for no device."""

    table: str
    count: int
    hash: bytes
    position: int
    audience: str = ""
    restricted: bool = False


@dataclass(frozen=True, slots=True)
class Sums:
    """The head and the sums of all tables at one moment."""

    head: int
    chain: bytes
    epoch: str
    floor: int
    schema_version: int
    rows: Sequence[LoggedSum]

    @property
    def open_rows(self) -> list[LoggedSum]:
        """Those of tables whose every row every device sees."""
        return [row for row in self.rows if not row.restricted]


async def read_sums(conn: AsyncSession, database_id: int) -> Sums:
    """The sums of all tables at the head.

    Raises:
        UnknownDatabaseError: there is no such database any more.
        psycopg.Error: Postgres refused it.
    """
    cursor = _cursor(conn)
    await cursor.execute(SUMS, [postgres_binary.int8(database_id)], prepare=True, binary=True)
    rows = await cursor.fetchall()
    return sums_of(database_id, rows)


def sums_of(database_id: int, rows: Sequence[tuple[Any, ...]]) -> Sums:
    """Read the rows of the statement SUMS.

    Raises:
        UnknownDatabaseError: there are no rows, so no such database.
    """
    if not rows:
        raise UnknownDatabaseError(f"database number {database_id} is gone")
    head, chain, epoch, floor, schema_version = rows[0][:5]
    sums = [LoggedSum(*row[5:]) for row in rows if row[6] is not None]
    return Sums(head, chain or EMPTY_CHAIN, epoch, floor, schema_version, sums)


async def read_audience_sums(conn: AsyncSession, database_id: int, audiences: Iterable[str]) -> list[LoggedSum]:
    """The sums of the rows of some audiences at the head, of all restricted tables. One that is not listed has no rows.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    cursor = _cursor(conn)
    wanted = postgres_binary.text_array(sorted(audiences), "audience")
    await cursor.execute(AUDIENCE_SUMS, [postgres_binary.int8(database_id), wanted], prepare=True, binary=True)
    return [LoggedSum(*row) for row in await cursor.fetchall()]
