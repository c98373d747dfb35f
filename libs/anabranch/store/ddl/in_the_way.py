"""Sessions that stand in the way of those who alter tables."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.store.session.engine import AsyncSession, Session

_HELD = """
from pg_catalog.pg_locks w
join pg_catalog.pg_locks h on h.locktype = w.locktype and h.database = w.database and h.relation = w.relation
where w.locktype = 'relation' and not w.granted and w.mode = 'AccessExclusiveLock'
  and h.granted and h.pid
"""
_IN_THE_WAY = f"select distinct h.pid {_HELD} = any(%s)"
_IS_IN_THE_WAY = f"select exists (select {_HELD} = pg_catalog.pg_backend_pid())"


async def in_the_way(conn: AsyncSession, pids: Iterable[int]) -> list[int]:
    """Those of some sessions, by their processes in Postgres, that hold a lock on a table for whose exclusive lock
    somebody waits. Raises psycopg.Error."""
    rows = await (await conn.execute(_IN_THE_WAY, (list(pids),))).fetchall()
    return [pid for (pid,) in rows]


def is_in_the_way(conn: Session) -> bool:
    """Whether this session itself holds such a lock. Raises psycopg.Error."""
    return conn.execute(_IS_IN_THE_WAY).fetchone() == (True,)
