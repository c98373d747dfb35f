"""The databases that have work for a resolver, and how much of it waits in the inbox."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

Connection = psycopg.Connection[Any]

# The databases in which a batch is ready or due, or captured changes wait.
HAS_WORK = b"""
select d.id from anabranch.databases d
where (select true from anabranch.inbox i
       where i.database_id = d.id and i.park_deadline_ms is null limit 1) is not null
   or (select true from anabranch.inbox i
       where i.database_id = d.id and i.park_deadline_ms <= $1::int8 limit 1) is not null
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


class InboxBacklog(NamedTuple):
    """How many batches of a database are ready and how many are parked, each counted up to a limit."""

    database_id: int
    name: str
    ready: int
    parked: int


def backlogs(conn: Connection, most: int) -> list[InboxBacklog]:
    """The backlog of every database, counted up to ``most``."""
    return [InboxBacklog._make(row) for row in conn.execute(BACKLOG, {"most": most})]
