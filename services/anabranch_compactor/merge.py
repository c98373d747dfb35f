"""Merges small files of earlier runs: history's by their size, a base's by bucket. Of a table that lost a column, all
buckets are written anew, since the hash of every row is another one.

Changes of before a table was altered are never put together with later ones: they have other columns.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyspark.sql.pandas.types import from_arrow_schema

from anabranch.columnar.encode import ColumnEncoder
from anabranch.columnar.file_columns import BASE, CHANGES, CONFLICTS, OWN
from anabranch.columnar.manifest import Base, File, TableFiles, table_folder
from anabranch.columnar.proof import Sum
from anabranch.runtime.telemetry import span
from anabranch_compactor.base import base_sum, due_for_merge, live_sums, with_merged, with_sums
from anabranch_compactor.base_rows import base_groups, base_table, in_slices, latest
from anabranch_compactor.decode import Batches
from anabranch_compactor.files.parquet_files import FILE_BYTES
from anabranch_compactor.files.task_files import MERGED, TaskPlace, task_files
from anabranch_compactor.files.written import Written
from anabranch_compactor.history import ORDER
from anabranch_compactor.prove import content_of, prove, require, total_of
from anabranch_compactor.run import Run
from anabranch_compactor.shape import Shape, quoted
from anabranch_compactor.spark.packing import whole as one_batch
from anabranch_compactor.spark.tracing import traced
from anabranch_compactor.units import Unit

MOST_OF_A_SIZE = 8
"""Files of about one size before they are put together into one."""
_STEP = 8
_SMALLEST = 1024 * 1024
_STEPS = 2
_ROW_GROUP_BYTES = 16 * 1024 * 1024


def merged(run: Run, shapes: Mapping[str, Shape], tables: Mapping[str, TableFiles]) -> dict[str, TableFiles]:
    """The files of all tables after the due files were merged.

    Raises:
        ProofError: new files are not what the old ones were.
    """
    done = dict(tables)
    for name, shape in shapes.items():
        database = run.plan.database
        since = max(database.first_positions[name], database.changed_positions[name])
        done[name] = replace(
            done[name],
            changes=_merged_history(run, shape, CHANGES, tables[name].changes, since),
            conflicts=_merged_history(run, shape, CONFLICTS, tables[name].conflicts, since),
        )
    for name, base in _merged_bases(run, shapes, tables).items():
        done[name] = replace(done[name], base=base)
    return done


def size_step(size: int) -> int:
    """0 for the smallest files, one more for each factor of ``_STEP``; ``_STEPS`` for those that stay as they are,
    about as large as what one task writes of a large run."""
    step, limit = 0, _SMALLEST
    while step < _STEPS and size >= limit:
        step, limit = step + 1, limit * _STEP
    return step


def of_present(files: Sequence[File], first: int) -> tuple[File, ...]:
    """The files whose changes are all of the table as it is now, since position ``first``. Those of before may have
    columns that it no longer has, and hashes over other columns: they are never written again."""
    return tuple(file for file in files if file.first_position > first)


def to_merge(files: tuple[File, ...]) -> tuple[File, ...]:
    """The files to put together: those of the smallest size of which there are too many. Each change is so written
    again a few times at most, whatever the number of runs."""
    for step in range(_STEPS):
        alike = tuple(file for file in files if size_step(file.bytes) == step)
        if len(alike) > MOST_OF_A_SIZE:
            return alike
    return ()


def _merged_history(run: Run, shape: Shape, what: str, files: tuple[File, ...], since: int) -> tuple[File, ...]:
    """The files of ``changes/`` or ``conflicts/`` of a table after small ones were put together. Sorted by Spark's own
    operators, since they may be more than fits in memory."""
    chosen = to_merge(of_present(files, since))
    # Files that this run alone has written were only just sorted.
    if all(f"/{run.run_id}/" in file.path for file in chosen):
        return files
    folder = f"{table_folder(what, shape.table.name)}/{MERGED}/{run.run_id}"
    size, count = sum(file.bytes for file in chosen), sum(file.rows for file in chosen)
    schema = from_arrow_schema(shape.schemas[what])
    rows = run.spark.read.schema(schema).parquet(*(_as_it_is(f"{run.folder}/{file.path}") for file in chosen))
    order = [*(rows[quoted(shape.names[i])] for i in shape.table.key_index), *(rows[OWN][name] for name in ORDER)]
    rows = rows.repartitionByRange(max(1, math.ceil(size / (FILE_BYTES / 2))), *order).sortWithinPartitions(*order)
    most = max(1_000, FILE_BYTES * count // max(1, size))
    with span("write") as one:
        one.set_attribute("anabranch.folder", folder)
        options = rows.write.option("maxRecordsPerFile", most).option("parquet.block.size", _ROW_GROUP_BYTES)
        options.mode("errorifexists").parquet(f"{run.folder}/{folder}")
    listed = [file for file in run.files.below(folder) if file.path.endswith(".parquet")]
    old = [Written(0, what, file.path, file.bytes) for file in chosen]
    new = [Written(0, what, f"{folder}/{file.path}", file.bytes) for file in listed]
    proven = prove(run, [Unit(what, shape, 0, 1)], [*old, *new], content=True)
    before, after = proven[: len(old)], proven[len(old) :]
    require(f"the merged {what} of {shape.table.name}", total_of(after), _published(chosen))
    require(f"the merged rows of {what} of {shape.table.name}", content_of(after), content_of(before))
    return (*(file for file in files if file not in chosen), *(one.file for one in after))


def _as_it_is(path: str) -> str:
    """A path for Spark to read, with its wildcard characters escaped."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def _published(files: Iterable[File]) -> Sum:
    total = Sum()
    for file in files:
        total += Sum(file.rows, int(file.total, 16))
    return total


def _merged_bases(run: Run, shapes: Mapping[str, Shape], tables: Mapping[str, TableFiles]) -> dict[str, Base]:
    """New bases, of those tables that have buckets that are due. One task puts one bucket together."""
    bases = {name: base for name in shapes if (base := tables[name].base) is not None}
    resummed = {name for name in bases if run.plan.tables[name].resummed}
    due = {name: _filled(base) if name in resummed else due_for_merge(base) for name, base in bases.items()}
    due = {name: buckets for name, buckets in due.items() if buckets or name in resummed}
    if not due:
        return {}
    names = list(due)
    units = [Unit(BASE, shapes[name], 0, 1, len(bases[name].buckets), bases[name]) for name in names]
    todo = [(number, bucket) for number, name in enumerate(names) for bucket in due[name]]
    with span("write"):
        work = traced("write task", bucket_merger(units, todo, TaskPlace(run.folder, run.run_id, run.plan.upto)))
        tasks = max(1, len(todo))
        reports = run.spark.range(0, len(todo), 1, tasks).mapInArrow(work, "reports string").collect()
    proven = prove(run, units, [Written(**file) for (text,) in reports for file in json.loads(text)])
    done = {}
    for number, name in enumerate(names):
        mine = [one for one in proven if one.written.unit == number]
        sums = live_sums(f"the merged base of {name}", mine)
        base = bases[name]
        if name in resummed:
            base = with_sums(base, sums)
            require(f"the base of {name}", base_sum(base), run.plan.tables[name].table_sum)
        for bucket in due[name]:
            what = f"bucket {bucket} of {name}"
            require(what, sums.get(bucket, Sum()), base.buckets[bucket].sum)
        done[name] = with_merged(base, due[name], [one.file for one in mine])
    return done


def _filled(base: Base) -> list[int]:
    """The buckets that have a file."""
    return sorted({file.bucket for file in base.files})


def bucket_merger(
    units: Sequence[Unit], todo: Sequence[tuple[int, int]], place: TaskPlace
) -> Callable[[Batches], Batches]:
    """Buckets, by their numbers in ``todo``, to files: a row of JSON each."""

    def merge(batches: Batches) -> Batches:
        for batch in batches:
            for at in batch.column("id").to_pylist():
                number, bucket = todo[at]
                unit, task = units[number], task_files(place, number)
                assert unit.before is not None
                mine = [file for file in unit.before.files if file.bucket == bucket]
                whole = [task.path(file.path) for file in mine if not file.delta]
                deltas = [task.path(file.path) for file in mine if file.delta]
                reports = []
                tables = merged_bucket(unit.shape, task.filesystem, whole, deltas)
                for piece, some in groupby(tables, key=itemgetter(0)):
                    one = (table for _, table in some)
                    files = task.write(BASE, unit.shape, one, bucket, below=MERGED, piece=piece)
                    reports += [asdict(file) for file in files]
                yield pa.RecordBatch.from_arrays([pa.array([json.dumps(reports)])], names=["reports"])

    return merge


def merged_bucket(
    shape: Shape, filesystem: fs.FileSystem, whole: Sequence[str], deltas: Sequence[str]
) -> Iterator[tuple[int, pa.Table]]:
    """The latest rows of a bucket, with the number of the whole file that they are to be in: those of its whole files,
    row group by row group, each with what deltas have for it and what they have up to its last key; at the end of the
    last one what deltas have beyond it. In memory are the deltas and a row group."""
    encoder = ColumnEncoder(shape.table)
    if not deltas:
        for number, path in enumerate(whole):
            for rows in base_groups(shape, filesystem, path):
                for table in _tables(shape, rows):
                    yield number, table
        return
    new = latest(shape, _together(rows for path in deltas for rows in base_groups(shape, filesystem, path)))
    changed = encoder.keys(new)
    new = new.filter(pc.invert(new.column("deleted")))
    new = new.append_column("kept", pa.repeat(pa.scalar(True), new.num_rows))
    for number, path in enumerate(whole):
        for rows in base_groups(shape, filesystem, path):
            kept = pc.invert(pc.is_in(encoder.keys(rows), value_set=changed))
            last = rows.num_rows - 1
            both = _together([rows.append_column("kept", kept), new])
            order = pc.sort_indices(both, sort_keys=[(name, "ascending") for name in shape.sorting])
            cut = pc.index(order, pa.scalar(last, pa.uint64())).as_py() + 1
            here, new = both.take(order.slice(0, cut)), both.take(order.slice(cut))
            for table in _tables(shape, here.filter(here.column("kept"))):
                yield number, table
    for table in _tables(shape, new):
        yield max(0, len(whole) - 1), table


def _together(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    return one_batch(pa.Table.from_batches(list(batches)))


def _tables(shape: Shape, rows: pa.RecordBatch) -> Iterator[pa.Table]:
    for some in in_slices(rows):
        yield base_table(shape, some)
