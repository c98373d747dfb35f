"""Readers' sets, as the snapshot asks for them: what membership queries give a principal at a position and behind it,
what groups changed of many principals, and the sums of the audiences of a set.

A set is that of the head with the changes behind a position undone. Head and changes come from one statement, and with
them the schema version, which moves with every change of the rules: a set is of no use beside rules of another version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from anabranch.store.audiences.principals import Change, learn
from anabranch.store.catalog.databases import Database, aload_database
from anabranch.store.session import binary
from anabranch.store.session.engine import AsyncSession
from anabranch.store.session.own_locks import WAIT_FOR_CLAIM
from anabranch.store.session.steps import arun
from anabranch.values import postgres_binary

MEMBERSHIPS = b"""
select d.schema_version, p.principal is not null,
       case when row_number() over (order by c.position desc nulls last) = 1 then p.memberships end,
       c.position, c.gained, c.lost, p.seen_ms
from anabranch.databases d
left join anabranch.principals p on p.database_id = d.id and p.principal = $2::text
left join anabranch.audience_changes c
    on c.database_id = d.id and c.principal = p.principal and c.position > $3::int8
where d.id = $1::int8
order by c.position desc nulls last
"""
"""$1 database, $2 principal, $3 position: what queries give the principal at the head, and the changes behind the
position, the last one first."""

CHANGES = b"""
select position, principal, gained, lost from anabranch.audience_changes
where database_id = $1::int8 and position > $2::int8 and position <= $3::int8
"""

SHARE = b"""
select (select coalesce(sum(row_count), 0) from anabranch.audience_sums
        where table_id = any($1::int8[]::int[]) and audience = any($2::text[]))::int8,
       (select coalesce(sum(row_count), 0) from anabranch.table_sums where table_id = any($1::int8[]::int[]))::int8
"""
"""$1 tables, $2 audiences: how many of the tables' rows are of these, and how many there are."""

KNOWN = b"""
select principal from anabranch.principals where database_id = $1::int8 and principal = any($2::text[])
"""


@dataclass(frozen=True, slots=True)
class Memberships:
    """The audiences that queries give a principal: ``audiences`` at a position, and the ``changes`` behind it up to the
    head, by position in order. Behind ``learned_ms`` these are all changes; of earlier ones nothing is known."""

    audiences: frozenset[str]
    changes: Mapping[int, Change]
    schema_version: int
    learned_ms: int = 0

    @property
    def at_head(self) -> frozenset[str]:
        """The audiences at the head."""
        audiences = self.audiences
        for change in self.changes.values():
            audiences = apply(audiences, change)
        return audiences


def is_scoped(database: Database) -> bool:
    """Whether readers of the database don't all see the same: it has restricted tables, or rules that were made for
    some, of whose rows the log may still tell."""
    return bool(database.restricted or database.audience_rules or database.was_restricted)


def apply(audiences: frozenset[str], change: Change) -> frozenset[str]:
    """The audiences after a change."""
    return (audiences - change.lost) | change.gained


def memberships_of(rows: Sequence[tuple[Any, ...]]) -> Memberships | None:
    """Read the rows of MEMBERSHIPS; None for a principal that is not known, or a database that is gone."""
    if not rows or not rows[0][1]:
        return None
    audiences = frozenset(rows[0][2])
    changes: dict[int, Change] = {}
    for _, _, _, position, gained, lost, _ in rows:
        if position is not None:
            changes[position] = Change(frozenset(gained), frozenset(lost))
            audiences = (audiences - changes[position].gained) | changes[position].lost
    return Memberships(audiences, dict(reversed(changes.items())), rows[0][0], rows[0][6])


async def read_memberships(conn: AsyncSession, database_id: int, principal: str, position: int) -> Memberships | None:
    """The audiences that queries give a principal at ``position`` and behind it; None where it was never learned.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    return memberships_of(await _rows(conn, MEMBERSHIPS, _of_principal(database_id, principal, position)))


def memberships_now(conn: binary.Connection, database_id: int, principal: str) -> frozenset[str] | None:
    """The audiences that queries give a principal in the moment of this transaction; None where it was never learned.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    found = memberships_of(binary.run(conn, MEMBERSHIPS, _of_principal(database_id, principal, 2**62)).fetchall())
    return None if found is None else found.audiences


async def read_changes(
    conn: AsyncSession, database_id: int, after: int, up_to: int
) -> Mapping[int, Mapping[str, Change]]:
    """How groups behind ``after`` up to ``up_to`` changed what queries give: by position and principal.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    parameters = [postgres_binary.int8(number) for number in (database_id, after, up_to)]
    changes: dict[int, dict[str, Change]] = {}
    for position, principal, gained, lost in await _rows(conn, CHANGES, parameters):
        changes.setdefault(position, {})[principal] = Change(frozenset(gained), frozenset(lost))
    return changes


async def read_known(conn: AsyncSession, database_id: int, principals: Collection[str]) -> set[str]:
    """Those of ``principals`` that are known: groups say how the audiences of these change, and of no others.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    wanted = postgres_binary.text_array(list(principals), "principal")
    return {name for (name,) in await _rows(conn, KNOWN, [postgres_binary.int8(database_id), wanted])}


async def read_share(conn: AsyncSession, table_ids: Collection[int], audiences: Collection[str]) -> float:
    """The share of the rows of restricted tables that are of some audiences, about: a row may be of several. 1 where
    there are no rows.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    tables = postgres_binary.int8_array(list(table_ids))
    [(own, every)] = await _rows(conn, SHARE, [tables, postgres_binary.text_array(sorted(audiences), "audience")])
    return own / every if every else 1.0


async def learn_principal(conn: AsyncSession, database: Database, principal: str, now_ms: int) -> bool:
    """Have what queries give a principal evaluated and kept, under the database's claim; ``now_ms``, in milliseconds
    since 1970, is when it was seen. False: the rules have changed since ``database`` was read, and nothing was done.

    Raises:
        UnknownDatabaseError: there is no such database any more.
        psycopg.Error: Postgres refused it, or a query no longer fits its tables.
    """
    async with conn.transaction():
        await _rows(conn, WAIT_FOR_CLAIM, [postgres_binary.int8(database.id)])
        # The rules change under the claim: these are the ones that hold.
        current = await aload_database(conn, database.name)
        if current.id != database.id or current.schema_version != database.schema_version:
            return False
        await arun(conn, learn(current, [principal], now_ms))
    return True


def _of_principal(database_id: int, principal: str, position: int) -> list[postgres_binary.Parameter]:
    return [postgres_binary.int8(database_id), postgres_binary.text(principal), postgres_binary.int8(position)]


async def _rows(
    conn: AsyncSession, statement: bytes, parameters: Iterable[postgres_binary.Parameter]
) -> list[tuple[Any, ...]]:
    cursor: psycopg.AsyncRawCursor[tuple[Any, ...]] = psycopg.AsyncRawCursor(conn)
    binary.adapt(cursor.adapters)
    await cursor.execute(statement, list(parameters), prepare=True, binary=True)
    return await cursor.fetchall()
