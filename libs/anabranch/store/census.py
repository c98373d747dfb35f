"""Numbers of nodes and epochs, for metrics: of all databases in one statement each."""

from __future__ import annotations

from anabranch.store.engine import Session

_HOUR_MS = 3_600_000
WITHIN_MS = {"hour": _HOUR_MS, "day": 24 * _HOUR_MS, "week": 7 * 24 * _HOUR_MS, "month": 30 * 24 * _HOUR_MS}
"""Within which a node has called, the shortest first."""
LONGER = "longer"
"""It called longer ago."""
SEEN = (*WITHIN_MS, LONGER)

NODES = """
select d.name, w.seen, count(*)
from anabranch.databases d
join anabranch.nodes n on n.database_id = d.id
cross join lateral (
    select coalesce(min(u.place) filter (where n.last_seen_ms >= u.since), cardinality(%(since)s::bigint[]) + 1)::int
    from unnest(%(since)s::bigint[]) with ordinality u(since, place)
) w(seen)
group by d.name, w.seen
"""
"""Nodes of each database by the first of the times in ``since`` at or after which they were seen, from 1; one more
where none is."""

EPOCHS = """
select d.name, (select count(*) from anabranch.epochs e where e.database_id = d.id) from anabranch.databases d
"""
"""Epochs of each database that have ended."""


def count_nodes(conn: Session, names: list[str], now_ms: int) -> dict[tuple[str, str], int]:
    """Nodes by database and by ``SEEN``, for each of ``names``. Raises psycopg.Error."""
    found = {(name, seen): 0 for name in names for seen in SEEN}
    since = [now_ms - within for within in WITHIN_MS.values()]
    for name, place, count in conn.execute(NODES, {"since": since}).fetchall():
        if name in names:
            found[name, SEEN[place - 1]] = count
    return found


def count_epochs(conn: Session, names: list[str]) -> dict[str, int]:
    """Epochs that have ended, for each of ``names``. Raises psycopg.Error."""
    return {name: count for name, count in conn.execute(EPOCHS).fetchall() if name in names}
