"""Check whether a position that a node has seen lies in a database's history, and end the epoch where it does not.

The server recognises its own positions of any epoch by their seals: the key outlives epochs. A position that it sealed
and that its history does not have was lost: the server was restored from a backup. A seal that does not fit proves
nothing, except where a database's rows were moved into another Postgres cluster.

Only the primary can confirm a contradiction. ``look_again`` does so as far as nothing has to be written: a seal that
does not fit stays one that does not fit, and a position whose epoch has ended for its like moves none. So what a caller
presents costs its database nothing, however often it does so. ``confirm`` ends an epoch, under the database's claim, so
that no group is committed meanwhile, and at most once for the lost positions. Its statements commit together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

import psycopg

from anabranch.store.log.seal import EMPTY_CHAIN, chain_of
from anabranch.store.session import binary
from anabranch.store.session.channels import CATALOG_CHANNEL
from anabranch.store.session.engine import AsyncSession
from anabranch.store.session.own_locks import WAIT_FOR_CLAIM
from anabranch.values import postgres_binary

HISTORY = b"""
select d.epoch, d.floor_ms, d.seal_key, d.system_identifier, coalesce(h.position, 0), h.chain
from anabranch.databases d
left join lateral (
    select x.position, x.chain from anabranch.groups x where x.database_id = d.id order by x.position desc limit 1
) h on true
where d.id = $1::int8
"""
CHAINS = b"""
select q.position, g.chain
from unnest($2::int8[]) q(position)
cross join lateral (
    select x.chain from anabranch.groups x where x.database_id = $1::int8 and x.position = q.position limit 1
) g
"""
CLUSTER = b"""
select pg_is_in_recovery(), (pg_control_system()).system_identifier
"""
ENDED = b"""
select 1 from anabranch.epochs where database_id = $1::int8 and epoch = $2::text
"""
# The epoch that ends is noted, and so is one that only a node names: other lost positions of it move no epoch again.
END = b"""
insert into anabranch.epochs (database_id, epoch, ended_position, ended_ms)
select $1::int8, e.epoch, $3::int8, $4::int8 from unnest($2::text[]) e(epoch)
on conflict (database_id, epoch) do nothing
"""
MOVE = f"""
with moved as (
    update anabranch.databases set epoch = $2::text, system_identifier = $3::int8 where id = $1::int8 returning id
)
select pg_notify('{CATALOG_CHANNEL}', id::text) from moved
""".encode()


class Judgement(Enum):
    """FITS: the history has the position, or nothing contradicts it. LOST: this server sealed it, and its history does
    not have it. STRANGE: it is damaged, or of a server that shares no secret with this one."""

    FITS = auto()
    LOST = auto()
    STRANGE = auto()


@dataclass(frozen=True, slots=True)
class Seen:
    """A position that a node has seen, in milliseconds, with its token."""

    epoch: str
    position: int
    token: bytes

    @property
    def is_nothing(self) -> bool:
        """Whether the node states that it has seen no position."""
        return not self.epoch and not self.position and not self.token


class SeenGroup(NamedTuple):
    """A position, in milliseconds, that a history must have, with its chain: a node has seen it, or an earlier read was
    of a moment that had it. Chains go on from each other, so that it stands for all positions before it."""

    position: int
    chain: bytes

    def is_lost(self, found: bytes | None, floor: int, head: int) -> bool:
        """Whether a history with that floor and head has lost it. ``found`` is its chain there, None where it has no
        group: at the floor and below it groups may be gone, and nothing is lost."""
        chain = EMPTY_CHAIN if self.position == 0 else found
        return chain != self.chain and not (chain is None and self.position <= min(floor, head))


@dataclass(frozen=True, slots=True)
class History:
    """A database's history: its head with its chain, its floor in milliseconds, and the chains at the positions that
    were asked for, as far as there are groups."""

    epoch: str
    floor_ms: int
    seal_key: bytes = field(repr=False)
    system_identifier: int
    head: int
    head_chain: bytes
    chains: Mapping[int, bytes]


def judge(history: History, seen: Seen) -> Judgement:
    """Judge a position by ``history``, which was read for this position."""
    position = seen.position
    if seen.is_nothing:
        return Judgement.FITS
    if not seen.token:
        # The server gave it without a seal where its chain was no longer known: nothing can be compared.
        fits = seen.epoch == history.epoch and 0 <= position <= history.head
        return Judgement.FITS if fits else Judgement.STRANGE
    known = known_of(history.seal_key, seen)
    if known is None:
        return Judgement.STRANGE
    lost = known.is_lost(history.chains.get(position), history.floor_ms, history.head)
    return Judgement.LOST if lost else Judgement.FITS


def known_of(seal_key: bytes, seen: Seen) -> SeenGroup | None:
    """The group that a position seen by a node requires in the history; None where this key did not seal it."""
    chain = chain_of(seal_key, seen.epoch, seen.position, seen.token) if seen.token else None
    return None if chain is None else SeenGroup(seen.position, chain)


async def _rows(
    conn: AsyncSession, statement: bytes, parameters: Sequence[postgres_binary.Parameter]
) -> list[tuple[Any, ...]]:
    cursor: psycopg.AsyncRawCursor[tuple[Any, ...]] = psycopg.AsyncRawCursor(conn)
    binary.adapt(cursor.adapters)
    await cursor.execute(statement, parameters, prepare=True, binary=True)
    if cursor.pgresult is None:
        raise psycopg.OperationalError("the session gave no result: it is in a pipeline that nobody has ended")
    return await cursor.fetchall() if cursor.description else []


async def read_history(conn: AsyncSession, database_id: int, positions: Sequence[int]) -> History | None:
    """The history, with the chains at ``positions``; None where there is no such database. The head is read after the
    chains, so that a missing position is above the head, or will never exist.

    Raises:
        psycopg.Error: it can't be read.
    """
    number = postgres_binary.int8(database_id)
    chains = await _rows(conn, CHAINS, [number, postgres_binary.int8_array(positions)])
    rows = await _rows(conn, HISTORY, [number])
    if not rows:
        return None
    epoch, floor_ms, seal_key, system_identifier, head, head_chain = rows[0]
    return History(epoch, floor_ms, seal_key, system_identifier, head, head_chain or EMPTY_CHAIN, dict(chains))


async def look_again(conn: AsyncSession, database_id: int, seen: Seen, history: History) -> Judgement | None:
    """Judge a position that contradicts ``history``, which was read by this session, without the database's claim.
    None: an epoch has to end for it, which takes ``confirm``. The answer is LOST only on a primary.

    Raises:
        psycopg.Error: it can't be looked at now.
    """
    ((standby, cluster),) = await _rows(conn, CLUSTER, [])
    if standby:
        return Judgement.STRANGE
    if history.system_identifier != cluster:
        return None
    if judge(history, seen) is Judgement.STRANGE:
        # By the seal alone, or by an epoch and a head that this session has read.
        return Judgement.STRANGE
    if not await _rows(conn, ENDED, [postgres_binary.int8(database_id), postgres_binary.text(seen.epoch)]):
        return None
    # Read once more: this server may have been a standby, and behind, when the history was read.
    now = await read_history(conn, database_id, [seen.position])
    return Judgement.FITS if now is None else judge(now, seen)


async def confirm(conn: AsyncSession, database_id: int, seen: Seen, new_epoch: str, now_ms: int) -> Judgement:
    """Judge a position once more for which ``look_again`` found that an epoch has to end, and begin the epoch
    ``new_epoch`` where that proves a rewind that no epoch has ended for yet. It waits for the database's claim, and the
    resolver waits meanwhile: one at a time in a process. The answer is LOST only on a primary.

    Raises:
        psycopg.Error: it can't be looked at now; nothing was changed.
    """
    number = postgres_binary.int8(database_id)
    async with conn.transaction():
        ((standby, cluster),) = await _rows(conn, CLUSTER, [])
        if standby:
            return Judgement.STRANGE
        await _rows(conn, WAIT_FOR_CLAIM, [number])
        history = await read_history(conn, database_id, [seen.position])
        if history is None:
            return Judgement.FITS
        judgement = judge(history, seen)
        moved_house = history.system_identifier != cluster
        if judgement is Judgement.FITS or (judgement is Judgement.STRANGE and not moved_house):
            return judgement
        sealed = [seen.epoch] if judgement is Judgement.LOST else []
        ended = sealed and await _rows(conn, ENDED, [number, postgres_binary.text(seen.epoch)])
        if not ended or moved_house:
            epochs = postgres_binary.text_array(sorted({history.epoch, *sealed}), "epoch")
            await _rows(conn, END, [number, epochs, postgres_binary.int8(history.head), postgres_binary.int8(now_ms)])
            await _rows(conn, MOVE, [number, postgres_binary.text(new_epoch), postgres_binary.int8(cluster)])
        return Judgement.LOST
