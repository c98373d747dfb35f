"""How an installation is doing: what ``anabranch status`` shows. Everything is read in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

SHOWN_NODES = 1_000
"""The most nodes of a database that are listed; those seen last come first."""

DATABASES = """
select d.id, d.name, d.schema_name, d.epoch, d.floor_ms, d.schema_version,
       coalesce((select g.position from anabranch.groups g
                 where g.database_id = d.id order by g.position desc limit 1), 0)
from anabranch.databases d
order by d.name
"""
"""Each database with its head: the last group's position."""

TABLES = """
select t.database_id, t.name, s.row_count
from anabranch.synced_tables t left join anabranch.table_sums s on s.table_id = t.id
order by t.database_id, t.name
"""
"""The synced tables and how many rows their sums count."""

BACKLOG = """
select i.database_id,
       count(*) filter (where i.park_deadline_ms is null),
       count(*) filter (where i.park_deadline_ms is not null),
       min(i.arrived_ms)
from anabranch.inbox i
group by i.database_id
"""
"""Batches without a verdict: that could be decided, that wait for a row or a batch, and since when the oldest
waits."""

NODES = """
select n.database_id, n.total, n.node_id, n.name, n.principal, n.last_seen_ms, n.acknowledged
from (select n.*, count(*) over (partition by n.database_id) as total,
             row_number() over (partition by n.database_id order by n.last_seen_ms desc, n.node_id) as place
      from anabranch.nodes n) n
where n.place <= %s
order by n.database_id, n.place
"""
"""The nodes seen last in each database, and how many there are."""

SERVER_TIME = "select (extract(epoch from clock_timestamp()) * 1000)::bigint"
"""Postgres's clock, by which positions are given."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node. ``behind_ms``: the head less what it has acknowledged; a node that has all has 0."""

    id: str
    name: str
    principal: str
    last_seen_ms: int
    acknowledged: int
    behind_ms: int


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """A database. Positions and times are in milliseconds since 1970; head is 0 before the first group."""

    name: str
    schema_name: str
    epoch: str
    head: int
    floor: int
    schema_version: int
    tables: dict[str, int | None]
    """Rows by table; None where the table has no sum yet."""
    ready: int
    parked: int
    oldest_waiting_ms: int | None
    """How long the oldest batch without a verdict has waited."""
    node_count: int
    nodes: tuple[NodeStatus, ...]


def read_status(conn: psycopg.Connection[tuple[Any, ...]]) -> tuple[int, list[DatabaseStatus]]:
    """Postgres's time, in milliseconds, and all databases by name. ``conn`` is in autocommit. Raises
    psycopg.Error."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read read only")
        row = conn.execute(SERVER_TIME).fetchone()
        databases = conn.execute(DATABASES).fetchall()
        tables = conn.execute(TABLES).fetchall()
        backlog = {number: rest for number, *rest in conn.execute(BACKLOG).fetchall()}
        nodes = conn.execute(NODES, (SHOWN_NODES,)).fetchall()
    now_ms = int(row[0]) if row else 0
    found = []
    for number, name, schema_name, epoch, floor, schema_version, head in databases:
        ready, parked, oldest = backlog.get(number, (0, 0, None))
        own = [node for node in nodes if node[0] == number]
        found.append(
            DatabaseStatus(
                name=name,
                schema_name=schema_name,
                epoch=epoch,
                head=head,
                floor=floor,
                schema_version=schema_version,
                tables={table: rows for database, table, rows in tables if database == number},
                ready=ready,
                parked=parked,
                oldest_waiting_ms=None if oldest is None else max(0, now_ms - oldest),
                node_count=own[0][1] if own else 0,
                nodes=tuple(
                    NodeStatus(node_id, node_name, principal, seen_ms, acknowledged, max(0, head - acknowledged))
                    for _, _, node_id, node_name, principal, seen_ms, acknowledged in own
                ),
            )
        )
    return now_ms, found
