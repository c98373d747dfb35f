"""Take batches from the inbox, as a resolver does while it holds a database's claim, and the head that it starts from.

A row of the inbox is *ready* (``park_deadline_ms`` is NULL) or *parked*: it waits for a batch, for a row, for
both (whichever comes first), or only for time, and is looked at again at ``park_deadline_ms`` at the latest.
The transaction that decides the awaited batch or writes the awaited row also makes it ready, so that no resolver has
to look through the parked ones.

Time is a parameter of every statement, in milliseconds. A look-up in a table is a scalar subquery with a LIMIT, which
is a probe by key whatever the statistics say: EXISTS may be turned into a hash of the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg

from anabranch.store.ddl.markers import ANY_WAITING

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
    time: an SQLSTATE, LOST, PROGRAM or KILLED. ``size`` is the payload's length in bytes. ``read_audiences`` and
    ``write_audiences``: what the claims gave with which it was sent, the latter None where it is the same; ``claims``:
    these, as JSON, where row-level security asks for them."""

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
    read_audiences: Sequence[str] | None = None
    write_audiences: Sequence[str] | None = None
    claims: str | None = None

    @property
    def company(self) -> int:
        """How many batches were in work, this one among them, when a process was killed; 0 where none was."""
        if self.failure is None or not self.failure.startswith(KILLED):
            return 0
        return int(self.failure.removeprefix(KILLED) or 1)


# One step of a loose index scan is one probe of inbox_ready, so that the cost follows the number of principals that
# wait and the number of batches taken, and never how many batches wait. The principals are gone through in turn from
# ``start``; each gives at most its share, and the ranks are taken in order: the first of each, then the second of each.
# Within a rank the turn counts too, and not the arrival: where large batches fill a group by their bytes, the first of
# a principal with a backlog is always older than the one of its neighbour.
# A share is twice that of an equal division, so that a group fills up where some principals have few batches.
# Parked ones are taken as they fall due. Where more are due than a group takes (a table was locked, and 50,000 batches
# rest that touch it), they are crowded, and gone through by their principals as well (``> 0``: by inbox_parked_of).
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
    select r.batch_id, w.principal, r.arrival, r.size,
           row_number() over (partition by w.principal order by r.arrival) as rank
    from waiting w cross join lateral (
        select i.batch_id, i.arrival, octet_length(i.payload) as size from anabranch.inbox i
        where i.database_id = %(db)s and i.principal = w.principal and i.park_deadline_ms is null
        order by i.arrival limit (select most from share)
    ) r
),
first_due as materialized (
    select i.batch_id, i.principal, i.arrival, octet_length(i.payload) as size from anabranch.inbox i
    where i.database_id = %(db)s and i.park_deadline_ms <= %(now)s
    order by i.park_deadline_ms limit %(most)s
),
crowded as materialized (select true as crowded from first_due having count(*) >= %(most)s),
parked(principal) as (
    (select i.principal from anabranch.inbox i
     where i.database_id = %(db)s and i.park_deadline_ms > 0 and (select crowded from crowded)
     order by i.principal limit 1)
  union all
    select (select i.principal from anabranch.inbox i
            where i.database_id = %(db)s and i.park_deadline_ms > 0 and i.principal > p.principal
            order by i.principal limit 1)
    from parked p where p.principal is not null
),
due_share as materialized (
    select least(%(most)s, greatest(1, 2 * %(most)s / greatest(1, count(p.principal))))::bigint as most from parked p
),
due as (
    select d.batch_id, d.principal, d.arrival, d.size,
           row_number() over (partition by d.principal order by d.arrival) as rank
    from (
        select f.batch_id, f.principal, f.arrival, f.size from first_due f where (select crowded from crowded) is null
      union all
        select r.batch_id, p.principal, r.arrival, r.size from parked p cross join lateral (
            select i.batch_id, i.arrival, octet_length(i.payload) as size from anabranch.inbox i
            where i.database_id = %(db)s and i.principal = p.principal and i.park_deadline_ms > 0
              and i.park_deadline_ms <= %(now)s
            order by i.park_deadline_ms limit (select most from due_share)
        ) r
        where p.principal is not null
    ) d
),
taken as materialized (
    select t.batch_id, t.size, t.turn from (
        select a.batch_id, a.size, row_number() over w as turn, sum(a.size) over w as bytes
        from (select * from ready union all select * from due) a
        window w as (order by a.rank, a.principal <= %(start)s, a.principal, a.arrival rows unbounded preceding)
    ) t
    where t.turn <= %(most)s and (t.bytes <= %(bytes)s or t.turn = 1)
)
select i.batch_id, i.node_id, i.principal, i.basis, i.prev, i.payload,
       i.payload_sha256, i.traceparent, i.arrived_ms, i.attempts, i.failure, i.refusal, i.refusal_message,
       (select true from anabranch.batches b
        where b.database_id = %(db)s and b.batch_id = i.batch_id limit 1) is not null,
       i.prev is null or (select true from anabranch.batches b
                          where b.database_id = %(db)s and b.batch_id = i.prev limit 1) is not null,
       n.last_accepted, n.missing, t.size, i.read_audiences, i.write_audiences,
       i.claims
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

# TAKE where there are few, which is so whenever there is no backlog: all of them, without turns. One row without a
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
       n.last_accepted, n.missing, f.size, i.read_audiences, i.write_audiences,
       i.claims
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


# The state that a group starts from. A statement after the claim's own reads it, and so sees the last holder's work.
HEAD: LiteralString = f"""
select coalesce(g.position, 0), g.chain, d.name, d.schema_version,
       (extract(epoch from clock_timestamp()) * 1000)::bigint,
       (select true from anabranch.inbox i
        where i.database_id = d.id and i.park_deadline_ms is not null limit 1) is not null,
       (select true from anabranch.captured c where c.database_id = d.id limit 1) is not null,
       u.owner, u.batches, {ANY_WAITING.format(database="d.id")}
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
    over principals, each one's by arrival. ``start`` is a principal: those after it come first, which counts where not
    all find a place. ``few``: there are probably not many. The returned function returns the batches."""
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


class Head(NamedTuple):
    """The head of a database: its last group (position 0 and no chain where there is none), its name and schema
    version, Postgres's clock in milliseconds, whether a batch of it is parked, and whether captured changes wait.
    ``undertaken``: the batches that the process ``owner`` has written down and not finished, None where none has.
    ``any_marker``: a table was altered, and the change waits to be taken."""

    position: int
    chain: bytes | None
    name: str
    schema_version: int
    clock_ms: int
    any_parked: bool
    any_captured: bool
    owner: int | None = None
    undertaken: Sequence[str] | None = None
    any_marker: bool = False


def read_head(conn: Connection, database_id: int) -> Head | None:
    """The head of the database; None where there is none of that number any more."""
    row = conn.execute(HEAD, {"db": database_id}).fetchone()
    return Head._make(row) if row else None


def read_sums(conn: Connection, table_ids: Collection[int]) -> dict[int, tuple[int, int]]:
    """Count and hash of each table's rows after the last group."""
    rows = conn.execute(SUMS, {"tables": sorted(table_ids)})
    return {table: (count, int.from_bytes(row_hash, "big")) for table, count, row_hash in rows}


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
