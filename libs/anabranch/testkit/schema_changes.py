"""Alters synced tables as the resolver does once it has noticed DDL: the tables, their catalog, and a group that begins
with the schema change, all in one transaction. For tests of what follows the log; nothing is noticed here, the changes
are found by comparing the catalog and the rows before and after.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b

from psycopg.types.json import Jsonb
from ulid import ULID

from anabranch.store.capture.triggers import MARK_RESOLVER
from anabranch.store.catalog.databases import columns_to_json, former_columns_to_json
from anabranch.store.catalog.former_tables import KEEP
from anabranch.store.catalog.identities import carried_on
from anabranch.store.catalog.registration import tell
from anabranch.store.catalog.relation import relations_of
from anabranch.store.catalog.sums import scan_rows, scan_sum, sum_to_bytes
from anabranch.store.group.records import (
    GroupRow,
    LogRow,
    SumRow,
    notify_group,
    read_head,
    write_group,
    write_log,
    write_sums,
)
from anabranch.store.log.schema_versions import table_to_json
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.store.session.steps import run
from anabranch.testkit.log_writer import LogWriter
from anabranch.v1 import position_pb2, snapshot_pb2
from anabranch.values import Cell, Table, key_text
from anabranch.wire.effects import Effect, EffectBuilder
from anabranch.wire.tables import table_message

SERVER = "server"
_OIDS = """
select s.name, c.oid::int8 from anabranch.synced_tables s join pg_catalog.pg_class c
on c.relname = coalesce(s.sql_name, s.name) and c.relnamespace = %s::regnamespace
where s.database_id = %s
"""
_NAMES = "select oid::int8, relname from pg_catalog.pg_class where relnamespace = %s::regnamespace and oid = any(%s)"
_SET = """
update anabranch.synced_tables
set columns = %s, former_columns = %s, key_columns = %s, sql_name = nullif(%s, name), changed_position = %s,
    shape = anabranch.shape_of(%s::int8::oid)
where id = %s
"""
_RENEW = "select anabranch.renew_table(%s, %s)"
_VERSION = "update anabranch.databases set ddl_version = ddl_version + 1 where id = %s returning ddl_version"
_KEPT = """
insert into anabranch.schema_changes
    (database_id, version, position, noticed_ms, role, application, command, change, tables)
values (%s, %s, %s, %s, current_user, 'test', %s, %s, %s)
"""
_NOTICED = "delete from anabranch.captured where database_id = %s and type = 4"

Rows = Mapping[str, list[Cell]]
"""A table's rows, by key text."""
Changed = dict[str, Table | None]
"""The tables that are others by now, by identity; None: dropped."""


def alter(writer: LogWriter, ddl: str, initial: Mapping[str, Cell] | None = None) -> int:
    """Run DDL, and write what follows from it: columns added, dropped, renamed or retyped, tables renamed or dropped,
    and tables with another key, which are registered anew. ``initial``: by name in SQL, the constants that rows have in
    added columns; NULL for the others. Rows that have other values in the end than before, or than those, give effects.
    Returns the group's position; the writer knows the tables as they are then."""
    conn, database, schema = writer.conn, writer.database, f'"{writer.database.schema_name}"'
    with conn.transaction():
        conn.execute(MARK_RESOLVER)
        wait_for_claim(conn, database.id)
        head = read_head(conn, database.id)
        position = max(time.time_ns() // 1_000_000, head.position + 1)
        oids: dict[str, int] = dict(conn.execute(_OIDS, (schema, database.id)).fetchall())
        rows = {name: _rows(writer, table) for name, table in database.tables.items()}
        conn.execute(f"set local search_path to {schema}".encode())
        conn.execute(ddl.encode())
        conn.execute("set local search_path to default")
        changed = _changed(writer, oids, position, initial or {})
        log: list[LogRow] = []
        sums: list[SumRow] = []
        batch_id = str(ULID())
        for name, table in changed.items():
            if table is None:
                conn.execute(KEEP.encode(), (database.id, name))
                continue
            columns, former = Jsonb(columns_to_json(table.columns)), Jsonb(former_columns_to_json(table.former))
            key = list(table.key_columns)
            conn.execute(_SET, (columns, former, key, table.sql_name, position, oids[name], table.id))
            if _is_pulled(writer, table):
                [(number,)] = conn.execute(_RENEW, (table.id, position)).fetchall()
                table = changed[name] = replace(table, id=number)
            else:
                for row_key, effect in _effects(database.tables[name], table, rows[name], _rows(writer, table)):
                    given = batch_id, len(log), SERVER, table.id, row_key, effect.type, effect.data, effect.changed
                    log.append(LogRow(*given, effect.hash))
            count, total = scan_sum(conn, database.schema_name, table)
            sums.append(SumRow(table.id, count, sum_to_bytes(total)))
        _keep(writer, ddl, changed, position)
        write_log(conn, database.id, position, log)
        chain = blake2b(head.chain + position.to_bytes(8, "big"), digest_size=16).digest()
        write_group(conn, database.id, position, GroupRow(1, len(log), chain, _messages(changed, sums)))
        write_sums(conn, position, sums)
        conn.execute(_NOTICED, (database.id,))
        notify_group(conn, database.id, position, [batch_id])
    writer.load()
    return position


def _changed(writer: LogWriter, oids: Mapping[str, int], position: int, initial: Mapping[str, Cell]) -> Changed:
    conn, database = writer.conn, writer.database
    schema = f'"{database.schema_name}"'
    names: dict[int, str] = dict(conn.execute(_NAMES, (schema, list(oids.values()))).fetchall())
    found, known = run(conn, relations_of(database.schema_name, names.values()))
    changed: Changed = {}
    for name, before in database.tables.items():
        called = names.get(oids[name])
        if called is None:
            changed[name] = None
            continue
        now = Table(called, found[called].snapshot(known), found[called].key_columns, before.id)
        after = _positioned(before, carried_on(before, now, by_number=True), position, initial)
        if after != before or after.former != before.former:
            changed[name] = after
    return changed


def _positioned(before: Table, after: Table, position: int, initial: Mapping[str, Cell]) -> Table:
    """The table with what its added columns begin with, and the position of what it lost."""
    columns = []
    for column in after.columns:
        was = before.by_name.get(column.name)
        if was is not None:
            columns.append(replace(column, initial=was.initial, added_position=was.added_position))
        else:
            cell = initial.get(column.sql_name)
            columns.append(replace(column, initial=(cell,), added_position=position))
    known = len(before.former)
    former = [replace(one, dropped_position=position) for one in after.former[known:]]
    return replace(after, columns=tuple(columns), former=(*before.former, *former))


def _rows(writer: LogWriter, table: Table) -> Rows:
    with closing(scan_rows(writer.conn, writer.database.schema_name, table)) as chunks:
        rows = [list(row) for chunk in chunks for row in chunk]
    return {key_text([row[i] for i in table.key_index]): row for row in rows}


def _effects(before: Table, after: Table, old: Rows, new: Rows) -> Iterator[tuple[str, Effect]]:
    """The values that rows have otherwise than by the change alone."""
    builder = EffectBuilder(after)
    for key in sorted(new):
        carried = [
            old[key][before.index[column.name]] if column.name in before.index else column.initial[0]
            for column in after.columns
        ]
        effect = builder.update(carried, new[key])
        if effect.changed:
            yield key, effect


def _is_pulled(writer: LogWriter, table: Table) -> bool:
    return table.key_columns != writer.database.tables[table.name].key_columns


def _messages(changed: Changed, sums: Sequence[SumRow]) -> list[bytes]:
    names = {table.id: name for name, table in changed.items() if table is not None}
    return [
        position_pb2.TableSum(table=names[one.table_id], count=one.row_count, hash=one.row_hash).SerializeToString()
        for one in sums
    ]


def _keep(writer: LogWriter, ddl: str, changed: Changed, position: int) -> None:
    """Make the change the database's next schema version."""
    conn, database = writer.conn, writer.database
    [(version,)] = conn.execute(_VERSION, (database.id,)).fetchall()
    change = snapshot_pb2.SchemaChange(
        version=version,
        tables=[table_message(table, changed_position=position) for table in changed.values() if table is not None],
        dropped=[name for name, table in changed.items() if table is None],
        pulled=[name for name, table in changed.items() if table is not None and _is_pulled(writer, table)],
    )
    tables = {
        str(database.tables[name].id): {"before": table_to_json(database.tables[name]), "after": table_to_json(table)}
        for name, table in changed.items()
    }
    conn.execute(_KEPT, (database.id, version, position, position, ddl, change.SerializeToString(), Jsonb(tables)))
    tell(conn, database.id)
