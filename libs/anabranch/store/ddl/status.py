"""The schema of each database as ``anabranch status`` shows it: its version, and what the log lacks of DDL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from anabranch.store.ddl.install import installed
from anabranch.store.ddl.markers import Marker, waiting

MOST = 100
"""The most changes that are told of one database."""

_DATABASES: LiteralString = """
select d.id, d.ddl_version, coalesce((select c.position from anabranch.schema_changes c
                                      where c.database_id = d.id order by c.version desc limit 1), 0)
from anabranch.databases d
"""


@dataclass(frozen=True, slots=True)
class Altered:
    """A change by DDL that the log does not have yet: ``what`` became of ``table``, "" where it is of the whole schema.
    ``role``, ``application`` and ``command``: who made it, and how; "" where that is not known."""

    table: str
    what: str
    role: str
    application: str
    command: str


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The schema of a database. ``changed_ms``: the position of its last change, 0 before the first. ``waiting``: the
    changes that wait, in order, ``MOST`` at most. ``event_triggers``: whether DDL is noticed in the very moment."""

    version: int
    changed_ms: int
    waiting: tuple[Altered, ...]
    event_triggers: bool


def schema_statuses(conn: psycopg.Connection[Any]) -> dict[int, SchemaStatus]:
    """The schema of each database, by its number. Raises psycopg.Error."""
    watched = installed(conn)
    return {
        number: SchemaStatus(version, changed_ms, tuple(map(_altered, waiting(conn, number)[:MOST])), watched)
        for number, version, changed_ms in conn.execute(_DATABASES).fetchall()
    }


def _altered(marker: Marker) -> Altered:
    what = "was altered"
    if marker.schema_name:
        what = f'the schema is called "{marker.schema_name}"'
    elif marker.dropped:
        what = "was dropped, or moved out of the schema"
    elif marker.created:
        what = "is new"
    return Altered(marker.sql_name, what, marker.role, marker.application, marker.command)
