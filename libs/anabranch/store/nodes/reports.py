"""The reports of readers: the node's principal, and the position up to which it has applied the log.

A node that reads before it ever sends gets its row here, with an empty token: it takes its first one with its first
Send.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from anabranch.store.session.engine import AsyncSession

NodeKey = tuple[int, str]
"""Database id and node id."""


NOTHING = -1
"""Acknowledged by a node that asked for nothing of the log: a known node counts as seen, an unknown one is not stored,
since its row would hold the whole log for a node that may never read it."""


class NodeOwner(NamedTuple):
    """The principal that a node belongs to, and the node's name."""

    principal: str
    name: str


class NodeReport(NamedTuple):
    """The report of one node. ``acknowledged`` is a position in milliseconds, or NOTHING; ``pulled``: the position is
    that of a pull, and the node will follow the log from it. ``app_version``: the schema version that its app was built
    for, 0 for today's."""

    database_id: int
    node_id: str
    name: str
    principal: str
    epoch: str
    acknowledged: int
    seen_ms: int
    pulled: bool = False
    app_version: int = 0


FIND = """
select n.database_id, n.node_id, n.principal, n.name
from unnest(%(databases)s::int[], %(nodes)s::text[]) q(database_id, node_id)
cross join lateral (
    select * from anabranch.nodes x where x.database_id = q.database_id and x.node_id = q.node_id limit 1
) n
"""

# A database that was dropped in between takes its nodes along. Rows in the order of their key, so that two writers of
# the same nodes can't wait for each other in a circle.
WRITE = """
insert into anabranch.nodes as n
    (database_id, node_id, name, principal, epoch, token, last_seen_ms, acknowledged, pulled, app_version)
select r.database_id, r.node_id, r.name, r.principal, r.epoch, '', r.seen_ms, r.acknowledged, r.pulled, r.app_version
from unnest(%(databases)s::int[], %(nodes)s::text[], %(names)s::text[], %(principals)s::text[], %(epochs)s::text[],
            %(seen)s::bigint[], %(acknowledged)s::bigint[], %(pulled)s::bool[], %(app_versions)s::bigint[])
    r(database_id, node_id, name, principal, epoch, seen_ms, acknowledged, pulled, app_version)
where exists (select from anabranch.databases d where d.id = r.database_id)
  and (r.acknowledged >= 0
       or exists (select from anabranch.nodes k where k.database_id = r.database_id and k.node_id = r.node_id))
order by r.database_id, r.node_id
on conflict (database_id, node_id) do update
set last_seen_ms = greatest(n.last_seen_ms, excluded.last_seen_ms),
    acknowledged = greatest(n.acknowledged, excluded.acknowledged), pulled = n.pulled or excluded.pulled,
    name = excluded.name, app_version = excluded.app_version
where n.principal = excluded.principal
"""


async def find_nodes(conn: AsyncSession, keys: Collection[NodeKey]) -> dict[NodeKey, NodeOwner]:
    """The nodes among ``keys`` that exist.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    parameters = {"databases": [d for d, _ in keys], "nodes": [n for _, n in keys]}
    rows = await (await conn.execute(FIND, parameters)).fetchall()
    return {(database_id, node_id): NodeOwner(principal, name) for database_id, node_id, principal, name in rows}


async def write_reports(conn: AsyncSession, reports: Sequence[NodeReport]) -> None:
    """Store reports, one for each node; nothing of a node that meanwhile belongs to another principal.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    columns = map(list, zip(*reports, strict=True))
    databases, nodes, names, principals, epochs, acknowledged, seen, pulled, app_versions = columns
    await conn.execute(
        WRITE,
        {
            "databases": databases,
            "nodes": nodes,
            "names": names,
            "principals": principals,
            "epochs": epochs,
            "seen": seen,
            "acknowledged": acknowledged,
            "pulled": pulled,
            "app_versions": app_versions,
        },
    )
