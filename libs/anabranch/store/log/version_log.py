"""The schema versions of a database as people read them: with the nodes that are on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import LiteralString

from anabranch.store.catalog.databases import UnknownDatabaseError
from anabranch.store.log.schema_versions import SchemaVersion, schema_versions
from anabranch.store.session.engine import Session
from anabranch.store.session.steps import run

_DATABASE: LiteralString = """
select d.id, d.ddl_version, (extract(epoch from clock_timestamp()) * 1000)::int8
from anabranch.databases d where d.name = %s
"""
_READ: LiteralString = """
select width_bucket(n.acknowledged, %(positions)s::int8[]), count(*)
from anabranch.nodes n where n.database_id = %(database)s group by 1
"""
"""Nodes by how many of these positions, in order, they have read."""
_APPS: LiteralString = """
select n.app_version, count(*) from anabranch.nodes n
where n.database_id = %(database)s and n.app_version > 0 group by 1
"""
FIRST = 1
"""The version of a database whose schema has not changed yet."""


@dataclass(frozen=True, slots=True)
class LoggedVersion:
    """A version. ``change`` began it; None for the first. ``nodes``: those that have read up to it and not to the next
    one; ``before``: those that have not come to it; ``apps``: those whose app was built for it."""

    version: int
    change: SchemaVersion | None
    nodes: int
    before: int
    apps: int


@dataclass(frozen=True, slots=True)
class VersionLog:
    """The versions of a database, the newest first. ``apps_ahead``: nodes by the version that their app was built for,
    of versions that the database does not have yet."""

    database: str
    now_ms: int
    versions: tuple[LoggedVersion, ...]
    apps_ahead: Mapping[int, int]


def version_log(conn: Session, database: str) -> VersionLog:
    """The versions of a database, of one moment.

    Raises:
        UnknownDatabaseError: there is no database of that name.
        psycopg.Error: they can't be read.
    """
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read read only")
        row = conn.execute(_DATABASE, (database,)).fetchone()
        if row is None:
            raise UnknownDatabaseError(f"there is no database {database!r}")
        number, latest, now_ms = row
        changes = run(conn, schema_versions(number, 0, latest))
        wanted = {"database": number, "positions": [change.position for change in changes]}
        read: dict[int, int] = dict(conn.execute(_READ, wanted).fetchall())
        apps: dict[int, int] = dict(conn.execute(_APPS, wanted).fetchall())
    versions: list[LoggedVersion] = []
    before = 0
    for place, change in enumerate((None, *changes)):
        version = FIRST if change is None else change.version
        versions.append(LoggedVersion(version, change, read.get(place, 0), before, apps.pop(version, 0)))
        before += read.get(place, 0)
    return VersionLog(database, now_ms, tuple(reversed(versions)), apps)
