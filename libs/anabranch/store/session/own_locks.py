"""Locks that keep sessions of ours apart, and that no role without rights on our tables can take.

An advisory lock is for every role that may connect, and one that is held stops whoever waits for it. So what must not
be stopped is locked as rows and tables of ours:

* *the claim* of a database is its row in ``anabranch.claims``: whoever holds it commits groups, or keeps them away.
* *the lead* among janitors is the whole table ``anabranch.leads``. A row's lock would give the transaction a number,
  and a transaction with a number that lasts for a sweep keeps vacuum from removing rows.
* *migrations* lock the table of the schema's revision.
* *a registration* that goes on over several transactions has an advisory lock all the same, as nothing else lasts as
  long as a session. Part of its number is drawn, so that nobody can take it before; and it counts only where a role
  holds it that may register tables.
"""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg

Connection = psycopg.Connection[Any]

TRY_CLAIM: LiteralString = "select true from anabranch.claims where database_id = %s for update skip locked"
"""One row where the claim is this transaction's now. A statement of its own: later ones see all commits before it."""

_MAKE_CLAIM: LiteralString = """
insert into anabranch.claims (database_id) select d.id from anabranch.databases d where d.id = %s
on conflict (database_id) do nothing
"""
_WAIT_FOR_CLAIM: LiteralString = "select true from anabranch.claims where database_id = %s for update"
WAIT_FOR_CLAIM = b"select true from anabranch.claims where database_id = $1::int8::int for update"

# The release before makes databases without one.
MAKE_CLAIMS: LiteralString = """
with made as (
    insert into anabranch.claims (database_id)
    select d.id from anabranch.databases d
    where not exists (select from anabranch.claims c where c.database_id = d.id)
    on conflict (database_id) do nothing
)
select d.id from anabranch.databases d
"""

LEAD: LiteralString = "lock table anabranch.leads in exclusive mode nowait"
"""Raises LockNotAvailable where another session has the lead."""

# A registration's number: the high half is a hash of database and table, the low one this tag and 20 bits by chance.
_TAG: LiteralString = "1633681408"
_LAST: LiteralString = "1634729983"
_OLD_CLASS: LiteralString = "1634623858"
"""The first key of registrations' locks in the release before: a session of it may still hold one."""

_HELD: LiteralString = f"""
exists (select from pg_catalog.pg_locks l
        join pg_catalog.pg_database own on own.oid = l.database and own.datname = pg_catalog.current_database()
        join pg_catalog.pg_stat_activity holder on holder.pid = l.pid
        where l.locktype = 'advisory' and l.granted
          and pg_catalog.has_table_privilege(holder.usesysid, 'anabranch.synced_tables', 'INSERT')
          and (l.objsubid = 1 and l.objid::bigint between {_TAG} and {_LAST}
               or l.objsubid = 2 and l.classid::bigint = {_OLD_CLASS})
"""

REGISTRATION_RUNS: LiteralString = _HELD + ")"
"""Whether any table is being registered."""


def registered_now(name: LiteralString, *, elsewhere: bool = False) -> LiteralString:
    """SQL: whether a table is being registered, whose database and name the expression ``name`` gives, with a blank
    between; ``elsewhere``: by another session than this one."""
    place: LiteralString = "case l.objsubid when 1 then l.classid::bigint else l.objid::bigint end"
    others: LiteralString = " and l.pid <> pg_catalog.pg_backend_pid()" if elsewhere else ""
    return f"{_HELD} and {place} = (pg_catalog.hashtext({name})::bigint & 4294967295){others})"


_DRAW: LiteralString = f"""
select (pg_catalog.hashtext(%(name)s)::bigint << 32)
       | ({_TAG} + pg_catalog.floor(pg_catalog.random() * 1048576)::bigint)
"""
_TAKE: LiteralString = "select pg_catalog.pg_try_advisory_lock(%s)"
_TAKE_FOR_TRANSACTION: LiteralString = "select pg_catalog.pg_try_advisory_xact_lock(%s)"
_GIVE_BACK: LiteralString = "select pg_catalog.pg_advisory_unlock(%s)"
_ELSEWHERE: LiteralString = f"select {registered_now('%(name)s', elsewhere=True)}"
_DRAWS = 20


def wait_for_claim(conn: Connection, database_id: int) -> None:
    """Claim the database for the rest of this transaction: no group commits meanwhile.

    Raises:
        psycopg.errors.LockNotAvailable: another session has had it for too long.
    """
    conn.execute(_MAKE_CLAIM, (database_id,))
    conn.execute(_WAIT_FOR_CLAIM, (database_id,))


def begin_registration(conn: Connection, name: str, *, for_transaction: bool = False) -> int | None:
    """Say that this session registers the table ``name`` (database, blank, table), until ``end_registration`` or, with
    ``for_transaction``, to the transaction's end. Gives the lock's number; None where another session does, too: of two
    that begin at one moment perhaps neither succeeds."""
    take = _TAKE_FOR_TRANSACTION if for_transaction else _TAKE
    for _ in range(_DRAWS):
        [(number,)] = conn.execute(_DRAW, {"name": name}).fetchall()
        [(ours,)] = conn.execute(take, (number,)).fetchall()
        if ours:
            break
    else:
        return None
    [(elsewhere,)] = conn.execute(_ELSEWHERE, {"name": name}).fetchall()
    if not elsewhere:
        return int(number)
    if not for_transaction:
        end_registration(conn, number)
    return None


def end_registration(conn: Connection, number: int) -> None:
    """Give back what ``begin_registration`` has taken."""
    conn.execute(_GIVE_BACK, (number,))
