"""The tokens by which a node is recognised.

A row of ``nodes`` belongs to the principal that first used the node's id. ``token`` is the one in its last answer,
``previous_token`` the one in the call of that answer (empty: none), ``last_call`` the ids of that call's batches, and
``epoch`` the database's epoch at that time.

Nearly every call carries the current token, which ``inbox.append`` checks and replaces in the same step as it appends.
This module checks the others under a lock: ``create`` and ``lock`` in one transaction, then the caller's decision, then
``rotate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from anabranch.store.inbox.session import Session, run
from anabranch.values import postgres_binary
from anabranch.values.postgres_binary import Parameter


class Mode(IntEnum):
    """The effect of an admitted call on its node's token. KEEP: none. ROTATE: the node gets a new one. EXTEND: none,
    and the call's batches count as the last call's as well (a stream goes on)."""

    KEEP = 0
    ROTATE = 1
    EXTEND = 2


@dataclass(slots=True, eq=False)
class Call:
    """A call of a node. ``number`` is the caller's, from 1, one for each call of a statement; no two calls of one
    statement have the same node. ``epoch`` is the database's; ``token`` the one that the call carries; ``new_token``
    the one that the node is to get; ``batch_ids`` its batches; ``acknowledged`` a position in milliseconds. A node that
    has read nothing yet gives the settled position with a minus: it counts unless a pull holds the log for the node."""

    database_id: int
    node_id: str
    name: str
    principal: str
    epoch: str
    token: bytes
    new_token: bytes
    mode: Mode
    batch_ids: Sequence[str]
    acknowledged: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as it is stored."""

    principal: str
    epoch: str
    token: bytes
    previous_token: bytes
    last_call: frozenset[str]


# The calls as rows; ``call_columns`` makes the parameters.
CALLS = """
select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[],
                     $8::bytea[], $9::bigint[], $10::text[], $11::bigint[])
    c(number, database_id, node_id, name, principal, epoch, token, new_token, mode, ids, acknowledged)
"""

# A node that only writes needs nothing of the log up to the position in its answer. A node whose first pull is under
# way, or just over, sends the same, but will follow the log from where that pull began.
ACKNOWLEDGED = "greatest(n.acknowledged, case when n.pulled then c.acknowledged else abs(c.acknowledged) end)"

# Nodes that are there are left out first: an insert would wait for whoever is updating such a row, and with it all
# calls that are looked at together.
CREATE = f"""
with call as materialized ({CALLS})
insert into anabranch.nodes
    (database_id, node_id, name, principal, epoch, token, previous_token, last_call, last_seen_ms, acknowledged)
select c.database_id, c.node_id, c.name, c.principal, c.epoch, c.new_token, c.token, string_to_array(c.ids, ','),
       $12::bigint, abs(c.acknowledged)
from call c
where (select true from anabranch.nodes x
       where x.database_id = c.database_id and x.node_id = c.node_id limit 1) is null
on conflict (database_id, node_id) do nothing
returning database_id, node_id
""".encode()

# The row of another principal's node is looked at and not locked: the resolver, and the node's own calls, need it.
LOCK = b"""
select q.number, n.principal, n.epoch, n.token, coalesce(n.previous_token, ''), n.last_call
from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) q(number, database_id, node_id, principal)
cross join lateral (
    select * from anabranch.nodes x
    where x.database_id = q.database_id and x.node_id = q.node_id and x.principal = q.principal
    for update skip locked
) n
union all
select q.number, n.principal, n.epoch, '', '', '{}'
from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) q(number, database_id, node_id, principal)
cross join lateral (
    select * from anabranch.nodes x
    where x.database_id = q.database_id and x.node_id = q.node_id and x.principal <> q.principal
    limit 1
) n
"""

# Also by the epoch: after a rewind the row gets the new one, so that an unknown token is taken only once.
ROTATE = f"""
with call as materialized ({CALLS})
update anabranch.nodes n
set token = c.new_token, previous_token = c.token, last_call = string_to_array(c.ids, ','), epoch = c.epoch,
    name = c.name, last_seen_ms = greatest(n.last_seen_ms, $12::bigint),
    acknowledged = {ACKNOWLEDGED}
from call c
where n.database_id = c.database_id and n.node_id = c.node_id
""".encode()


def call_columns(calls: Sequence[Call]) -> list[Parameter]:
    """The eleven parameters of ``CALLS``."""
    return [
        postgres_binary.int8_array([c.number for c in calls]),
        postgres_binary.int8_array([c.database_id for c in calls]),
        postgres_binary.text_array([c.node_id for c in calls], "node_id"),
        postgres_binary.text_array([c.name for c in calls], "name"),
        postgres_binary.text_array([c.principal for c in calls], "principal"),
        postgres_binary.text_array([c.epoch for c in calls], "epoch"),
        postgres_binary.bytea_array([c.token for c in calls]),
        postgres_binary.bytea_array([c.new_token for c in calls]),
        postgres_binary.int8_array([c.mode for c in calls]),
        postgres_binary.text_array([",".join(c.batch_ids) for c in calls], "ids"),
        postgres_binary.int8_array([c.acknowledged for c in calls]),
    ]


async def create(session: Session, calls: Sequence[Call], now_ms: int) -> frozenset[int]:
    """Make the nodes that do not exist yet. Return the numbers of their calls."""
    made = set(await run(session, CREATE, [*call_columns(calls), postgres_binary.int8(now_ms)]))
    return frozenset(c.number for c in calls if (c.database_id, c.node_id) in made)


async def lock(session: Session, calls: Sequence[Call]) -> dict[int, NodeRow]:
    """The nodes of ``calls`` by the call's number, locked until the transaction ends; without those that another
    transaction holds. Of one that belongs to another principal than the call's, only that is told."""
    parameters = [
        postgres_binary.int8_array([c.number for c in calls]),
        postgres_binary.int8_array([c.database_id for c in calls]),
        postgres_binary.text_array([c.node_id for c in calls], "node_id"),
        postgres_binary.text_array([c.principal for c in calls], "principal"),
    ]
    rows = await run(session, LOCK, parameters)
    return {
        number: NodeRow(principal, epoch, token, previous, frozenset(ids))
        for number, principal, epoch, token, previous, ids in rows
    }


async def rotate(session: Session, calls: Sequence[Call], now_ms: int) -> None:
    """Give the nodes of ``calls`` their new tokens."""
    await run(session, ROTATE, [*call_columns(calls), postgres_binary.int8(now_ms)])
