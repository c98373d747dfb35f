"""The dead letters that nodes hold, as each last reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from anabranch.store.session.engine import AsyncSession


class DeadCount(NamedTuple):
    """Dead letters of one reason about one table ("" where none is known)."""

    reason: str
    table: str
    number: int


class DeadReport(NamedTuple):
    """The report of one node."""

    database_id: int
    node_id: str
    principal: str
    told_ms: int
    total: int
    counts: tuple[DeadCount, ...]


# Nothing of a node that belongs to another principal, or was forgotten. In the order of the key, so that two writers of
# the same nodes can't wait for each other in a circle. A report that is older than the stored one is dropped.
WRITE = """
insert into anabranch.node_dead_letters as k (database_id, node_id, told_ms, total, counts)
select n.database_id, n.node_id, r.told_ms, r.total, r.counts::jsonb
from unnest(%(databases)s::int[], %(nodes)s::text[], %(principals)s::text[], %(told)s::bigint[], %(totals)s::bigint[],
            %(counts)s::text[]) r(database_id, node_id, principal, told_ms, total, counts)
join anabranch.nodes n on n.database_id = r.database_id and n.node_id = r.node_id and n.principal = r.principal
where r.total > 0 or exists (select from anabranch.node_dead_letters h
                             where h.database_id = r.database_id and h.node_id = r.node_id)
order by n.database_id, n.node_id
on conflict (database_id, node_id) do update
set told_ms = excluded.told_ms, total = excluded.total, counts = excluded.counts
where k.told_ms <= excluded.told_ms
"""


async def write_dead_reports(conn: AsyncSession, reports: Sequence[DeadReport]) -> None:
    """Store reports, one for each node. A node that never had a dead letter leaves no row.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    await conn.execute(
        WRITE,
        {
            "databases": [one.database_id for one in reports],
            "nodes": [one.node_id for one in reports],
            "principals": [one.principal for one in reports],
            "told": [one.told_ms for one in reports],
            "totals": [one.total for one in reports],
            "counts": [
                json.dumps([{"reason": c.reason, "table": c.table, "count": c.number} for c in one.counts])
                for one in reports
            ],
        },
    )
