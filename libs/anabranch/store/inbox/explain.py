"""Look-ups for the calls of the conflict-resolver: known batches, and the state of a database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg

from anabranch.store.inbox.parking import AWAITED
from anabranch.store.log.seal import EMPTY_CHAIN, position_token
from anabranch.store.session.engine import AsyncSession
from anabranch.wire.awaited import awaiting_row

Connection = psycopg.Connection[Any]

STATE = """
select d.id, d.name, d.epoch, d.floor_ms, d.schema_version, d.seal_key, coalesce(g.position, 0), g.chain
from anabranch.databases d
left join lateral (
    select x.position, x.chain from anabranch.groups x where x.database_id = d.id order by x.position desc limit 1
) g on true
where d.name = %(name)s
"""

# Inbox and batches by one snapshot: a batch on its way from one to the other is not missed.
VERDICTS = f"""
select q.batch_id, b.verdict, i.awaits, i.awaited_in, i.awaited_key, i.park_deadline_ms
from unnest(%(ids)s::text[]) q(batch_id)
left join lateral (
    select x.verdict from anabranch.batches x
    where x.database_id = %(db)s and x.batch_id = q.batch_id and x.principal = %(principal)s limit 1
) b on true
left join lateral (
    select true as waits, {AWAITED} from anabranch.inbox x
    where x.database_id = %(db)s and x.batch_id = q.batch_id and x.principal = %(principal)s limit 1
) i on true
where b.verdict is not null or i.waits
"""

KNOWN = """
select b.principal, b.payload_sha256, b.verdict,
       %(prev)s = '' or (select true from anabranch.batches p
                         where p.database_id = %(db)s and p.batch_id = %(prev)s limit 1) is not null,
       n.principal, n.last_accepted, n.missing,
       w.principal, w.payload_sha256,
       coalesce(w.waits_for_batch, case when w.waits_for_key is not null then
                    coalesce((select coalesce(t.sql_name, t.name) from anabranch.synced_tables t
                              where t.id = w.waits_for_table), 'a table')
                    || ' ' || case when octet_length(w.waits_for_key) > 2600 then 'with a long key'
                              else w.waits_for_key end end, 'its turn')
from (select) one
left join lateral (
    select x.principal, x.payload_sha256, x.verdict from anabranch.batches x
    where x.database_id = %(db)s and x.batch_id = %(id)s limit 1
) b on true
left join lateral (
    select y.principal, y.last_accepted, y.missing from anabranch.nodes y
    where y.database_id = %(db)s and y.node_id = %(node)s limit 1
) n on true
left join lateral (
    select z.principal, z.payload_sha256, z.waits_for_batch, z.waits_for_table, z.waits_for_key
    from anabranch.inbox z where z.database_id = %(db)s and z.batch_id = %(id)s limit 1
) w on true
"""


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """A database and its last group (position 0 where there is none)."""

    id: int
    name: str
    epoch: str
    floor_ms: int
    schema_version: int
    seal_key: bytes = field(repr=False)
    position: int = 0
    chain: bytes = EMPTY_CHAIN

    @property
    def token(self) -> bytes:
        """The token of its position."""
        return position_token(self.seal_key, self.epoch, self.position, self.chain)


async def read_state(conn: AsyncSession, name: str) -> DatabaseState | None:
    """The state of the database of that name; None where there is none."""
    row = await (await conn.execute(STATE, {"name": name})).fetchone()
    if row is None:
        return None
    number, found, epoch, floor_ms, schema_version, seal_key, position, chain = row
    return DatabaseState(number, found, epoch, floor_ms, schema_version, seal_key, position, chain or EMPTY_CHAIN)


async def find_verdicts(
    conn: AsyncSession, database_id: int, principal: str, batch_ids: Sequence[str]
) -> dict[str, bytes | None]:
    """The serialized verdicts of the principal's batches, pending ones of those that wait for a row beyond their park
    time; None for one that waits otherwise, nothing for any other."""
    parameters = {"db": database_id, "principal": principal, "ids": list(batch_ids)}
    rows = await (await conn.execute(VERDICTS, parameters)).fetchall()
    return {
        batch_id: awaiting_row(batch_id, table, key, until_ms) if verdict is None and awaits else verdict
        for batch_id, verdict, awaits, table, key, until_ms in rows
    }


class KnownOfBatch(NamedTuple):
    """The known facts about a batch and the node that asks. ``principal`` is the one that sent the batch, ``owner`` the
    one that the node belongs to; None where there is no such batch or node. ``missing`` as in
    ``store.inbox.take.Taken``. ``waiting_…``: the same of a batch that has no verdict yet; ``waits_for`` names the
    batch or row that it waits for."""

    principal: str | None
    payload_sha256: bytes | None
    verdict: bytes | None
    prev_decided: bool
    owner: str | None
    last_accepted: str | None
    missing: str | None
    waiting_principal: str | None
    waiting_sha256: bytes | None
    waits_for: str


def known(conn: Connection, database_id: int, batch_id: str, prev: str, node_id: str) -> KnownOfBatch:
    """Look up a batch, the one before it (``prev``, "" for none), and a node."""
    parameters = {"db": database_id, "id": batch_id, "prev": prev, "node": node_id}
    row = conn.execute(KNOWN, parameters).fetchone()
    assert row is not None
    return KnownOfBatch._make(row)
