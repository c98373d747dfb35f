"""The other batches of a batch's node: which of them are decided, which still wait, and which have not come."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

# The least undecided id of a node, leaving out those at hand: the probe goes past these and no further.
EARLIEST_PENDING = """
select q.node_id, i.batch_id
from unnest(%(nodes)s::text[]) q(node_id)
cross join lateral (
    select x.batch_id from anabranch.inbox x
    where x.database_id = %(db)s and x.node_id = q.node_id and x.batch_id <> all (%(ids)s::text[])
    order by x.batch_id limit 1
) i
"""

DECIDED = """
select q.id from unnest(%(ids)s::text[]) q(id)
where (select true from anabranch.batches b where b.database_id = %(db)s and b.batch_id = q.id limit 1) is not null
"""

# The earliest one is kept: a batch that waits for it waits for the others, too.
NOTE_MISSING = """
update anabranch.nodes n set missing = q.id
from unnest(%(nodes)s::text[], %(ids)s::text[]) q(node_id, id)
where n.database_id = %(db)s and n.node_id = q.node_id
  and (n.missing is null or n.missing > q.id
       or (select true from anabranch.batches b
           where b.database_id = %(db)s and b.batch_id = n.missing limit 1) is not null)
"""

PLACES = """
select q.batch_id, p.position
from unnest(%(ids)s::text[], %(nodes)s::text[]) q(batch_id, node_id)
cross join lateral (
    select min(b.position) as position from anabranch.batches b
    where b.database_id = %(db)s and b.node_id = q.node_id and b.status = 1 and b.batch_id > q.batch_id
) p
where p.position is not null
"""


def earliest_pending(
    conn: Connection, database_id: int, node_ids: Collection[str], at_hand: Sequence[str]
) -> dict[str, str]:
    """For each node the least id among its batches in the inbox, those ``at_hand`` left out; none where there
    is none."""
    rows = conn.execute(EARLIEST_PENDING, {"db": database_id, "nodes": list(node_ids), "ids": list(at_hand)})
    return {row[0]: row[1] for row in rows}


def undecided(conn: Connection, database_id: int, batch_ids: Collection[str]) -> set[str]:
    """Those of ``batch_ids`` that have no verdict."""
    rows = conn.execute(DECIDED, {"db": database_id, "ids": list(batch_ids)})
    return set(batch_ids) - {row[0] for row in rows}


def note_missing(conn: Connection, database_id: int, missing: Mapping[str, str]) -> None:
    """Note by node the batch that had not come when a later one, which names it, was decided."""
    conn.execute(NOTE_MISSING, {"db": database_id, "nodes": list(missing), "ids": list(missing.values())})


def places(conn: Connection, database_id: int, late: Sequence[tuple[str, str]]) -> dict[str, int]:
    """For each ``(batch id, node id)`` the smallest position among accepted batches of the node with a higher
    id."""
    rows = conn.execute(PLACES, {"db": database_id, "ids": [b for b, _ in late], "nodes": [n for _, n in late]})
    return {row[0]: row[1] for row in rows}
