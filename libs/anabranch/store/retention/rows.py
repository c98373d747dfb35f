"""Remove rows in batches: each statement removes a limited number of rows, commits by itself, and returns how many.

None of them may ever remove a row that the floor, or its own proof, does not cover; the statements themselves ensure
it, by values that the caller has committed (the floor) or proven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ulid import ULID

from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.channels import INBOX_CHANNEL
from anabranch.store.session.engine import Session
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.wire.envelopes import least_id

# Which rows, by their place; ``_delete`` and ``_count`` make statements of them.
LOG = """
select ctid from anabranch.{leaf} where database_id = %(db)s and position <= %(floor)s
order by position, batch_id, ordinal limit %(limit)s
"""
# The group at the floor stays: readers at this position recognise it by its chain.
GROUPS = """
select ctid from anabranch.groups where database_id = %(db)s and position < %(floor)s
order by position limit %(limit)s
"""
CONFLICTS = """
select ctid from anabranch.conflicts
where database_id = %(db)s and position > %(proven_after)s and position <= %(floor)s
order by position, batch_id, ordinal limit %(limit)s
"""
# Ids are in the order of their times, those of the server's batches before all others and in the order of positions.
VERDICTS = """
(select ctid from anabranch.batches
 where database_id = %(db)s and batch_id < %(servers_old)s and decided_ms < %(kept_since)s and position <= %(floor)s
 order by batch_id limit %(limit)s)
union all
(select ctid from anabranch.batches
 where database_id = %(db)s and batch_id >= %(servers_end)s and batch_id < %(oldest)s
   and decided_ms < %(kept_since)s and position <= %(floor)s
 order by batch_id limit %(limit)s)
limit %(limit)s
"""
LEFTOVERS = """
select i.ctid from anabranch.inbox i
where i.database_id = %(db)s and i.arrived_ms < %(leftover_before)s
  and exists (select from anabranch.batches b where b.database_id = i.database_id and b.batch_id = i.batch_id)
order by i.batch_id limit %(limit)s
"""
# A node stays while an accepted or waiting batch of it is left, so that its name can be shown.
NODES = """
select n.ctid from anabranch.nodes n
where n.database_id = %(db)s and n.last_seen_ms < %(absent_since)s
  and not exists (select from anabranch.batches b
                  where b.database_id = n.database_id and b.node_id = n.node_id and b.status = 1)
  and not exists (select from anabranch.inbox i where i.database_id = n.database_id and i.node_id = n.node_id)
order by n.node_id limit %(limit)s
"""
# A reader at the floor knows the audiences that it had there by the changes above it, and so does who lists conflicts.
AUDIENCE_CHANGES = """
select ctid from anabranch.audience_changes where database_id = %(db)s and position <= least(%(floor)s, (
    select c.position - 1 from anabranch.conflicts c where c.database_id = %(db)s
    order by c.position, c.batch_id, c.ordinal limit 1))
order by position, principal limit %(limit)s
"""
# One that calls again is learned anew.
PRINCIPALS = """
select p.ctid from anabranch.principals p
where p.database_id = %(db)s and p.seen_ms < least(%(absent_since)s::int8, %(kept_since)s::int8)
  and not exists (select from anabranch.nodes n where n.database_id = p.database_id and n.principal = p.principal)
order by p.principal limit %(limit)s
"""
TABLES = "select id from anabranch.synced_tables where database_id = %(db)s"
PAGES = "select pg_relation_size('anabranch.row_versions') / current_setting('block_size')::int"
OLD_TOMBSTONES = """
select w.table_id, w.key from anabranch.row_versions w
where w.ctid >= %(first)s::tid and w.ctid < %(end)s::tid
  and (w.tombstone_batch is not null and w.table_id = any(%(tables)s::int[]) and w.last_position <= %(upto)s
       or not exists (select from anabranch.synced_tables t where t.id = w.table_id))
"""
TOMBSTONES = """
delete from anabranch.row_versions w
using unnest(%(ids)s::int[], %(keys)s::text[]) q(table_id, key)
where w.table_id = q.table_id and w.key = q.key
  and (w.tombstone_batch is not null and w.last_position <= %(upto)s
       or not exists (select from anabranch.synced_tables t where t.id = w.table_id))
"""
# A resolver that found the claim taken waits for a notification.
RING = "select pg_notify(%(channel)s, %(db)s::text)"
SERVERS_END = least_id(1)
"""Above the ids of the server's own batches, which have the time 0."""


def _server_id(position: int) -> str:
    """The least id of a batch of the server's own at ``position``."""
    return str(ULID.from_bytes(bytes(6) + position.to_bytes(6, "big") + bytes(4)))


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of the rows of a database that may go. ``proven_after``: conflicts above it, up to the floor, are in
    proven files."""

    database_id: int
    floor: int
    proven_after: int
    kept_since_ms: int
    absent_since_ms: int
    leftover_before_ms: int

    @property
    def values(self) -> dict[str, Any]:
        """As the statements take them."""
        return {
            "db": self.database_id,
            "floor": self.floor,
            "proven_after": self.proven_after,
            "kept_since": self.kept_since_ms,
            "absent_since": self.absent_since_ms,
            "leftover_before": self.leftover_before_ms,
            "servers_old": _server_id(max(0, min(self.kept_since_ms, self.floor + 1))),
            "servers_end": SERVERS_END,
            # Hardly any batch made after the floor stands at or below it: without this bound all kept batches would be
            # scanned again and again where the floor lags behind.
            "oldest": least_id(max(0, min(self.kept_since_ms, self.floor + 1))),
        }


ROWS: Mapping[str, tuple[str, str]] = {
    "conflicts": ("conflicts", CONFLICTS),
    "groups": ("groups", GROUPS),
    "verdicts": ("batches", VERDICTS),
    "leftovers": ("inbox", LEFTOVERS),
    "nodes": ("nodes", NODES),
    "audience_changes": ("audience_changes", AUDIENCE_CHANGES),
    "principals": ("principals", PRINCIPALS),
}
"""The rows that are removed after the log, in this order: the table, and the query that selects the rows."""


def _delete(table: str, rows: str) -> bytes:
    return f"delete from anabranch.{table} where ctid = any(array({rows}))".encode()


def _count(rows: str) -> bytes:
    return f"select count(*) from ({rows}) r".encode()


def remove_log(conn: Session, leaf: str, limits: Limits, most: int) -> int:
    """Remove rows of the log at or below the floor from one partition; return how many."""
    statement = _delete(quote(leaf), LOG.format(leaf=quote(leaf)))
    return conn.execute(statement, {**limits.values, "limit": most}).rowcount


def count_log(conn: Session, leaf: str, limits: Limits, most: int) -> int:
    """How many rows of one partition are at or below the floor; at most ``most`` are counted."""
    return _number(conn, _count(LOG.format(leaf=quote(leaf))), {**limits.values, "limit": most})


def remove(conn: Session, what: str, limits: Limits, most: int) -> int:
    """Remove rows of a kind (a key of ``ROWS``); return how many."""
    table, rows = ROWS[what]
    # A write moves a node's row to another place: the statement checks the time once more, at the row that it removes.
    again = b" and last_seen_ms < %(absent_since)s" if what == "nodes" else b""
    return conn.execute(_delete(table, rows) + again, {**limits.values, "limit": most}).rowcount


def count(conn: Session, what: str, limits: Limits, most: int) -> int:
    """How many rows of a kind may go; at most ``most`` are counted."""
    return _number(conn, _count(ROWS[what][1]), {**limits.values, "limit": most})


def _number(conn: Session, statement: bytes, values: Mapping[str, Any] | None = None) -> int:
    row = conn.execute(statement, values).fetchone()
    assert row is not None
    return int(row[0])


def version_pages(conn: Session) -> int:
    """Pages of ``row_versions``."""
    return _number(conn, PAGES.encode())


def table_ids(conn: Session, database_id: int) -> list[int]:
    """The registrations of a database."""
    return [number for (number,) in conn.execute(TABLES, {"db": database_id}).fetchall()]


def remove_tombstones(conn: Session, limits: Limits, tables: Sequence[int], first: int, end: int) -> int:
    """Remove the tombstones in the pages from ``first`` up to ``end`` whose rows were last written before both the
    window and the floor, and all versions there of rows whose table's registration has ended."""
    upto = min(limits.floor, limits.kept_since_ms)
    values = {"first": f"({first},0)", "end": f"({end},0)", "tables": list(tables), "upto": upto}
    found = conn.execute(OLD_TOMBSTONES, values).fetchall()
    if not found:
        return 0
    ids, keys = map(list, zip(*found, strict=True))
    with conn.transaction():
        # A group reads a row's version and writes it later: between the two no other session may remove it.
        wait_for_claim(conn, limits.database_id)
        removed = conn.execute(TOMBSTONES, {"ids": ids, "keys": keys, "upto": upto}).rowcount
        conn.execute(RING, {"channel": INBOX_CHANNEL, "db": limits.database_id})
    return removed
