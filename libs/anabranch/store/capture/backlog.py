"""How many changes written by SQL the log still lacks, and since when.

Captured rows carry no time: it would cost their writers. So the caller remembers the moment of an earlier look: as long
as a row waits that was there then, the oldest has waited since then at least. When none is left the memory begins anew,
so that a drain which lags by a minute shows ages up to a minute.

Changes that the triggers of a cut-off registration still gather wait, too, though nothing drains them (``cut_off``).
They are counted while no registration runs, and have no age: no resolver is late with them.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import LiteralString, NamedTuple

from anabranch.store.session.engine import Session
from anabranch.store.session.own_locks import REGISTRATION_RUNS

WAITING: LiteralString = f"""
select d.id, d.name, (select count(*) from (
           select from anabranch.captured c where c.database_id = d.id limit %(most)s
       ) counted), pg_current_snapshot()::text, (select count(*) from (
           select from anabranch.captured c where c.database_id = -d.id and not {REGISTRATION_RUNS} limit %(most)s
       ) gathered)
from anabranch.databases d order by d.name
"""
STILL_WAITS = """
select exists (
    select from (
        select c.xid from anabranch.captured c where c.database_id = %(database)s order by c.id limit %(most)s
    ) w
    where pg_visible_in_snapshot(w.xid, %(moment)s::pg_snapshot)
)
"""


class CapturedBacklog(NamedTuple):
    """Of one database: captured changes that wait, and for how many seconds the oldest has been seen to wait."""

    name: str
    changes: int
    age_s: float


Moments = MutableMapping[int, tuple[str, float]]
"""By database: the snapshot of an earlier look, and its time in seconds (``time.monotonic``)."""


def captured_backlogs(conn: Session, moments: Moments, now_s: float, most: int) -> list[CapturedBacklog]:
    """The backlog of every database, counted no further than ``most``. Keep ``moments`` from call to call.

    Raises:
        psycopg.Error: it can't be read.
    """
    found = conn.execute(WAITING, {"most": most}).fetchall()
    for number in moments.keys() - {row[0] for row in found}:
        del moments[number]
    backlogs = []
    for number, name, changes, moment, left in found:
        age_s = 0.0
        if not changes:
            moments.pop(number, None)
        elif number in moments and _still_waits(conn, number, moments[number][0], most):
            age_s = now_s - moments[number][1]
        else:
            moments[number] = (moment, now_s)
        backlogs.append(CapturedBacklog(name, min(changes + left, most), age_s))
    return backlogs


def _still_waits(conn: Session, database_id: int, moment: str, most: int) -> bool:
    row = conn.execute(STILL_WAITS, {"database": database_id, "moment": moment, "most": most}).fetchone()
    return row is not None and bool(row[0])
