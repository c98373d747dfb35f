"""The partitions of the log: made ahead of the positions, emptied and removed behind the floor.

Beside the default one each holds the positions of one slot: ``[start, until)``, a whole number of slots since 1970. A
position without a partition goes to the default one, so that nothing fails for want of a partition.

Postgres can't detach a partition concurrently while there is a default one. So a partition behind every floor is
truncated first, which locks that partition alone and frees its space at once. The empty partition is detached and
dropped when the lock of the whole log can be had at once; until then it costs nothing.

When one is made, Postgres scans the default partition under its lock. That is quick while it is small, and it stays
empty where partitions are made ahead. Where it is large, the statement's time limit ends the attempt, and the log goes
on in the default partition, whose rows are removed in batches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import Session

DEFAULT = "log_default"
LEAVES = """
select c.relname, pg_get_expr(c.relpartbound, c.oid)
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'anabranch.log'::regclass order by c.relname
"""
# By the key: the first row of each database.
IN_DEFAULT = """
select exists (
    select from anabranch.databases d
    cross join lateral (select from anabranch.log_default l
                        where l.database_id = d.id and l.position >= %(start)s and l.position < %(until)s limit 1) l)
"""
NEEDED = """
select exists (
    select from anabranch.databases d
    cross join lateral (select from anabranch.{leaf} l
                        where l.database_id = d.id and l.position > d.floor_ms limit 1) l)
"""
AHEAD_OF = """
select exists (select from anabranch.{leaf} where database_id = %(db)s and position > %(floor)s)
"""
EMPTY = "select not exists (select from anabranch.{leaf})"
NEWEST = """
select coalesce(max(g.position), 0) from anabranch.databases d
cross join lateral (select position from anabranch.groups where database_id = d.id order by position desc limit 1) g
"""
SET_TIMES = "select set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true)"
SET_LOCK = "select set_config('lock_timeout', %(lock)s, true)"
_BOUND = re.compile(r"FOR VALUES FROM \('?(-?\d+)'?\) TO \('?(-?\d+)'?\)")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A partition: the positions from ``start`` up to ``until``, in milliseconds."""

    name: str
    start: int
    until: int


def leaves(conn: Session) -> list[Leaf]:
    """The partitions beside the default one, oldest first."""
    found = []
    for name, bound in conn.execute(LEAVES).fetchall():
        match = _BOUND.fullmatch(bound)
        if match is not None:
            found.append(Leaf(name, int(match[1]), int(match[2])))
    return sorted(found, key=lambda leaf: leaf.start)


def wanted(now_ms: int, newest: int, slot_ms: int, ahead: int, there: Sequence[Leaf]) -> list[Leaf]:
    """The partitions to make: for the slot that positions are in now and for ``ahead`` slots after it, where there is
    none yet."""
    current = max(now_ms, newest) // slot_ms
    slots = [(number * slot_ms, (number + 1) * slot_ms) for number in range(current, current + ahead + 1)]
    return [
        Leaf(f"log_{start}", start, until)
        for start, until in slots
        if not any(leaf.start < until and start < leaf.until for leaf in there)
    ]


def newest_position(conn: Session) -> int:
    """The greatest position of any database."""
    return int(_first(conn, NEWEST, {}))


def make(conn: Session, leaf: Leaf, *, lock_timeout_ms: int, statement_timeout_ms: int) -> bool:
    """Make a partition, unless the default one already has rows of it; return whether it was made.

    Raises:
        psycopg.Error: a lock was not free at once, or it took too long.
    """
    if _first(conn, IN_DEFAULT, {"start": leaf.start, "until": leaf.until}):
        return False
    name = quote(leaf.name)
    try:
        with conn.transaction():
            conn.execute(SET_TIMES, {"lock": str(lock_timeout_ms), "statement": str(statement_timeout_ms)})
            conn.execute(
                f"create table anabranch.{name} partition of anabranch.log "
                f"for values from ({int(leaf.start)}) to ({int(leaf.until)})".encode()
            )
            conn.execute(f"alter table anabranch.{name} alter column effect set storage external".encode())
    except psycopg.errors.CheckViolation:
        # A group of that slot was committed since.
        return False
    return True


def is_needed(conn: Session, leaf: str) -> bool:
    """Whether a partition has rows above the floor of their database."""
    return bool(_first(conn, NEEDED.format(leaf=quote(leaf)), {}))


def passed(conn: Session, database_id: int, floor: int, now_ms: int) -> list[Leaf]:
    """The partitions whose slot is over and that have nothing of a database above ``floor``."""
    values = {"db": database_id, "floor": floor}
    over = [leaf for leaf in leaves(conn) if leaf.until <= now_ms]
    return [leaf for leaf in over if not _first(conn, AHEAD_OF.format(leaf=quote(leaf.name)), values)]


def empty_leaf(conn: Session, leaf: Leaf, *, lock_timeout_ms: int) -> bool:
    """Truncate a partition that no database needs; return whether that was done.

    Raises:
        psycopg.Error: its lock was not free at once.
    """
    name = quote(leaf.name)
    if _first(conn, EMPTY.format(leaf=name), {}):
        return False
    with conn.transaction():
        conn.execute(SET_LOCK, {"lock": str(lock_timeout_ms)})
        conn.execute(f"lock table anabranch.{name} in access exclusive mode".encode())
        # After a far step back of the server's clock, groups may have been written there since the caller's check.
        if is_needed(conn, leaf.name):
            return False
        conn.execute(f"truncate anabranch.{name}".encode())
    return True


def drop_leaf(conn: Session, leaf: Leaf, *, lock_timeout_ms: int) -> bool:
    """Detach an empty partition from the log and drop it; return whether that was done.

    Raises:
        psycopg.Error: the log's lock was not free at once.
    """
    name = quote(leaf.name)
    with conn.transaction():
        conn.execute(SET_LOCK, {"lock": str(lock_timeout_ms)})
        conn.execute(b"lock table only anabranch.log in access exclusive mode")
        if not _first(conn, EMPTY.format(leaf=name), {}):
            return False
        conn.execute(f"drop table anabranch.{name}".encode())
    return True


def _first(conn: Session, statement: str, values: Mapping[str, int]) -> int:
    row = conn.execute(statement.encode(), values or None).fetchone()
    assert row is not None
    return int(row[0])
