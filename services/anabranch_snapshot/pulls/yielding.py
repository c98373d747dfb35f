"""Lets those pass who alter tables: a pull or a comparison that holds a table's lock gives way as soon as somebody
waits to alter the table, or to truncate it. Its client goes on with another call.

So DDL waits for readers no longer than for a group, however long these have read and still want to. Locks are looked at
only while there are readers, all in one statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from anabranch.runtime import metrics
from anabranch.store.ddl.in_the_way import in_the_way
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncPool
from anabranch_snapshot.pulls.turns import Turns

LOOK_S = 0.1
_log = structlog.get_logger()


async def give_way(pool: AsyncPool, turns: Sequence[Turns]) -> None:
    """Look, again and again, for ever, whether sessions of these are in the way, and end them."""
    begun = asyncio.Event()
    for one in turns:
        one.on_begin = begun.set
    while True:
        begun.clear()
        if not any(one.sessions for one in turns):
            await begun.wait()
        await asyncio.sleep(LOOK_S)
        by_pid = {session.pid: session for one in turns for session in one.sessions if session.pid is not None}
        if not by_pid:
            continue
        try:
            async with pool.connection() as conn:
                found = await in_the_way(conn, by_pid)
        except Exception as error:
            if not is_unavailable(error):
                raise
            _log.warning("locks can't be looked at", error=type(error).__name__, detail=error)
            continue
        for pid in found:
            metrics.count("anabranch_calls_dropped", why="altered")
            by_pid[pid].cut("somebody waits to alter or truncate a table that is read: go on with another call")
