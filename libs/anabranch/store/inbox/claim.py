"""The claim of a database: the right to commit its groups.

A claim is the lock of a row of ours (``session.own_locks``), so that it ends with its transaction, however that ends:
COMMIT, ROLLBACK, or the end of the session. The session's own limits make the last one sure within seconds:

* a stopped process (SIGSTOP) is idle in its transaction: ``idle_in_transaction_session_timeout``;
* one that is stopped in the middle of a large answer leaves bytes unacknowledged: ``tcp_user_timeout``;
* one whose network is gone: the same, and keepalives where nothing is under way;
* a killed one whose statement still runs: ``client_connection_check_interval``;
* a statement that hangs: ``statement_timeout``, and ``lock_timeout`` where it waits for another session's lock.

One gap is left: a pipeline before its Sync, in which a session counts as active and waits for its client without
limit, and, where the statements are the driver's own, one behind it: the driver sends a Flush after the Sync, which
makes Postgres (seen with 18) forget that the session is idle in a transaction. A process that is stopped there would
keep its claim. So the other resolvers look for claims whose holders wait for their clients (``silent_claims``), and
when they see the same one again, with no statement in between, after as long as an idle claim may last, they end its
session (``end_session``). Where Postgres has ``transaction_timeout`` (since 17), that ends it even if there is no other
resolver.

The claim is taken by a statement of its own: under READ COMMITTED every later statement then sees all commits of
the claim's last holder.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import psycopg

from anabranch.store.inbox.backlog import HAS_WORK
from anabranch.store.inbox.take import HEAD, Head
from anabranch.store.session.binary import dedicate, run
from anabranch.store.session.channels import CATALOG_CHANNEL, INBOX_CHANNEL
from anabranch.store.session.direct import DirectConnection
from anabranch.store.session.engine import CONNECT_S, SessionOptions, connect_as
from anabranch.store.session.listening import database_of
from anabranch.store.session.own_locks import MAKE_CLAIMS, TRY_CLAIM
from anabranch.store.session.patience import bear
from anabranch.values.postgres_binary import int8, text

Connection = psycopg.Connection[Any]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Claimed(Generic[T]):
    """``ours``: whether the claim is this session's; if not, another one has it. ``head``: the database's head, None
    if there is no database of that number. ``answer`` returns the result of the further questions."""

    ours: bool
    head: Head | None
    answer: Callable[[], T]


NOTHING_WRITTEN = b"set local synchronous_commit = off"

LIMIT_TRANSACTIONS = """
select pg_catalog.set_config('transaction_timeout', %(ms)s, false)
where pg_catalog.current_setting('transaction_timeout', true) is not null
"""
# A waiting session gives up before any other one has waited long enough to look for a deadlock, which would end it.
# A transaction that has held locks for long can't know since when others wait for them: see shorten_waits.
YIELD = """
select pg_catalog.set_config('lock_timeout', least(%(ms)s::int, greatest(1, s.setting::int / 4))::text, false),
       s.setting::int
from pg_catalog.pg_settings s where s.name = 'deadlock_timeout'
"""
SHORTEN_WAITS = b"select pg_catalog.set_config('lock_timeout', '5', true)"
"""In milliseconds: the shortest time in which another session can finish growing a table by a page."""
WAIT_AS_USUAL = b"select pg_catalog.set_config('lock_timeout', $1, true)"
PREPARED_AT_MOST = 300
"""Prepared statements of one session: those of a group, and those on the tables, for each set of columns."""
_SILENCE_MARGIN_MS = 5_000
TRANSACTION_STATEMENTS = 3
"""A transaction may take as long as so many of the longest statements."""

# Setting it to its present value changes nothing: the time that has begun goes on. So it is set to 0 first.
RENEW = """
select pg_catalog.set_config('transaction_timeout', '0', true), pg_catalog.set_config('transaction_timeout', s.ms, true)
from (select pg_catalog.current_setting('transaction_timeout', true) as ms offset 0) s where s.ms is not null
"""

# The time that has begun goes on, whatever value is set, unless 0 ends it first.
ALLOW = """
select pg_catalog.set_config('statement_timeout', %(ms)s, true),
       case when s.known then pg_catalog.set_config('transaction_timeout', '0', true) end,
       case when s.known then pg_catalog.set_config('transaction_timeout', %(ms)s, true) end
from (select pg_catalog.current_setting('transaction_timeout', true) is not null as known offset 0) s
"""

LIMITS = b"""
select pg_catalog.current_setting('statement_timeout'),
       coalesce(pg_catalog.current_setting('transaction_timeout', true), '')
"""

# The transaction's time begins anew.
RESTORE_LIMITS = b"""
select pg_catalog.set_config('statement_timeout', $1::text, true),
       case when $2::text <> '' then pg_catalog.set_config('transaction_timeout', '0', true) end,
       case when $2::text <> '' then pg_catalog.set_config('transaction_timeout', $2::text, true) end
"""

SILENT_CLAIMS = b"""
select a.pid, a.backend_start::text, a.state_change::text
from anabranch.claims c
join pg_catalog.pg_locks l on l.locktype = 'transactionid' and l.granted and l.transactionid = c.xmax
join pg_catalog.pg_stat_activity a on a.pid = l.pid
where c.xmax <> '0'::pg_catalog.xid
  and a.state <> 'idle' and a.wait_event = 'ClientRead' and a.pid <> pg_catalog.pg_backend_pid()
"""

END_SESSION = b"""
select pg_catalog.pg_terminate_backend(a.pid) from pg_catalog.pg_stat_activity a
where a.pid = $1::int8 and a.backend_start::text = $2::text and a.state_change::text = $3::text
  and a.state <> 'idle' and a.wait_event = 'ClientRead'
"""

PLANNING = MappingProxyType(
    {
        # A plan made while a table was empty must not stay a sequential scan when it has grown: all statements of a
        # resolver look rows up by key.
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "plan_cache_mode": "force_generic_plan",
        "tcp_keepalives_idle": "2",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "3",
    }
)


def session_options(*, statement_timeout_ms: int, lock_timeout_ms: int, idle_timeout_ms: int) -> SessionOptions:
    """The limits of a session that claims databases. ``idle_timeout_ms`` is how long a stopped or cut-off
    process keeps a claim."""
    return SessionOptions(
        statement_timeout_ms=statement_timeout_ms,
        lock_timeout_ms=lock_timeout_ms,
        idle_in_transaction_session_timeout_ms=idle_timeout_ms,
        client_connection_check_interval_ms=1_000,
        connect_timeout_s=CONNECT_S,
        # Statements go out together, and so do their answers.
        silence_ms=TRANSACTION_STATEMENTS * statement_timeout_ms + _SILENCE_MARGIN_MS,
        settings={**PLANNING, "tcp_user_timeout": str(idle_timeout_ms)},
    )


def open_session(url: str, options: SessionOptions) -> Connection:
    """A session that claims databases; READ COMMITTED, as every session.

    Raises:
        psycopg.OperationalError: the server can't be reached, or refuses the session.
    """
    name = "anabranch-conflict-resolver"
    conn = connect_as(DirectConnection, url, application_name=name, autocommit=True, options=options)
    conn.prepared_most = PREPARED_AT_MOST
    [(lock_timeout, deadlock_ms)] = conn.execute(YIELD, {"ms": options.lock_timeout_ms}).fetchall()
    _lock_timeouts[conn] = lock_timeout
    _young_s[conn] = deadlock_ms / 4_000
    conn.execute(LIMIT_TRANSACTIONS, {"ms": str(TRANSACTION_STATEMENTS * options.statement_timeout_ms)})
    conn.autocommit = False
    dedicate(conn)
    return conn


def claim(conn: Connection, database_id: int, then: Callable[[], Callable[[], T]]) -> Claimed[T]:
    """Claim the database for the rest of this transaction, which this call begins; it never waits. ``then`` sends
    further questions about the database in the same pipeline, for the case that the claim is ours, and returns a
    function that returns their answer.
    """
    _begun_s[conn] = time.monotonic()
    # Statements with a snapshot each, sent together.
    with conn.pipeline():
        claimed = conn.execute(TRY_CLAIM, (database_id,))
        head = conn.execute(HEAD, {"db": database_id})
        answer = then()
        ours = claimed.fetchone() is not None
        row = head.fetchone()
    return Claimed(ours, Head._make(row) if row else None, answer)


def give_up(conn: Connection) -> None:
    """End a claiming transaction that has written nothing, without a wait for the disk: the claim's lock alone has
    given it a number. Not by a ROLLBACK, at which the driver forgets all prepared statements."""
    run(conn, NOTHING_WRITTEN, ())
    conn.commit()


_young_s: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
"""How many seconds a claiming session's transaction may wait for locks: a quarter of ``deadlock_timeout``. A statement
sent within them has as long again to reach a lock, and a quarter to wait for it, before a session that has waited for
the transaction since its beginning looks for a deadlock."""
_begun_s: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
_lock_timeouts: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()


def shorten_waits(conn: Connection) -> None:
    """Let a claiming transaction that is no longer young give up at once where it would wait for a lock: a session that
    waits for it might look for a deadlock just then, find one, and fail. Call this before statements that may wait, and
    again after a rollback to a savepoint. It sends at most one statement, whose answer no caller needs."""
    if _is_old(conn):
        run(conn, SHORTEN_WAITS, ())


def wait_as_usual(conn: Connection) -> None:
    """Let a transaction after ``shorten_waits`` wait as usual again: for rows of our own tables. Other sessions hold
    these for the length of an append, and none of them can wait for a row of the application."""
    if _is_old(conn):
        run(conn, WAIT_AS_USUAL, [text(_lock_timeouts[conn])])


def _is_old(conn: Connection) -> bool:
    return time.monotonic() - _begun_s.get(conn, float("inf")) > _young_s.get(conn, float("inf"))


def renew(conn: Connection) -> None:
    """Restart the transaction's time limit: for one that is long because it does much, piece by piece."""
    conn.execute(RENEW)


def allow(conn: Connection, statement_ms: int) -> None:
    """Give this transaction another time limit, for one statement or all of them."""
    bear(conn, (statement_ms + _SILENCE_MARGIN_MS) / 1000)
    conn.execute(ALLOW, {"ms": str(statement_ms)})


@contextmanager
def longer(conn: Connection, statement_ms: int) -> Iterator[None]:
    """Give this transaction another time limit for some statements; a transaction that fails in one is rolled back with
    the limit."""
    [limits] = run(conn, LIMITS, ()).fetchall()
    allow(conn, statement_ms)
    yield
    run(conn, RESTORE_LIMITS, [text(limit) for limit in limits])


class SilentClaim(NamedTuple):
    """A session that holds a claim and waits for its client. ``change`` is when its last statement began or ended; the
    moments are texts of Postgres's, and only compared with one another."""

    pid: int
    start: str
    change: str


def silent_claims(conn: Connection) -> list[SilentClaim]:
    """The sessions that hold a claim and wait for their client, for however short a time."""
    return [SilentClaim._make(row) for row in run(conn, SILENT_CLAIMS, ())]


def end_session(conn: Connection, claim: SilentClaim) -> None:
    """End the session, if it is still as it was seen.

    Raises:
        psycopg.errors.InsufficientPrivilege: it belongs to another role.
    """
    parameters = [int8(claim.pid), text(claim.start), text(claim.change)]
    run(conn, END_SESSION, parameters)


def open_listener(url: str, options: SessionOptions) -> DirectConnection:
    """A session that hears (``heard``) of batches and of changes of the catalog. Each statement sees all commits before
    it.

    Raises:
        psycopg.OperationalError: the server can't be reached, or refuses the session.
    """
    name = "anabranch-conflict-resolver-listener"
    conn = connect_as(DirectConnection, url, application_name=name, autocommit=True, options=options)
    came = _came[conn] = deque[psycopg.Notify]()
    conn.add_notify_handler(came.append)
    for channel in (INBOX_CHANNEL, CATALOG_CHANNEL):
        conn.execute(f"listen {channel}".encode())
    return conn


def heard(conn: DirectConnection, timeout_s: float) -> Iterator[int | None]:
    """Numbers of databases in which batches were appended or tables registered, as notified since the last call or
    within ``timeout_s`` seconds. Any session may send a notification: None for one that is no such number, and a number
    may be that of no database.

    Raises:
        psycopg.OperationalError: the session is lost.
    """
    end, came = time.monotonic() + timeout_s, _came[conn]
    while True:
        while came:
            yield database_of(came.popleft().payload)
        left_s = end - time.monotonic()
        if left_s <= 0:
            return
        conn.await_notifications(left_s)


_came: WeakKeyDictionary[Connection, deque[psycopg.Notify]] = WeakKeyDictionary()
"""Notifications that a listener's session has got, and nobody has read."""


class Around(NamedTuple):
    """The finds of a listener's look. ``known``: the numbers of all databases, ``silent``: claims whose holders are
    silent; None where it was not asked for."""

    work: list[int]
    known: frozenset[int] | None
    silent: list[SilentClaim] | None


def look_around(conn: Connection, now_ms: int, *, learns: bool, judges: bool) -> Around:
    """Look which databases have work, in one send. ``learns``: and which there are, each of which can be claimed from
    now on; ``judges``: and which claims are silent.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    with conn.pipeline():
        known = run(conn, MAKE_CLAIMS.encode(), ()) if learns else None
        work = run(conn, HAS_WORK, [int8(now_ms)])
        silent = run(conn, SILENT_CLAIMS, ()) if judges else None
    return Around(
        [number for (number,) in work],
        None if known is None else frozenset(number for (number,) in known),
        None if silent is None else [SilentClaim._make(row) for row in silent],
    )
