"""The state of an installation, as ``anabranch status`` shows it. All but the holds of the floors is of one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from anabranch.merge.retention import Bound, Hold, plan
from anabranch.store.capture.backlog import captured_backlogs
from anabranch.store.catalog.census import SEEN, count_dead_letters, count_nodes
from anabranch.store.catalog.cut_off import cut_off
from anabranch.store.catalog.databases import Database, load_databases
from anabranch.store.catalog.unsynced import Unsynced, look
from anabranch.store.ddl.status import SchemaStatus, schema_statuses
from anabranch.store.retention.floor import databases as kept_databases
from anabranch.store.retention.floor import read_facts

COUNTED = 1_000_000
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
select t.database_id, coalesce(t.sql_name, t.name), s.row_count
from anabranch.synced_tables t left join anabranch.table_sums s on s.table_id = t.id
order by 1, 2
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
"""Batches without a verdict: the number that could be decided, the number that wait for a row or a batch, and since
when the oldest waits."""

NODES = """
select n.database_id, n.total, n.node_id, n.name, n.principal, n.last_seen_ms, n.acknowledged
from (select n.*, count(*) over (partition by n.database_id) as total,
             row_number() over (partition by n.database_id order by n.last_seen_ms desc, n.node_id) as place
      from anabranch.nodes n) n
where n.place <= %s
order by n.database_id, n.place
"""
"""The nodes seen last in each database, and how many there are."""

RECENT_MS = 10_000
RECENT = """
select g.database_id, sum(g.batches)
from anabranch.databases d join anabranch.groups g on g.database_id = d.id and g.position > %s
group by g.database_id
"""
"""Batches of the groups after a position."""

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
    decided_per_s: float
    """Accepted batches a second, over the last ten."""
    nodes_seen: dict[str, int]
    """Nodes by the shortest time within which they called (``census.SEEN``)."""
    bounds: tuple[tuple[str, int, str], ...]
    """The holds of the floor, the strictest first: the hold's name, the position up to which it lets the floor go, and
    why. Empty before the first group."""
    compaction_behind_ms: int | None
    """How far the compacted position is behind the head; None where the log is not compacted."""
    cut_off: tuple[str, ...]
    """Tables whose registration was cut off: their triggers gather in vain."""
    captured: int
    """Changes by SQL that the log lacks yet, counted no further than ``COUNTED``."""
    unsynced: tuple[Unsynced, ...]
    """Tables that are registered and not synced."""
    notes: tuple[tuple[str, str], ...]
    """Differences of synced tables from their registration: the table's name and a text."""
    dead_letters: tuple[tuple[str, int], ...]
    """Dead letters on devices by reason, as nodes last reported."""
    every_row: tuple[str, ...]
    """Tables whose row-level security was set aside: every device sees every row."""
    schema: SchemaStatus
    """The version of its tables, and the changes by DDL that the log lacks yet."""


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
        recent = dict(conn.execute(RECENT, (now_ms - RECENT_MS,)).fetchall())
        left = cut_off(conn)
        seen = count_nodes(conn, [database[1] for database in databases], now_ms)
        captured = {one.name: one.changes for one in captured_backlogs(conn, {}, 0.0, COUNTED)}
        letters = count_dead_letters(conn, [database[1] for database in databases])
        schemas = schema_statuses(conn)
        catalog = load_databases(conn)
        looks = {name: look(conn, one) for name, one in catalog.items()}
    bounds = _bounds(conn, now_ms)
    found = []
    for number, name, schema_name, epoch, floor, schema_version, head in databases:
        ready, parked, oldest = backlog.get(number, (0, 0, None))
        own = [node for node in nodes if node[0] == number]
        held = bounds.get(name, ()) if head else ()
        compacted = next((bound.position for bound in held if bound.hold is Hold.COMPACTION), None)
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
                decided_per_s=int(recent.get(number, 0)) / (RECENT_MS / 1000),
                nodes_seen={place: seen[name, place] for place in SEEN},
                bounds=tuple((bound.hold.name, bound.position, bound.detail) for bound in held),
                compaction_behind_ms=None if compacted is None else max(0, head - compacted),
                cut_off=tuple(one.table for one in left if one.database_id == number),
                captured=captured.get(name, 0),
                unsynced=looks[name].unsynced if name in looks else (),
                notes=tuple((one.called, one.text) for one in looks[name].notes) if name in looks else (),
                dead_letters=tuple(sorted((reason, one) for (of, reason), one in letters.items() if of == name)),
                every_row=_every_row(catalog.get(name)),
                schema=schemas[number],
            )
        )
    return now_ms, found


def _every_row(database: Database | None) -> tuple[str, ...]:
    if database is None:
        return ()
    policies = database.table_policies
    tables = (table for name, table in database.tables.items() if policies[name].every_device_sees_every_row)
    return tuple(sorted(table.sql_name for table in tables))


def _bounds(conn: psycopg.Connection[tuple[Any, ...]], now_ms: int) -> dict[str, tuple[Bound, ...]]:
    return {kept.name: plan(read_facts(conn, kept, now_ms)[0]).bounds for kept in kept_databases(conn)}
