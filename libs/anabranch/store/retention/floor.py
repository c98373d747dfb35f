"""The floor: the facts that decide where it may be, the janitor's lead, and the step that moves it.

The lead is a lock of a transaction (``session.own_locks``), so that it holds behind a transaction pooler, too, and ends
with its transaction however that ends. The transaction does nothing else: before each step the janitor checks that its
session still has the lead (``lead``). A janitor that was stopped and comes back after another one took over finds out
there, and a step that was under way is harmless: every one of them checks its own conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from anabranch.columnar.proof import Sum
from anabranch.merge.retention import Facts, Slowest, absent_before_ms
from anabranch.store.catalog.policy import DatabasePolicy, database_policy
from anabranch.store.lake.compactions import HEAD, LAST, Published, read_conflict_sums, read_log_sums
from anabranch.store.session.engine import Session, SessionOptions, connect
from anabranch.store.session.own_locks import LEAD

STILL_LEADS = "select 1"
DATABASES = """
select d.id, d.name, d.epoch, d.floor_ms, d.policy from anabranch.databases d
where %(name)s::text is null or d.name = %(name)s order by d.name
"""
RUNS = """
select from_position, to_position from anabranch.compactions
where database_id = %(db)s and epoch = %(epoch)s and to_position > %(floor)s order by from_position
"""
FIRST_RUN = "select min(from_position) from anabranch.compactions where database_id = %(db)s"
SLOWEST = """
select node_id, name, acknowledged from anabranch.nodes
where database_id = %(db)s and last_seen_ms >= %(since)s order by acknowledged, node_id limit 1
"""
GROUPS = """
select position, changes from anabranch.groups
where database_id = %(db)s and position > %(floor)s and position <= %(upto)s order by position limit %(most)s
"""
LAST_GROUP = """
select position from anabranch.groups
where database_id = %(db)s and position > %(floor)s and position <= %(upto)s order by position desc limit 1
"""
# A node that was seen since the facts were read counts, too.
MOVE = """
update anabranch.databases d set floor_ms = %(to)s
where d.id = %(db)s and d.epoch = %(epoch)s and d.floor_ms = %(floor)s
  and not exists (select from anabranch.nodes n
                  where n.database_id = d.id and n.last_seen_ms >= %(since)s and n.acknowledged < %(to)s)
"""
CLOCK = "select (extract(epoch from clock_timestamp()) * 1000)::bigint"
MORE_TIME = "select set_config('statement_timeout', %(ms)s, true)"
READ_TIMEOUT_MS = 60_000
MOST_GROUPS = 10_000
"""Groups that one step of the floor looks at."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A database, as a sweep sees it."""

    id: int
    name: str
    epoch: str
    floor: int
    policy: DatabasePolicy


def session(url: str, name: str, *, statement_timeout_ms: int, lock_timeout_ms: int, idle_ms: int) -> Session:
    """A session of the janitor, in autocommit.

    Raises:
        psycopg.OperationalError: the server can't be reached, or refuses the session.
    """
    options = SessionOptions(
        statement_timeout_ms=statement_timeout_ms,
        lock_timeout_ms=lock_timeout_ms,
        idle_in_transaction_session_timeout_ms=idle_ms,
        client_connection_check_interval_ms=1_000,
    )
    return connect(url, application_name=f"anabranch-{name}", autocommit=True, options=options)


@contextmanager
def lead(conn: Session) -> Iterator[Callable[[], None] | None]:
    """Be the one janitor that sweeps while the block lasts. Yields a function that raises psycopg.Error where the lead
    is lost; None where another janitor has the lead. ``conn`` does nothing else meanwhile."""
    with conn.transaction(force_rollback=True):
        yield (lambda: _still(conn)) if _takes_lead(conn) else None


def _takes_lead(conn: Session) -> bool:
    try:
        with conn.transaction():
            conn.execute(LEAD)
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def _still(conn: Session) -> None:
    """Raises psycopg.Error where the session, and the lead with it, is gone."""
    conn.execute(STILL_LEADS)


def server_ms(conn: Session) -> int:
    """Postgres's clock, in milliseconds."""
    return int(_one(conn, CLOCK, {})[0])


def databases(conn: Session, name: str | None = None) -> list[Kept]:
    """All databases, or the one of that name."""
    rows = conn.execute(DATABASES, {"name": name}).fetchall()
    return [Kept(number, found, epoch, floor, database_policy(policy)) for number, found, epoch, floor, policy in rows]


def read_facts(conn: Session, kept: Kept, now_ms: int) -> tuple[Facts, Published | None]:
    """The facts that decide where the floor may be, at one moment, and the newest published run of its epoch."""
    since = absent_before_ms(now_ms, kept.policy.absence_days)
    values = {"db": kept.id, "epoch": kept.epoch, "floor": kept.floor, "since": since}
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read read only")
        conn.execute(MORE_TIME, {"ms": str(READ_TIMEOUT_MS)})
        head = int(_one(conn, HEAD, values)[0])
        runs = [(after, upto) for after, upto in conn.execute(RUNS, values).fetchall()]
        compacted_from = _one(conn, FIRST_RUN, values)[0]
        slowest = conn.execute(SLOWEST, values).fetchone()
        newest = conn.execute(LAST, values).fetchone()
    facts = Facts(
        now_ms,
        kept.floor,
        head,
        kept.policy.retention_days,
        kept.policy.absence_days,
        compacted_from,
        runs,
        None if slowest is None else Slowest(*slowest),
    )
    return facts, None if newest is None else Published(*newest)


def last_group(conn: Session, kept: Kept, upto: int) -> int:
    """The last group above the floor and not above ``upto``: the floor's new position. The floor, where there is
    none."""
    row = conn.execute(LAST_GROUP, {"db": kept.id, "floor": kept.floor, "upto": upto}).fetchone()
    return kept.floor if row is None else int(row[0])


def next_step(conn: Session, kept: Kept, upto: int, changes: int) -> int:
    """The end of the floor's next step: a group above the floor, not above ``upto``, with at most ``changes`` changes
    up to it, or the next group, whatever it has. The floor, where there is none."""
    values = {"db": kept.id, "floor": kept.floor, "upto": upto, "most": MOST_GROUPS}
    total, end = 0, kept.floor
    for position, count in conn.execute(GROUPS, values).fetchall():
        total += count
        if total > changes and end > kept.floor:
            break
        end = position
    return end


def log_sum(conn: Session, kept: Kept, after: int, upto: int) -> Sum:
    """Number and sum of the effect hashes that the log has in (``after``, ``upto``], of all tables together. It only
    reads, and one group may be large: so it has more time than the statements that write."""
    total = Sum()
    with conn.transaction():
        conn.execute(MORE_TIME, {"ms": str(READ_TIMEOUT_MS)})
        for one in read_log_sums(conn, kept.id, after, upto).values():
            total += one.effects
    return total


def conflict_sum(conn: Session, kept: Kept, after: int, upto: int) -> Sum:
    """Number of the values that lost in (``after``, ``upto``] and the sum of their hashes, of all tables together."""
    total = Sum()
    with conn.transaction():
        conn.execute(MORE_TIME, {"ms": str(READ_TIMEOUT_MS)})
        for one in read_conflict_sums(conn, kept.id, after, upto).values():
            total += one.effects
    return total


def move_floor(conn: Session, kept: Kept, to: int, now_ms: int) -> bool:
    """Move the floor to ``to`` and commit; return whether that was done. It is not done where the epoch or the floor is
    another one by now, or a node was seen meanwhile that has not acknowledged so much."""
    since = absent_before_ms(now_ms, kept.policy.absence_days)
    values = {"db": kept.id, "epoch": kept.epoch, "floor": kept.floor, "to": to, "since": since}
    return conn.execute(MOVE, values).rowcount == 1


def is_timeout(error: Exception) -> bool:
    """Whether a statement ran too long, or waited too long for a lock: smaller, or later, it may succeed."""
    return isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable)


def _one(conn: Session, statement: str, values: dict[str, Any]) -> tuple[Any, ...]:
    row = conn.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row
