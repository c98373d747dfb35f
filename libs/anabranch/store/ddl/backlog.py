"""The schema version of each database, and the changes by DDL that the log lacks yet: how many, and since when.

Markers carry no time. So the caller remembers when it saw the oldest one first: as long as that waits, it has waited
since then at least.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import LiteralString, NamedTuple

from anabranch.store.session.engine import Session

_WAITING: LiteralString = """
select d.id, d.name, d.ddl_version, w.markers, w.oldest
from anabranch.databases d
cross join lateral (
    select count(*), min(c.id) from (
        select c.id from anabranch.captured c where c.database_id = d.id and c.type = 4 order by c.id limit %(most)s
    ) c
) w (markers, oldest)
order by d.name
"""
_MOST = 1_000


class SchemaBacklog(NamedTuple):
    """Of one database: its schema version, the markers that wait, and for how many seconds the oldest of them has been
    seen to wait."""

    name: str
    version: int
    markers: int
    age_s: float


MarkerMoments = MutableMapping[int, tuple[int, float]]
"""By database: the oldest marker, and when it was seen first, in seconds (``time.monotonic``)."""


def schema_backlogs(conn: Session, moments: MarkerMoments, now_s: float) -> list[SchemaBacklog]:
    """The backlog of every database, counted no further than a thousand. Keep ``moments`` from call to call.

    Raises:
        psycopg.Error: it can't be read.
    """
    found = conn.execute(_WAITING, {"most": _MOST}).fetchall()
    for number in moments.keys() - {row[0] for row in found}:
        del moments[number]
    backlogs = []
    for number, name, version, markers, oldest in found:
        if oldest is None:
            moments.pop(number, None)
        elif number not in moments or moments[number][0] != oldest:
            moments[number] = (oldest, now_s)
        since = moments[number][1] if number in moments else now_s
        backlogs.append(SchemaBacklog(name, version, markers, now_s - since))
    return backlogs
