"""The check at the end of a fault run: the lake's files against the copied log and the server's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from anabranch.columnar.lake import LakeTable
from anabranch.columnar.manifest import Manifest, from_json
from anabranch.columnar.row_states import DELETE, INSERT, NONE, Columns, Key, Row
from anabranch.store.catalog.databases import Database
from anabranch.store.lake import compactions
from anabranch.store.session.engine import Session
from anabranch.testkit import oracle
from anabranch.testkit.torture.lake import KEPT
from anabranch.testkit.torture.registers import KINDS
from anabranch.v1 import change_pb2
from anabranch.values import Cell, Table, key_text
from anabranch.values.messages import column_reader
from anabranch.values.parquet import file_codecs

_KINDS = {**KINDS, change_pb2.EFFECT_TYPE_NONE: "none"}
_MOMENTS = 8
"""The number of positions at which all rows are compared."""
_UNCUT = f"""
select (select count(*) from {KEPT}.log where position > %(floor)s),
       (select count(*) from anabranch.log where database_id = %(db)s and position > %(floor)s),
       (select count(*) from (select position, batch_id, ordinal, key, effect_hash, effect from {KEPT}.log
                              where position > %(floor)s
                              except
                              select position, batch_id, ordinal, key, effect_hash, effect from anabranch.log
                              where database_id = %(db)s) d),
       (select count(*) from {KEPT}.log where position <= %(floor)s)
"""


def check(conn: Session, server: oracle.Server, before: oracle.Rows) -> int:
    """Promise 8, at the end: the log was cut at or below the floor alone; the published runs reach from the first group
    to the last, without a gap; their changes are all that the log ever had, their rows are those that the log makes of
    the rows ``before``, their latest rows are the server's, and they have as many conflicts. Returns the number of
    changes that were cut."""
    database = server.database
    with conn.transaction():
        # In one snapshot: the janitor goes on.
        conn.execute("set transaction isolation level repeatable read")
        row = conn.execute("select floor_ms from anabranch.databases where id = %s", (database.id,)).fetchone()
        assert row is not None
        there, left, differing, cut = conn.execute(_UNCUT.encode(), {"db": database.id, "floor": row[0]}).fetchall()[0]
    assert (there, differing) == (left, 0), f"above the floor {there} changes were made and {left} are there"
    runs = compactions.all_published(conn, database.id)
    ends = sorted((run.from_position, run.to_position) for run in runs)
    for (_, upto), (after, _) in pairwise(ends):
        assert upto == after, f"the runs have a gap or overlap: {ends}"
    head = server.positions[-1]
    assert row[0] <= ends[-1][1] == head, f"floor {row[0]}, the runs reach to {ends[-1][1]}, the log to {head}"
    newest = max(runs, key=lambda run: run.to_position)
    manifest = from_json(newest.manifest)
    based = min(run.to_position for run in runs)
    for name, table in database.tables.items():
        lake = LakeTable(newest.root, manifest, name, file_codecs)
        rows = {(name, _key(table, found)): found for found in lake.rows().values()}
        wanted = {at: row for at, row in server.rows.items() if at[0] == name}
        assert rows == wanted, f"{name}: {_difference(rows, wanted)}"
        began = {key: row for (of, key), row in before.items() if of == name}
        _changes(lake, _logged(conn, database, table), began, based)
    _conflicts(conn, database, manifest)
    return int(cut)


def _key(table: Table, row: Mapping[str, Cell]) -> str:
    return key_text([row[name] for name in table.key_columns])


def _logged(conn: Session, database: Database, table: Table) -> Sequence[tuple[Any, ...]]:
    number = next(number for number, one in database.tables_by_id.items() if one.name == table.name)
    return conn.execute(
        f"select position, batch_id, ordinal, node_id, type, key, changed, effect from {KEPT}.log"
        " where database_id = %s and table_id = %s order by position, batch_id, ordinal".encode(),
        (database.id, number),
    ).fetchall()


def _changes(lake: LakeTable, logged: Sequence[tuple[Any, ...]], before: Mapping[str, Row], based: int) -> None:
    """Every change and the row before and after it, and all rows at some positions, are what the log makes of the rows
    ``before``. From the first base on, at ``based``, everything is known; before that, known values are right."""
    table = lake.registrations[-1].history.table
    columns, initial = Columns(table), {c.name: c.initial[0] for c in table.columns if c.initial}
    told = lake.whole_changes(lake.registrations[-1])
    assert len(told) == len(logged), f"{table.name}: {len(told)} changes in files, {len(logged)} in the log"
    rows = dict(before)
    positions = sorted({row[0] for row in logged})
    looked_at = {positions[len(positions) * part // _MOMENTS] for part in range(_MOMENTS)} if positions else set()
    at = 0
    for change, (position, batch_id, ordinal, node, kind, key, changed, raw) in zip(told, logged, strict=True):
        here = (change.position, change.batch_id, change.ordinal, change.node_id, change.type)
        assert here == (position, batch_id, ordinal, node, _KINDS[kind]), f"{table.name}: {here}"
        assert key_text(list(change.key)) == key, f"{table.name} {here}: {change.key}, not {key}"
        assert set(change.changed) == set(changed or ()), f"{table.name} {here}: {change.changed}, not {changed}"
        if at in looked_at and at < position:
            _moment(lake, rows, at, based)
        if columns.at(at) != columns.at(position):
            # Changes of the schema change rows by themselves.
            rows = {key: columns.shown(position, {**initial, **row}) for key, row in rows.items()}
        at = position
        old = rows.get(key)
        _known(f"{table.name} {here} before", change.before, old, whole=False)
        _step(rows, table, key, change.type, change_pb2.Effect.FromString(raw))
        _known(f"{table.name} {here}", change.row, rows.get(key), whole=position > based)
    _moment(lake, rows, at, based)


def _step(rows: dict[str, Row], table: Table, key: str, kind: str, effect: change_pb2.Effect) -> None:
    """Apply one change of the log to rows by key text."""
    if kind == DELETE:
        rows.pop(key, None)
    elif kind != NONE:
        cells = {
            name: column_reader(table.by_name[name])(value)
            for name, value in zip(effect.columns, effect.values, strict=True)
            if value.WhichOneof("kind") is not None
        }
        rows[key] = cells if kind == INSERT else {**rows[key], **cells}


def _known(where: str, found: Row | None, row: Row | None, *, whole: bool) -> None:
    """Check that the known cells of a row are right, and that it exists on both sides or on none."""
    if found is None or row is None:
        assert bool(found) == bool(row), f"{where}: {found} in files, {row} by the log"
        return
    differing = {name: cell for name, cell in found.items() if row[name] != cell}
    assert not differing, f"{where}: {found} in files, {row} by the log"
    assert not whole or len(found) == len(row), f"{where}: only {sorted(found)} is known"


def _moment(lake: LakeTable, rows: Mapping[str, Row], position: int, based: int) -> None:
    found: dict[Key, Row] = lake.as_of(position)
    by_text = {key_text(list(key)): row for key, row in found.items()}
    for key in by_text.keys() | rows.keys():
        where = f"{lake.table.name} {key} at {position}"
        _known(where, by_text.get(key), rows.get(key), whole=position >= based)


def _conflicts(conn: Session, database: Database, manifest: Manifest) -> None:
    counted = Counter(
        {
            database.tables_by_id[number].name: count
            for number, count in conn.execute(
                f"select table_id, count(*) from {KEPT}.conflicts where database_id = %s group by table_id".encode(),
                (database.id,),
            ).fetchall()
        }
    )
    in_files = Counter({name: sum(file.rows for file in t.conflicts) for name, t in manifest.tables.items()})
    assert +counted == +in_files, f"conflicts: {counted} were decided, {in_files} are in files"


def _difference(here: Mapping[Any, Any], there: Mapping[Any, Any]) -> str:
    keys = [at for at in here.keys() | there.keys() if here.get(at) != there.get(at)]
    return f"{len(keys)} rows differ, such as " + "; ".join(
        f"{at}: in files {here.get(at)}, on the server {there.get(at)}" for at in sorted(keys)[:3]
    )
