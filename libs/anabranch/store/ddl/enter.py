"""Enter a schema change into the catalog: the one place where registrations follow DDL.

All of it is part of the group whose transaction calls: the catalog, the entry for the log and the group are one commit.
The session may have few rights: it calls functions of migration 0024 that have more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.types.json import Jsonb

from anabranch.store.catalog.databases import Database, columns_to_json, former_columns_to_json
from anabranch.store.catalog.sure import sure_refusals
from anabranch.store.ddl.difference import TableChange
from anabranch.store.ddl.markers import Marker, delete, waiting
from anabranch.store.ddl.shapes import Shape
from anabranch.store.session.channels import CATALOG_CHANNEL
from anabranch.store.session.steps import run
from anabranch.v1 import snapshot_pb2
from anabranch.values import Table
from anabranch.wire.tables import ColumnFacts, table_message

Connection = psycopg.Connection[Any]

_FOLLOW: LiteralString = """
select anabranch.follow_table(%(number)s, %(columns)s, %(former)s, %(key)s::text[], %(sql_name)s, %(shape)s,
                              %(policies)s, %(position)s)
"""
_RENEW: LiteralString = "select anabranch.renew_table(%(number)s, %(now)s)"
_END: LiteralString = "select anabranch.end_table(%(number)s)"
_BEGIN: LiteralString = """
select anabranch.begin_table(%(database)s, %(number)s, %(name)s, %(columns)s, %(key)s::text[], %(shape)s, %(now)s)
"""
_LEAVE: LiteralString = "select anabranch.leave_table(%(database)s, %(number)s)"
_MOVE: LiteralString = "select anabranch.move_database(%(database)s)"
_REFUSE: LiteralString = "select anabranch.refuse_table(%(number)s, %(relation)s::int8::oid, %(why)s, %(now)s)"
_SHAPE_BEFORE: LiteralString = """
insert into anabranch.captured_shapes (table_id, before_id, shape)
select %s, %s, %s || pg_catalog.jsonb_build_object('until', pg_catalog.pg_snapshot_xmax(s)::text)
from pg_catalog.pg_current_snapshot() s
on conflict (table_id, before_id) do nothing
"""
# ALTER TYPE locks no table: transactions that began to write before it was seen may be open. They have lower numbers
# than "until"; when the oldest that is open has no lower one, all that they have captured can be seen.
_FORGET_SHAPES: LiteralString = """
delete from anabranch.captured_shapes s using anabranch.synced_tables t
where t.id = s.table_id and t.database_id = %(database)s and not exists (
    select from anabranch.captured c
    where c.database_id = %(database)s and c.table_id = s.table_id and c.type <> 4
      and (c.id < s.before_id or c.xid < (s.shape ->> 'until')::xid8)
) and coalesce(
    (s.shape ->> 'until')::xid8 <= pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()), true
)
"""
_CHANGED: LiteralString = """
with changed as (
    update anabranch.databases set schema_version = schema_version + 1, ddl_version = ddl_version + %(by)s
    where id = %(database)s returning id, ddl_version
)
select ddl_version, pg_catalog.pg_notify(%(channel)s, id::text) from changed
"""
_ENTRY: LiteralString = """
insert into anabranch.schema_changes
    (database_id, version, position, noticed_ms, role, application, command, change, tables)
values (%(database)s, %(version)s, %(position)s, %(now)s, %(role)s, %(application)s, %(command)s, %(message)s,
        %(tables)s)
"""
_DELETE_CHANGES: LiteralString = """
delete from anabranch.captured where database_id = %s and table_id = %s and type <> 4
"""
_MOST_COMMAND = 4_000


class Entered(NamedTuple):
    """A schema change that is in the catalog. ``version``: the database's schema version from here on. ``message``: the
    serialized SchemaChange. ``changes``: as they were carried out, with the new numbers of those that are pulled."""

    version: int
    message: bytes
    changes: tuple[TableChange, ...]


def enter(
    conn: Connection, database: Database, changes: Sequence[TableChange], *, position: int, now_ms: int
) -> Entered | None:
    """Carry out the changes of ``changes_of``, in its transaction, delete their markers, and publish: services learn of
    the new catalog when the transaction commits. None where nothing changed that the log or a device has to know. The
    caller holds the database's claim, loads the database anew afterwards, and has to

    * drain waiting images by ``images.image_shapes``,
    * write the values of ``rewritten`` columns, and the rows of new tables (``before`` is None), as effects of the
      group,
    * set the sums of tables with ``recount``: those of a new table, and of a pulled one, stand at no rows.

    Captured changes of tables that are gone or pulled are deleted. Those of a new table stay: its rows show them.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    conn.execute(_FORGET_SHAPES, {"database": database.id})
    of_database = [marker for marker in waiting(conn, database.id) if marker.schema_name]
    if of_database:
        conn.execute(_MOVE, {"database": database.id})
    done = tuple(_carried_out(conn, database, change, position, now_ms) for change in changes)
    delete(conn, database.id, [*of_database, *(marker for change in changes for marker in change.markers)])
    known = [change for change in done if change.is_known]
    publish = {"database": database.id, "by": 1 if known else 0, "channel": CATALOG_CHANNEL}
    [(version, _)] = conn.execute(_CHANGED, publish).fetchall()
    if not known:
        return None
    schema_name = of_database[-1].schema_name if of_database else database.schema_name
    message = _message(conn, database, schema_name, known, version, position).SerializeToString(deterministic=True)
    commands = [marker for change in known for marker in change.markers]
    _enter_entry(conn, database.id, known, commands, version, position, now_ms, message)
    return Entered(version, message, done)


def refuse_for_good(conn: Connection, database_id: int, markers: Sequence[Marker], *, now_ms: int) -> None:
    """Set a table aside whose change can't be taken, as it is by the last of its ``markers``, which are deleted: it is
    no change until it is altered again. Nothing tells why: by its look it may be as it was registered.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    last = markers[-1]
    conn.execute(_REFUSE, {"number": last.table_id, "relation": last.relation, "why": None, "now": now_ms})
    delete(conn, database_id, markers)


def _carried_out(conn: Connection, database: Database, change: TableChange, position: int, now_ms: int) -> TableChange:
    """The change as it was carried out."""
    numbers = {"database": database.id, "number": change.number, "now": now_ms}
    before, after = change.before, change.after
    if before is None and after is None:
        # New and refused, or gone again; or its registration has ended.
        conn.execute(_DELETE_CHANGES, (database.id, change.number))
        if change.refused:
            conn.execute(_LEAVE, numbers)
    elif after is None:
        conn.execute(_END, numbers)
        conn.execute(_DELETE_CHANGES, (database.id, change.number))
    elif change.refused:
        conn.execute(_REFUSE, {**numbers, "relation": change.markers[-1].relation, "why": change.refused})
    elif before is None:
        described = {
            "name": after.name,
            "columns": Jsonb(columns_to_json(after.columns)),
            "key": list(after.key_columns),
        }
        conn.execute(_BEGIN, {**numbers, **described, "shape": _json(change.shape)})
    else:
        return _followed(conn, database, change, position, numbers)
    return change


def _followed(
    conn: Connection, database: Database, change: TableChange, position: int, numbers: dict[str, int]
) -> TableChange:
    before, after = change.before, change.after
    assert before is not None
    assert after is not None
    conn.execute(
        _FOLLOW,
        {
            "number": before.id,
            "columns": Jsonb(columns_to_json(after.columns)),
            "former": Jsonb(former_columns_to_json(after.former)),
            "key": list(after.key_columns),
            "sql_name": after.sql_name,
            "shape": _json(change.shape),
            "policies": Jsonb({c.name: c.policy for c in after.columns if c.policy != "lww"}),
            "position": position if change.is_known else None,
        },
    )
    if change.pulled:
        conn.execute(_DELETE_CHANGES, (database.id, before.id))
        [(anew,)] = conn.execute(_RENEW, numbers).fetchall()
        return replace(change, after=replace(after, id=anew))
    for marker, shape in zip(change.markers, change.shapes_before, strict=True):
        conn.execute(_SHAPE_BEFORE, (before.id, marker.before_id, _json(shape)))
    return change


def _json(shape: Shape | None) -> Jsonb | None:
    return None if shape is None else Jsonb(shape.to_json())


def _message(
    conn: Connection,
    database: Database,
    schema_name: str,
    changes: Sequence[TableChange],
    version: int,
    position: int,
) -> snapshot_pb2.SchemaChange:
    there = [(change, change.after) for change in changes if change.after is not None]
    sure = run(conn, sure_refusals(schema_name, [table.sql_name for _, table in there]))
    messages = []
    for change, table in there:
        facts = {
            column.name: ColumnFacts(one.base_type, one.labels, one.refuses_null)
            for column in table.columns
            if (one := sure.get((table.sql_name, column.sql_name))) is not None
        }
        message = table_message(table, facts, changed_position=0 if change.before is None else position)
        if change.before is not None:
            policy = database.table_policies[change.before.name]
            message.restricted = change.before.name in database.restricted
            message.every_device_sees_every_row = policy.every_device_sees_every_row
        messages.append(message)
    return snapshot_pb2.SchemaChange(
        version=version,
        tables=messages,
        dropped=[change.before.name for change in changes if change.before is not None and change.after is None],
        pulled=[table.name for change, table in there if change.pulled],
        created=[table.name for change, table in there if change.before is None],
    )


def _enter_entry(
    conn: Connection,
    database_id: int,
    changes: Sequence[TableChange],
    markers: Sequence[Marker],
    version: int,
    position: int,
    now_ms: int,
    message: bytes,
) -> None:
    by_order = sorted(markers, key=lambda marker: marker.id)
    commands = dict.fromkeys(marker.command.strip() for marker in by_order if marker.command.strip())
    tables = {
        str(change.number): {
            "before": _described(change.before),
            "after": _described(change.after),
            "texts": list(change.texts),
        }
        for change in changes
    }
    conn.execute(
        _ENTRY,
        {
            "database": database_id,
            "version": version,
            "position": position,
            "now": now_ms,
            "role": ", ".join(dict.fromkeys(marker.role for marker in by_order if marker.role)),
            "application": ", ".join(dict.fromkeys(marker.application for marker in by_order if marker.application)),
            "command": ";\n".join(commands)[:_MOST_COMMAND],
            "message": message,
            "tables": Jsonb(tables),
        },
    )


def _described(table: Table | None) -> dict[str, Any] | None:
    if table is None:
        return None
    return {
        "name": table.name,
        "sql_name": table.sql_name,
        "columns": columns_to_json(table.columns),
        "key_columns": list(table.key_columns),
        "former_columns": former_columns_to_json(table.former),
    }
