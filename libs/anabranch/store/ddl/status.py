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
# Such a table may have been there before the policy was, or nobody heard of it. Without a key it is left alone.
_LEFT_OUT: LiteralString = """
select d.id, c.relname
from (select d.id, anabranch.schema_on_record(d.id) as schema_name from anabranch.databases d
      where coalesce(d.policy ->> 'new_tables', 'none') <> 'none') d
join pg_catalog.pg_namespace n on n.nspname = d.schema_name
join pg_catalog.pg_class c on c.relnamespace = n.oid
where c.relkind = 'r' and not c.relispartition and c.relpersistence = 'p'
  and exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary)
  and not exists (select from pg_catalog.pg_trigger t where t.tgrelid = c.oid
                  and t.tgfoid = 'anabranch.capture_truncate()'::pg_catalog.regprocedure)
  and not exists (select from anabranch.synced_tables s
                  where s.database_id = d.id and coalesce(s.sql_name, s.name) = c.relname)
  and anabranch.takes_new_table(d.id, c.relname)
order by d.id, c.relname
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
    changes that wait, in order, ``MOST`` at most. ``event_triggers``: whether DDL is noticed in the very moment.
    ``left_out``: tables that are not synced though the database's policy ``new_tables`` names them, ``MOST`` at
    most."""

    version: int
    changed_ms: int
    waiting: tuple[Altered, ...]
    event_triggers: bool
    left_out: tuple[str, ...] = ()


def schema_statuses(conn: psycopg.Connection[Any]) -> dict[int, SchemaStatus]:
    """The schema of each database, by its number. Raises psycopg.Error."""
    watched = installed(conn)
    left_out: dict[int, list[str]] = {}
    for number, table in conn.execute(_LEFT_OUT).fetchall():
        left_out.setdefault(number, []).append(table)
    return {
        number: SchemaStatus(
            version,
            changed_ms,
            tuple(map(_altered, waiting(conn, number)[:MOST])),
            watched,
            tuple(left_out.get(number, ())[:MOST]),
        )
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
