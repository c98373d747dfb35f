"""The batches that a resolver is about to try, written down before it does: where it is killed, the next one knows
which they were. The mark of a group is committed by itself, and deleted by the group's own transaction.

A process is known by a number, which it draws, and alive while a session of it holds the advisory lock of that number
(its listener does): nothing else lasts as long as a session. It counts only where a role holds it that may write marks.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from anabranch.store.inbox.claim import NOTHING_WRITTEN, Connection
from anabranch.store.inbox.take import KILLED
from anabranch.store.session.binary import run

OWNER_LOCK_CLASS = 0x616E616F
"""The first key of these locks; the second is the process's number."""
OWNER = secrets.randbits(31)
"""The number of this process."""

UNDERTAKE = """
insert into anabranch.undertaken as u (database_id, owner, batches) values (%(db)s, %(owner)s, %(ids)s)
on conflict (database_id) do update set owner = excluded.owner, batches = excluded.batches
"""

FINISH = "delete from anabranch.undertaken where database_id = %(db)s"

IS_ALIVE = """
select exists (
    select from pg_catalog.pg_locks l join pg_catalog.pg_stat_activity holder on holder.pid = l.pid
    where pg_catalog.has_table_privilege(holder.usesysid, 'anabranch.undertaken', 'INSERT')
      and l.locktype = 'advisory' and l.classid = %(class)s::bigint::oid and l.objid = %(owner)s::bigint::oid
      and l.objsubid = 2 and l.granted
      and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database()))
"""

SUSPECT = """
update anabranch.inbox set failure = %(failure)s
where database_id = %(db)s and batch_id = any(%(ids)s::text[]) and attempts = 0
"""

LIVE = "select pg_catalog.pg_advisory_lock_shared(%(class)s, %(owner)s)"


def undertake(conn: Connection, database_id: int, ids: Sequence[str]) -> None:
    """Write down that this process is about to try these batches. To be committed before it does."""
    with conn.pipeline():
        # Where Postgres itself crashes before the mark is on its disk, no resolver was at fault.
        run(conn, NOTHING_WRITTEN, ())
        conn.execute(UNDERTAKE, {"db": database_id, "owner": OWNER, "ids": list(ids)})


def finish(conn: Connection, database_id: int) -> None:
    """Delete what was written down for the database."""
    conn.execute(FINISH, {"db": database_id})


def is_alive(conn: Connection, owner: int) -> bool:
    """Whether a process is alive: it may have lost a session, and deals with that itself."""
    [(alive,)] = conn.execute(IS_ALIVE, {"class": OWNER_LOCK_CLASS, "owner": owner}).fetchall()
    return bool(alive)


def suspect(conn: Connection, database_id: int, ids: Sequence[str]) -> None:
    """Note of those batches of the inbox that have not failed alone that they were in work when a process was
    killed."""
    conn.execute(SUSPECT, {"db": database_id, "ids": list(ids), "failure": f"{KILLED} {len(ids)}"})


def show_alive(conn: Connection) -> None:
    """Have a session say that this process is alive, for as long as both last."""
    conn.execute(LIVE, {"class": OWNER_LOCK_CLASS, "owner": OWNER})
