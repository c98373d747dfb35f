"""Read and change the inbox, as a resolver does while it holds a database's claim.

A row of the inbox is *ready* (``park_deadline_ms`` is NULL) or *parked*: it waits for a batch, for a row, for
both (whichever comes first), or only for time, and is looked at again at ``park_deadline_ms`` at the latest.
The transaction that decides the awaited batch or writes the awaited row also makes it ready, so that no resolver has
to look through the parked ones.

Time is a parameter of every statement, in milliseconds. A look-up in a table is a scalar subquery with a LIMIT, which
is a probe by key whatever the statistics say: EXISTS may be turned into a hash of the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg

from anabranch import limits
from anabranch.store.cells.index_keys import index_key, index_keys

Connection = psycopg.Connection[Any]


LOST, PROGRAM, KILLED = "lost", "program", "killed"
"""How a batch can fail other than with an SQLSTATE: its session was lost without an error of the server, the program
raised an error of its own, or its process was killed. KILLED and a number, of a batch that has not failed alone yet:
so many were in work then, and it was one of them."""


class Taken(NamedTuple):
    """A batch of the inbox. ``decided``: there is a verdict already. ``prev_decided``: there is one of ``prev``, or
    there is no ``prev``. ``last_accepted``: the greatest id among the accepted batches of its node, None where there is
    none. ``missing``: the id of a batch that had not come when a later one of the node, which named it, was decided; it
    may have come since. ``attempts``: how often it failed alone while others passed, ``failure`` how it failed the last
    time: an SQLSTATE, LOST, PROGRAM or KILLED. ``size`` is the payload's length in bytes."""

    batch_id: str
    node_id: str
    principal: str
    basis: int
    prev: str | None
    payload: bytes
    payload_sha256: bytes
    traceparent: str | None
    arrived_ms: int
    attempts: int
    failure: str | None
    refusal: int | None
    refusal_message: str | None
    decided: bool
    prev_decided: bool
    last_accepted: str | None
    missing: str | None
    size: int

    @property
    def company(self) -> int:
        """How many batches were in work, this one among them, when a process was killed; 0 where none was."""
        if self.failure is None or not self.failure.startswith(KILLED):
            return 0
        return int(self.failure.removeprefix(KILLED) or 1)


# One step of a loose index scan is one probe of inbox_ready, so that the cost follows the number of principals that
# wait and the number of batches taken, and never how many batches wait. The principals are gone through in turn from
# ``start``; each gives at most its share, and the ranks are taken in order: the first of each, then the second of each.
# A share is twice that of an equal division, so that a group fills up where some principals have few batches.
TAKE = """
with recursive
later(principal) as (
    (select i.principal from anabranch.inbox i
     where i.database_id = %(db)s and i.park_deadline_ms is null and i.principal > %(start)s
     order by i.principal limit 1)
  union all
    select (select i.principal from anabranch.inbox i
            where i.database_id = %(db)s and i.park_deadline_ms is null and i.principal > p.principal
            order by i.principal limit 1)
    from later p where p.principal is not null
),
earlier(principal) as (
    (select i.principal from anabranch.inbox i
     where i.database_id = %(db)s and i.park_deadline_ms is null and i.principal <= %(start)s
     order by i.principal limit 1)
  union all
    select (select i.principal from anabranch.inbox i
            where i.database_id = %(db)s and i.park_deadline_ms is null
              and i.principal > p.principal and i.principal <= %(start)s
            order by i.principal limit 1)
    from earlier p where p.principal is not null
),
waiting as materialized (
    select a.principal from (select principal from later union all select principal from earlier) a
    where a.principal is not null limit %(most)s
),
share as materialized (
    select least(%(most)s, greatest(1, 2 * %(most)s / greatest(1, (select count(*) from waiting))))::bigint as most
),
ready as (
    select r.batch_id, r.arrival, r.size, row_number() over (partition by w.principal order by r.arrival) as rank
    from waiting w cross join lateral (
        select i.batch_id, i.arrival, octet_length(i.payload) as size from anabranch.inbox i
        where i.database_id = %(db)s and i.principal = w.principal and i.park_deadline_ms is null
        order by i.arrival limit (select most from share)
    ) r
),
due as (
    select d.batch_id, d.arrival, d.size, row_number() over (partition by d.principal order by d.arrival) as rank
    from (
        select i.batch_id, i.arrival, i.principal, octet_length(i.payload) as size from anabranch.inbox i
        where i.database_id = %(db)s and i.park_deadline_ms <= %(now)s
        order by i.park_deadline_ms limit %(most)s
    ) d
),
taken as materialized (
    select t.batch_id, t.size, t.turn from (
        select a.batch_id, a.size, row_number() over w as turn, sum(a.size) over w as bytes
        from (select * from ready union all select * from due) a
        window w as (order by a.rank, a.arrival rows unbounded preceding)
    ) t
    where t.turn <= %(most)s and (t.bytes <= %(bytes)s or t.turn = 1)
)
select i.batch_id, i.node_id, i.principal, i.basis, i.prev, i.payload,
       i.payload_sha256, i.traceparent, i.arrived_ms, i.attempts, i.failure, i.refusal, i.refusal_message,
       (select true from anabranch.batches b
        where b.database_id = %(db)s and b.batch_id = i.batch_id limit 1) is not null,
       i.prev is null or (select true from anabranch.batches b
                          where b.database_id = %(db)s and b.batch_id = i.prev limit 1) is not null,
       n.last_accepted, n.missing, t.size
from taken t
cross join lateral (
    select * from anabranch.inbox x where x.database_id = %(db)s and x.batch_id = t.batch_id limit 1
) i
left join lateral (
    select y.last_accepted, y.missing from anabranch.nodes y
    where y.database_id = %(db)s and y.node_id = i.node_id limit 1
) n on true
order by t.turn
"""

# The same where there are few, which is so whenever there is no backlog: all of them, without turns. One row without a
# batch says that there are more than that.
TAKE_FEW = """
with few as materialized (
    (select i.batch_id, octet_length(i.payload) as size from anabranch.inbox i
     where i.database_id = %(db)s and i.park_deadline_ms is null limit %(few)s + 1)
  union all
    (select i.batch_id, octet_length(i.payload) as size from anabranch.inbox i
     where i.database_id = %(db)s and i.park_deadline_ms <= %(now)s limit %(few)s + 1)
)
select a.many, i.batch_id, i.node_id, i.principal, i.basis, i.prev, i.payload,
       i.payload_sha256, i.traceparent, i.arrived_ms, i.attempts, i.failure, i.refusal, i.refusal_message,
       (select true from anabranch.batches b
        where b.database_id = %(db)s and b.batch_id = i.batch_id limit 1) is not null,
       i.prev is null or (select true from anabranch.batches b
                          where b.database_id = %(db)s and b.batch_id = i.prev limit 1) is not null,
       n.last_accepted, n.missing, f.size
from (select count(*) > %(few)s or coalesce(sum(size), 0) > %(bytes)s as many from few) a
left join few f on not a.many
left join lateral (
    select * from anabranch.inbox x where x.database_id = %(db)s and x.batch_id = f.batch_id limit 1
) i on true
left join lateral (
    select y.last_accepted, y.missing from anabranch.nodes y
    where y.database_id = %(db)s and y.node_id = i.node_id limit 1
) n on true
"""
FEW = 16

HAS_WORK = """
select d.id from anabranch.databases d
where (select true from anabranch.inbox i
       where i.database_id = d.id and i.park_deadline_ms is null limit 1) is not null
   or (select true from anabranch.inbox i
       where i.database_id = d.id and i.park_deadline_ms <= %(now)s limit 1) is not null
   or (select true from anabranch.captured c where c.database_id = d.id limit 1) is not null
order by d.id
"""

# Counted no further than the limit, so that the cost does not follow the backlog.
BACKLOG = """
select d.id, d.name,
       (select count(*) from (select from anabranch.inbox i
                              where i.database_id = d.id and i.park_deadline_ms is null limit %(most)s) a),
       (select count(*) from (select from anabranch.inbox i
                              where i.database_id = d.id and i.park_deadline_ms is not null limit %(most)s) a)
from anabranch.databases d
"""

# The state that a group starts from. A statement after the claim's own reads it, and so sees the last holder's work.
HEAD = """
select coalesce(g.position, 0), g.chain, d.name, d.schema_version,
       (extract(epoch from clock_timestamp()) * 1000)::bigint,
       (select true from anabranch.inbox i
        where i.database_id = d.id and i.park_deadline_ms is not null limit 1) is not null,
       (select true from anabranch.captured c where c.database_id = d.id limit 1) is not null,
       u.owner, u.batches
from anabranch.databases d
left join anabranch.undertaken u on u.database_id = d.id
left join lateral (
    select x.position, x.chain from anabranch.groups x where x.database_id = d.id order by x.position desc limit 1
) g on true
where d.id = %(db)s
"""

SUMS = """
select s.table_id, s.row_count, s.row_hash from unnest(%(tables)s::int[]) q(table_id)
cross join lateral (select * from anabranch.table_sums x where x.table_id = q.table_id limit 1) s
"""

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

AWAITS_ROW: LiteralString = f"waits_for_key is not null and park_deadline_ms >= arrived_ms + {limits.BATCH_EXPIRY_MS}"
"""True of a row of the inbox whose batch waits for a row of a table, beyond its park time."""

AWAITED: LiteralString = f"""
    {AWAITS_ROW} as awaits, x.park_deadline_ms, x.waits_for_key as awaited_key,
    (select t.name from anabranch.synced_tables t where t.id = x.waits_for_table limit 1) as awaited_in
"""
"""Of a row ``x`` of the inbox: whether its batch waits for a row in this way, until when, and for which row."""

AWAITING_ROWS = f"""
select q.id from unnest(%(ids)s::text[]) q(id)
where (select {AWAITS_ROW} from anabranch.inbox i
       where i.database_id = %(db)s and i.batch_id = q.id limit 1)
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

PARK = """
update anabranch.inbox i
set park_deadline_ms = q.at, waits_for_batch = q.batch, waits_for_table = q.table_id, waits_for_key = q.key
from unnest(%(ids)s::text[], %(at)s::bigint[], %(batches)s::text[], %(tables)s::int[], %(keys)s::text[])
     q(id, at, batch, table_id, key)
where i.database_id = %(db)s and i.batch_id = q.id
"""

# A chain of batches that wait for one another is set free as a whole: they are decided in one group, by id.
FREE = """
with recursive freed(batch_id) as (
    (select i.batch_id from unnest(%(decided)s::text[]) q(id)
        join anabranch.inbox i on i.database_id = %(db)s and i.waits_for_batch = q.id
     union
     select i.batch_id from unnest(%(tables)s::int[], %(keys)s::text[]) q(table_id, key)
        join anabranch.inbox i on i.waits_for_table = q.table_id and i.waits_for_key = q.key
     where i.database_id = %(db)s)
  union
    select i.batch_id from freed f
        join anabranch.inbox i on i.database_id = %(db)s and i.waits_for_batch = f.batch_id
)
update anabranch.inbox i
set park_deadline_ms = null, waits_for_batch = null, waits_for_table = null, waits_for_key = null
from freed f
where i.database_id = %(db)s and i.batch_id = f.batch_id
"""

COUNT_ATTEMPT = """
update anabranch.inbox
set attempts = greatest(attempts + 1, %(least)s), failure = %(failure)s,
    park_deadline_ms = %(now)s + %(rest)s * (%(grows)s ^ attempts)::bigint
where database_id = %(db)s and batch_id = %(id)s
returning attempts
"""


def take(
    conn: Connection, database_id: int, *, most: int, most_bytes: int, now_ms: int, start: str, few: bool
) -> Callable[[], list[Taken]]:
    """Ask for up to ``most`` batches (or, from the second on, ``most_bytes`` of payload) that may be decided: fairly
    over principals, each one's by arrival. ``start`` is a principal: those after it come first where there are more
    principals than places. ``few``: there are probably not many. The returned function returns the batches."""
    parameters = {"db": database_id, "most": most, "bytes": most_bytes, "now": now_ms, "start": start, "few": FEW}
    if not few or most < FEW:
        cursor = conn.execute(TAKE, parameters)
        return lambda: [Taken._make(row) for row in cursor]
    cursor = conn.execute(TAKE_FEW, parameters)

    def answer() -> list[Taken]:
        rows = cursor.fetchall()
        if rows[0][0]:
            return [Taken._make(row) for row in conn.execute(TAKE, parameters)]
        return [Taken._make(row[1:]) for row in rows if row[1] is not None]

    return answer


def databases_with_work(conn: Connection, now_ms: int) -> list[int]:
    """The numbers of the databases in which a batch is ready or due, or captured changes wait."""
    return [row[0] for row in conn.execute(HAS_WORK, {"now": now_ms})]


class InboxBacklog(NamedTuple):
    """How many batches of a database are ready and how many are parked, each counted up to a limit."""

    database_id: int
    name: str
    ready: int
    parked: int


def backlogs(conn: Connection, most: int) -> list[InboxBacklog]:
    """The backlog of every database, counted up to ``most``."""
    return [InboxBacklog._make(row) for row in conn.execute(BACKLOG, {"most": most})]


class Head(NamedTuple):
    """The head of a database: its last group (position 0 and no chain where there is none), its name and schema
    version, Postgres's clock in milliseconds, whether a batch of it is parked, and whether captured changes wait.
    ``undertaken``: the batches that the process ``owner`` has written down and not finished, None where none has."""

    position: int
    chain: bytes | None
    name: str
    schema_version: int
    clock_ms: int
    any_parked: bool
    any_captured: bool
    owner: int | None = None
    undertaken: Sequence[str] | None = None


def read_head(conn: Connection, database_id: int) -> Head | None:
    """The head of the database; None where there is none of that number any more."""
    row = conn.execute(HEAD, {"db": database_id}).fetchone()
    return Head._make(row) if row else None


def read_sums(conn: Connection, table_ids: Collection[int]) -> dict[int, tuple[int, int]]:
    """Count and hash of each table's rows after the last group."""
    rows = conn.execute(SUMS, {"tables": sorted(table_ids)})
    return {table: (count, int.from_bytes(row_hash, "big")) for table, count, row_hash in rows}


def earliest_pending(
    conn: Connection, database_id: int, node_ids: Collection[str], at_hand: Sequence[str]
) -> dict[str, str]:
    """For each node the least id among its batches in the inbox, those ``at_hand`` left out; none where there
    is none."""
    rows = conn.execute(EARLIEST_PENDING, {"db": database_id, "nodes": list(node_ids), "ids": list(at_hand)})
    return {row[0]: row[1] for row in rows}


def awaiting_rows(conn: Connection, database_id: int, batch_ids: Collection[str]) -> set[str]:
    """Those of ``batch_ids`` that wait for a row, beyond their park time."""
    rows = conn.execute(AWAITING_ROWS, {"db": database_id, "ids": list(batch_ids)})
    return {row[0] for row in rows}


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


class Parking(NamedTuple):
    """A batch that waits until ``until_ms`` at the latest, for a batch, for a row, or only for that time."""

    batch_id: str
    until_ms: int
    for_batch: str | None = None
    for_table: int | None = None
    for_key: str | None = None


def park(conn: Connection, database_id: int, parkings: Sequence[Parking]) -> None:
    """Have batches of the inbox wait."""
    ids, at, batches, tables, keys = zip(*parkings, strict=True)
    conn.execute(
        PARK,
        {
            "db": database_id,
            "ids": list(ids),
            "at": list(at),
            "batches": list(batches),
            "tables": list(tables),
            "keys": [key if key is None else index_key(key) for key in keys],
        },
    )


def free(
    conn: Connection,
    database_id: int,
    *,
    decided: Sequence[str],
    rows: Sequence[tuple[int, str]],
) -> None:
    """Make ready the batches that wait for one that is now ``decided`` or for one of the ``rows`` (table id, key
    text) that are now there, and those that wait for them in turn."""
    conn.execute(
        FREE,
        {
            "db": database_id,
            "decided": list(decided),
            "tables": [table for table, _ in rows],
            "keys": index_keys([key for _, key in rows]),
        },
    )


def count_attempt(
    conn: Connection,
    database_id: int,
    batch_id: str,
    now_ms: int,
    rest_ms: int,
    grows: int,
    *,
    failure: str,
    least: int = 0,
) -> int | None:
    """Count a failure of a batch that was alone in its group, as one that makes ``least`` at least, and let it rest:
    ``rest_ms`` the first time, ``grows`` times as long each further time. Return the number of its failures; None where
    the batch is gone."""
    parameters = {"db": database_id, "id": batch_id, "now": now_ms, "rest": rest_ms, "grows": grows}
    parameters |= {"least": least, "failure": failure}
    row = conn.execute(COUNT_ATTEMPT, parameters).fetchone()
    return row[0] if row else None
