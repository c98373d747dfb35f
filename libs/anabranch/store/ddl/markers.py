"""Markers: rows of ``anabranch.captured`` of type 4, which say at which place among the captured changes a table was
altered, and how it is from there on.

The event triggers write them (migration 0024), inside the transaction that alters; where there are none, ``notice``
does. ALTER TABLE keeps all other sessions from the table until its end. So of one table no image stands on the wrong
side of such a marker, and once it can be seen, so can all images before it.

ALTER TYPE takes no lock of any table. A transaction that wrote to one before may be open when the marker can be seen,
and commit at any moment: its images stand before the marker and come after it. One that began before may also go on to
write, behind the marker, as the type was. So whoever handles a marker may at any moment find further images that are
older.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from anabranch.store.ddl.shapes import Shape

Connection = psycopg.Connection[Any]

TYPE = 4
"""``captured.type`` of a marker."""

ANY_WAITING: LiteralString = """
(select true from anabranch.captured marker where marker.database_id = {database} and marker.type = 4 limit 1)
is not null
"""
"""SQL: whether a marker waits for the database that ``{database}`` names (``.format``). Answered by an index of markers
alone, which is nearly always empty."""

_WAITING: LiteralString = """
select id, xid::text::int8, table_id, database_id, coalesce(role, ''), coalesce(application, ''),
       convert_from(new, 'UTF8')::jsonb
from anabranch.captured where database_id = %s and type = 4 order by id
"""
_ANY: LiteralString = f"select {ANY_WAITING.format(database='%s')}"
_DELETE: LiteralString = "delete from anabranch.captured where database_id = %s and type = 4 and id = any(%s)"

_TO_PULL: LiteralString = """
insert into anabranch.captured (database_id, table_id, xid, type, depth, new)
select s.database_id, s.id, pg_catalog.pg_current_xact_id(), 4, 1,
       pg_catalog.convert_to(pg_catalog.jsonb_build_object(
           'sql_name', c.relname, 'relation', c.oid::int8, 'shape', anabranch.shape_of(c.oid),
           'ambiguous', %(why)s::text)::text, 'UTF8')
from anabranch.synced_tables s join pg_catalog.pg_class c on c.oid = anabranch.captured_by(s.database_id, s.id)
where s.database_id = %(database)s and s.name = %(table)s
"""


@dataclass(frozen=True, slots=True)
class Marker:
    """A change of one table by DDL. ``shape``: as the table is from here on, None where it is gone, or was moved out of
    the database's schema (``dropped``). ``relation`` is the table's oid, ``sql_name`` its name from here on.
    ``created``: the table is new, and ``table_id`` the number that it is to be registered by. ``rewritten``: not 0
    where Postgres wrote all of its rows anew, so that columns may have other values: the reasons as
    ``pg_event_trigger_table_rewrite_reason`` tells them, 2 for a column's default or expression, 4 for a type.
    ``schema_name``: the database's schema is called so from here on; then it is of no table. ``ambiguous``: no event
    trigger saw it, and the images that wait do not show which of them are older; "" where they do, else why not.
    ``command`` is the text that its session ran, cut; ``tag`` names the command."""

    id: int
    xid: int
    table_id: int
    database_id: int
    shape: Shape | None
    sql_name: str
    relation: int
    command: str
    tag: str
    role: str
    application: str
    rewritten: int = 0
    dropped: bool = False
    created: bool = False
    ambiguous: str = ""
    schema_name: str = ""
    placed: int = 0

    @property
    def before_id(self) -> int:
        """Images of the table with smaller numbers are older than this change. Its own number, but where no event
        trigger has seen it (``placed``)."""
        return self.placed or self.id


def waiting(conn: Connection, database_id: int) -> list[Marker]:
    """The markers that wait, in their order. Raises psycopg.Error."""
    return [_marker(*row) for row in conn.execute(_WAITING, (database_id,)).fetchall()]


def is_any_waiting(conn: Connection, database_id: int) -> bool:
    """Whether a marker waits. Raises psycopg.Error."""
    return conn.execute(_ANY, (database_id,)).fetchone() == (True,)


def delete(conn: Connection, database_id: int, markers: Iterable[Marker]) -> None:
    """Delete markers. Raises psycopg.Error."""
    conn.execute(_DELETE, (database_id, [marker.id for marker in markers]))


def mark_to_pull(conn: Connection, database_id: int, table: str, why: str) -> None:
    """Write a marker by which the table of an identity is pulled anew, altered or not: ``why``, for people.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    conn.execute(_TO_PULL, {"database": database_id, "table": table, "why": why})


def _marker(
    number: int, xid: int, table_id: int, database_id: int, role: str, application: str, told: dict[str, Any]
) -> Marker:
    shape = told.get("shape")
    return Marker(
        id=number,
        xid=xid,
        table_id=table_id,
        database_id=database_id,
        shape=None if shape is None else Shape.from_json(shape),
        sql_name=told.get("sql_name", ""),
        relation=told.get("relation", 0),
        command=told.get("command", ""),
        tag=told.get("tag", ""),
        role=role,
        application=application,
        rewritten=told.get("rewritten", 0),
        dropped=told.get("dropped", False),
        created=told.get("created", False),
        ambiguous=told.get("ambiguous", ""),
        schema_name=told.get("schema_name", ""),
        placed=told.get("before_id", 0),
    )
