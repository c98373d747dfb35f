"""Numbers of nodes, epochs, batches that wait and tables that are not synced, for metrics."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.store.catalog.databases import load_databases
from anabranch.store.catalog.unsynced import WhyUnsynced, look
from anabranch.store.session.engine import Session

_HOUR_MS = 3_600_000
WITHIN_MS = {"hour": _HOUR_MS, "day": 24 * _HOUR_MS, "week": 7 * 24 * _HOUR_MS, "month": 30 * 24 * _HOUR_MS}
"""Times within which a node has called, in milliseconds, the shortest first."""
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

WAITING = """
select d.name, count(i.database_id) filter (where i.park_deadline_ms is null),
       count(i.database_id) filter (where i.park_deadline_ms is not null),
       min(i.arrived_ms) filter (where i.park_deadline_ms is null)
from anabranch.databases d left join anabranch.inbox i on i.database_id = d.id
group by d.name
"""
"""Of each database the batches that could be decided, those that wait for a row or a batch, and when the oldest of the
former came."""


DEAD_LETTERS = """
select d.name, c.reason, sum(c.count)::bigint
from anabranch.node_dead_letters n join anabranch.databases d on d.id = n.database_id
cross join lateral jsonb_to_recordset(n.counts) c(reason text, count bigint)
group by d.name, c.reason
"""
"""Of each database the dead letters that its nodes last reported, by reason."""


def count_dead_letters(conn: Session, names: list[str]) -> dict[tuple[str, str], int]:
    """Dead letters on devices by database and reason, for each of ``names``. Raises psycopg.Error."""
    rows = conn.execute(DEAD_LETTERS).fetchall()
    return {(name, reason): count for name, reason, count in rows if name in names}


class WaitingBatches(NamedTuple):
    """Batches of one database in the inbox. ``oldest_ms``: when the oldest came that could be decided."""

    ready: int
    parked: int
    oldest_ms: int | None


def count_waiting(conn: Session, names: list[str]) -> dict[str, WaitingBatches]:
    """The batches that wait in the inbox, for each of ``names``. Raises psycopg.Error."""
    return {name: WaitingBatches(*rest) for name, *rest in conn.execute(WAITING).fetchall() if name in names}


def count_unsynced(conn: Session, names: list[str]) -> dict[tuple[str, str], int]:
    """Tables that are not synced by database and reason, for each of ``names``. Raises psycopg.Error."""
    found = {(name, why.value): 0 for name in names for why in WhyUnsynced}
    for name, database in load_databases(conn).items():
        if name in names:
            for one in look(conn, database).unsynced:
                found[name, one.why.value] += 1
    return found


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
