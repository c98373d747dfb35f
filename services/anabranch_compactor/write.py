"""The job that writes: it reads the log's new changes and the rows for first bases, and writes them as files by parts.

One task writes one part, and reports each file of its own, so that files of another attempt of the task are in no
manifest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from anabranch.columnar.encode import ColumnEncoder
from anabranch.columnar.file_columns import BASE, CAUSE, CHANGES, CONFLICT_FIELDS, CONFLICTS, OWN
from anabranch.columnar.proof import Sum, row_sum
from anabranch.runtime.telemetry import span
from anabranch_compactor.base_rows import base_table, by_bucket, in_slices, rows_of, touched
from anabranch_compactor.decode import Batches
from anabranch_compactor.files.task_files import DELTA, TaskFiles, TaskPlace, task_files
from anabranch_compactor.files.written import Parts, Replaced, Written
from anabranch_compactor.history import (
    changes_of,
    exact_map,
    filled,
    in_order,
    left,
    replaced,
    rows_left,
    slices,
)
from anabranch_compactor.pull import pulled_rows
from anabranch_compactor.run import Run
from anabranch_compactor.shape import DELETE, Shape
from anabranch_compactor.spark.packing import key_hashes, unpacked, whole
from anabranch_compactor.spark.tracing import traced
from anabranch_compactor.units import Unit, unit_of

_LOG_NAMES = {"batch": "batch_id", "column": "column_name"}


def write(run: Run, units: Sequence[Unit]) -> Parts:
    """Write all units of a run. Nothing is proven yet."""
    done = Parts()
    with span("write") as one:
        one.set_attribute("anabranch.folder", run.folder)
        work = traced("write task", writer(units, TaskPlace(run.folder, run.run_id, run.plan.upto)))
        # Rows are read while they are written.
        with span("read"):
            rows = _packages(run, units).repartitionById(sum(unit.parts for unit in units), F.col("part"))
            for (report,) in rows.mapInArrow(work, "report string").collect():
                part = json.loads(report)
                done.files += [Written(**file) for file in part["files"]]
                done.replaced += [Replaced(**rows) for rows in part["replaced"]]
    return done


def _packages(run: Run, units: Sequence[Unit]) -> DataFrame:
    sources = []
    if any(unit.what != BASE for unit in units):
        changes = {unit.shape.table.id: unit.route for unit in units if unit.what == CHANGES}
        conflicts = {unit.shape.table.id: unit.route for unit in units if unit.what == CONFLICTS}
        sources.append(run.log(changes, conflicts))
    bases = [unit for unit in units if unit.what == BASE]
    if bases:
        sources.append(pulled_rows(run, bases))
    return reduce(DataFrame.unionByName, sources)


def writer(units: Sequence[Unit], place: TaskPlace) -> Callable[[Batches], Batches]:
    """Packages of one part to files: a row of JSON, with all that ``Parts`` has."""

    def write_part(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        rows = unpacked(batches, context.partitionId())
        if rows is None:
            return
        number = unit_of(units, context.partitionId())
        unit = units[number]
        part = _WRITERS[unit.what](task_files(place, number), unit, rows)
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(asdict(part))])], names=["report"])

    return write_part


def _changes(task: TaskFiles, unit: Unit, rows: pa.RecordBatch) -> Parts:
    shape, encoder, part = unit.shape.history, ColumnEncoder(unit.shape.history.table), Parts()
    if unit.before is not None:
        buckets = set((key_hashes(encoder.keys(rows).unique()) % unit.buckets).tolist())
        paths = [task.path(file.path) for file in touched(unit.before.files, buckets)]
        old = rows_of(shape, encoder, task.filesystem, paths, rows)
        if old is not None:
            both = pa.concat_tables([pa.Table.from_batches([one]) for one in (rows, old)])
            rows = whole(both)
    history = filled(shape, in_order(shape, rows), encoder)
    part.files += task.write(CHANGES, shape, changes_of(shape, history))
    if unit.before is None or not unit.with_delta:
        return part
    # The base has the columns of the stretch's end alone, which come first.
    shape, encoder, chosen = unit.shape, ColumnEncoder(unit.shape.table), left(history)
    for bucket, places in by_bucket(history.keys.take(pa.array(chosen)), unit.buckets):
        mine = chosen[places]
        tables = (
            base_table(shape, rows_left(shape, history, some)) for some in slices(shape, history, mine, [history.after])
        )
        part.files += task.write(BASE, shape, tables, bucket, below=DELTA)
        old, gone = Sum(), Sum()
        for some in slices(shape, history, mine, [history.after, history.before]):
            old += row_sum(encoder, history.rows.take(pa.array(replaced(history, some))))
            gone += row_sum(encoder, rows_left(shape, history, some[history.kind[some] == DELETE]))
        part.replaced.append(Replaced(task.number, bucket, *_in_hex(old), *_in_hex(gone)))
    return part


def _in_hex(total: Sum) -> tuple[int, str]:
    return total.count, f"{total.total:032x}"


def _base(task: TaskFiles, unit: Unit, rows: pa.RecordBatch) -> Parts:
    shape, part = unit.shape, Parts()
    count = rows.num_rows
    rows = rows.append_column("position", pa.repeat(pa.scalar(task.place.upto, pa.int64()), count))
    rows = rows.append_column("deleted", pa.repeat(pa.scalar(False), count))
    rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in shape.sorting]))
    for bucket, places in by_bucket(ColumnEncoder(shape.table).keys(rows), unit.buckets):
        mine = rows if len(places) == count else rows.take(pa.array(places))
        tables = (base_table(shape, some) for some in in_slices(mine))
        part.files += task.write(BASE, shape, tables, bucket)
    return part


def _conflicts(task: TaskFiles, unit: Unit, rows: pa.RecordBatch) -> Parts:
    shape = unit.shape.history
    by = [(name, "ascending") for name in (*shape.sorting, "position", "batch_id", "ordinal")]
    rows = rows.take(pc.sort_indices(rows, sort_keys=by))
    tables = (_conflict_table(shape, some) for some in in_slices(rows))
    return Parts(list(task.write(CONFLICTS, shape, tables)))


def _conflict_table(shape: Shape, rows: pa.RecordBatch) -> pa.Table:
    exact = exact_map(shape, [(i, rows.column(f"x{i}")) for i in shape.with_text], rows.num_rows)
    own = [rows.column(_LOG_NAMES.get(name, name)) for name in CONFLICT_FIELDS]
    cause = rows.column(CAUSE)
    own.append(pc.if_else(pc.equal(cause, 0), pa.scalar(None, cause.type), cause))
    fields = list(shape.conflicts_schema.field(OWN).type)
    struct = pa.StructArray.from_arrays([*own, rows.column("untyped"), exact], fields=fields)
    cells = [rows.column(f"c{i}") for i in range(shape.width)]
    return pa.Table.from_arrays([*cells, struct], schema=shape.conflicts_schema)


_WRITERS: dict[str, Callable[[TaskFiles, Unit, pa.RecordBatch], Parts]] = {
    CHANGES: _changes,
    CONFLICTS: _conflicts,
    BASE: _base,
}
