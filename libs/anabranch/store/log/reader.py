"""Reads the log: stretches of it, in order, that stop at a number of bytes wherever that falls.

The log is read as one sequence of *items*: of each batch first its effects, then the values that lost because of it.
A *cursor* is the place of the next item to read; it may lie inside a group, inside a batch, and inside the bytes of one
effect, so that nothing is too large to be read in parts.

Head, items and the groups' own rows come from one statement and so from one moment: it sees each group as a whole, and
nothing can appear at or below the head any more. The floor is read by a later statement, because rows at or below the
floor may go at any time: items count only if the floor, read after them, still lies below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import psycopg

from anabranch.store.catalog.databases import UnknownDatabaseError
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.reader_statements import AUDIENCE_STRETCH, AUDIENCE_SUMS, FLOOR, STRETCH, SUMS
from anabranch.store.log.seal import EMPTY_CHAIN
from anabranch.store.session import binary
from anabranch.store.session.engine import AsyncPool, AsyncSession, SessionOptions, async_pool
from anabranch.values import postgres_binary

_HEAD_BYTES = 65
"""So many bytes of an effect have the name of its table."""

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


class Scope(NamedTuple):
    """The audiences of an item's row before and after it, as far as the log says: None in a table that was open to
    everybody. ``type`` is that of an effect, an ``anabranch.v1.EffectType``, and ``head`` its first bytes, which name
    its table. ``goes_on``: the item is not the effect's beginning."""

    table_id: int
    key: str
    type: int
    before: Sequence[str] | None
    after: Sequence[str] | None
    head: bytes
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Item:
    """An effect (serialized bytes, or a part of them) or a loser of a batch. ``scope``: where it was asked for."""

    position: int
    batch_id: str
    node_id: str
    content: bytes | Loser
    scope: Scope | None = None


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """A group that a stretch completes. ``sums`` are serialized ``anabranch.v1.TableSum``."""

    chain: bytes
    sums: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The result of one read.

    ``items`` in order; ``ends`` the groups completed, by position; ``effect_incomplete``: the last item is an effect
    that goes on; ``end`` the cursor for the next read. ``reached`` is the last position of which nothing is missing,
    and ``chain`` its chain, None where the log has no group at the position that the read started from. ``exhausted``:
    there is nothing more up to the position where the read was to stop, ``at_head``: nothing more at all.
    ``known_base``: the log has a group at ``base``, or ``base`` is 0 or the floor. ``lost``: of the positions that this
    history must have, those that it lacks.
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
    lost: Sequence[SeenGroup]
    epoch: str
    floor: int
    schema_version: int


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
        await floor.execute(FLOOR, parameters[:1], prepare=True, binary=True)
        rows = await stretch.fetchall()
        state = await floor.fetchone()
    if state is None:
        raise UnknownDatabaseError(f"database number {database_id} is gone")
    return _stretch(rows, state, base, cursor, up_to, known, scoped)


def _stretch(
    rows: Sequence[tuple[Any, ...]],
    state: tuple[Any, ...],
    base: int,
    cursor: Cursor,
    up_to: int,
    known: Sequence[SeenGroup],
    scoped: bool,
) -> Stretch:
    epoch, floor, schema_version = state
    head, head_chain, base_chain = rows[0][:3]
    head, head_chain = (0, EMPTY_CHAIN) if head is None else (head, head_chain)
    lost = [one for one, found in zip(known, rows[0][19] or (), strict=True) if one.is_lost(found, floor, head)]
    chain: bytes | None = EMPTY_CHAIN if base == 0 else base_chain
    known_base = chain is not None or base == floor
    items: list[Item] = []
    ends: dict[int, GroupEnd] = {}
    reached, more, next_position = base, False, None
    for row in rows if rows[0][3] is not None else ():
        _, _, _, position, batch_id, kind, ordinal, node_id, content, more, next_position, group_chain, sums = row[:13]
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
    table_id, key, column, losing_batch, losing_node, winning_batch = row[13:19]
    return Loser(table_id, key, column, value, losing_batch, losing_node, winning_batch)


def _scope(row: tuple[Any, ...], content: bytes | None, *, goes_on: bool) -> Scope:
    table_id, key = row[13:15]
    kind, before, after, head = row[20:24]
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
