"""``changes/`` of one table: the run's stretch written, proven, and small files of earlier runs put together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import pyarrow as pa
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from anabranch.columnar.file_columns import OWN
from anabranch.columnar.lake import file_system
from anabranch.columnar.manifest import File, TableFiles, table_folder
from anabranch.columnar.proof import Sum
from anabranch.runtime.telemetry import span
from anabranch_compactor.base import as_old, bucket, rows_of, touched_files
from anabranch_compactor.decode import Batches
from anabranch_compactor.encode import ColumnEncoder
from anabranch_compactor.history import ORDER, changes_of, in_order
from anabranch_compactor.log_source import PACKED
from anabranch_compactor.packing import pack, unpacked
from anabranch_compactor.parquet_files import write_files
from anabranch_compactor.plan import TablePlan
from anabranch_compactor.prove import as_files, effect_sums, require, total_of
from anabranch_compactor.run import Run, parts
from anabranch_compactor.shape import Shape, quoted
from anabranch_compactor.tracing import traced

MOST_OF_A_SIZE = 8
"""Files of about one size before they are put together into one."""
_STEP = 8
_SMALLEST = 1024 * 1024
_STEPS = 3
PART_ROWS, PART_BYTES = 500_000, 48 * 1024 * 1024
"""The most rows of a part (changes, and rows as they were before), and their bytes: a task holds them in memory."""
_UNPACKED = 4
"""About how often more a row takes in memory than in a file."""
SMALL_ROWS = 50_000
"""Changes that are not worth another task."""


@dataclass(frozen=True, slots=True)
class Written:
    """``old``: the rows of the base that the run's changes touch, as they were; None where there is no base."""

    files: tuple[File, ...]
    old: DataFrame | None


def write_changes(run: Run, table: TablePlan, known: TableFiles | None) -> Written:
    """Write the run's changes of a table, and prove them. Nothing is kept by Spark but ``old``, which is the caller's.

    Raises:
        ProofError: the files are not what the log says.
    """
    shape, log = table.shape, table.log
    assert log is not None
    before, before_bytes = rows_before(log.effects.count, known)
    cores = run.spark.sparkContext.defaultParallelism
    number = parts_of(log.effects.count + before, log.bytes + before_bytes, cores)
    folder = f"{table_folder('changes', shape.table.name)}/{run.run_id}"
    old = None
    with ExitStack() as kept, ExitStack() as handed_over:
        with span("read"):
            # Kept, so that what was read is read once, whatever fails or is asked of it later.
            packed = run.log(shape, "changes", number).persist(StorageLevel.DISK_ONLY)
            kept.callback(packed.unpersist)
            packed.count()
        rows = packed
        if known is not None and known.base is not None:
            old = _old_rows(run, shape, packed, known)
            handed_over.callback(old.unpersist)
            rows = packed.unionByName(packages(shape, as_old(shape, old), number))
        with span("write") as one:
            one.set_attribute("anabranch.folder", folder)
            work = traced("write task", changes_writer(shape, run.root, f"{run.folder}/{folder}"))
            tasks = rows.repartitionById(number, F.col("part")).mapInArrow(work, "file string")
            written = [json.loads(row[0]) for row in tasks.collect()]
        packed.unpersist()
        sums = effect_sums(run, shape, [f"{folder}/{one['name']}" for one in written])
        require(f"the changes of {shape.table.name}", total_of(sums), log.effects)
        handed_over.pop_all()
    sizes = {f"{folder}/{one['name']}": one["bytes"] for one in written}
    return Written(as_files(sums, sizes), old)


def changes_writer(shape: Shape, root: str, folder: str) -> Callable[[Batches], Batches]:
    """Packages of one part to files: a row of JSON for each."""

    def write(batches: Batches) -> Batches:
        rows = unpacked(batches)
        if rows is None:
            return
        rows = in_order(shape, rows)  # Under the same name: those in no order are to go.
        slices = changes_of(shape, rows, ColumnEncoder(shape.table))
        filesystem, _ = file_system(root)
        task = TaskContext.get()
        assert task is not None
        prefix = f"{task.partitionId():05}-{task.taskAttemptId()}"
        files = write_files(filesystem, file_system(folder)[1], prefix, shape.changes_schema, slices)
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(asdict(one)) for one in files])], names=["file"])

    return write


def packages(shape: Shape, rows: DataFrame, number: int) -> DataFrame:
    """Rows of Spark's, packed."""
    table = shape.table
    return rows.mapInArrow(lambda batches: pack(ColumnEncoder(table), number, batches), PACKED)


def rows_before(changes: int, known: TableFiles | None) -> tuple[int, int]:
    """How many rows of the base so many changes touch at most, and about how many bytes these take: a delete is short,
    however long the row is."""
    files = () if known is None or known.base is None else known.base.files
    there = sum(file.rows for file in files)
    count = min(changes, there)
    return count, _UNPACKED * sum(file.bytes for file in files) * count // max(1, there)


def parts_of(count: int, size: int, cores: int) -> int:
    """How many parts rows are written in: what one task holds in memory, and work for every core."""
    return max(math.ceil(count / PART_ROWS), math.ceil(size / PART_BYTES), min(cores, math.ceil(count / SMALL_ROWS)), 1)


def _old_rows(run: Run, shape: Shape, packed: DataFrame, known: TableFiles) -> DataFrame:
    assert known.base is not None
    fields = [field for field in shape.cells if field.name in shape.keys]
    keys = packed.mapInArrow(_keys([field.name for field in fields]), T.StructType(fields)).distinct()
    touched = [row[0] for row in keys.select(bucket(shape, len(known.base.buckets))).distinct().collect()]
    rows = run.read(shape, touched_files(known.base, touched), shape.base)
    return rows_of(shape, rows, keys).persist(StorageLevel.DISK_ONLY)


def _keys(names: list[str]) -> Callable[[Batches], Batches]:
    def keys(batches: Batches) -> Batches:
        for batch in batches:
            rows = unpacked([batch])
            if rows is not None:
                yield rows.select(names)

    return keys


def size_step(size: int) -> int:
    """0 for the smallest files, one more for each factor of ``_STEP``; ``_STEPS`` for those that stay as they are."""
    step, limit = 0, _SMALLEST
    while step < _STEPS and size >= limit:
        step, limit = step + 1, limit * _STEP
    return step


def to_merge(files: tuple[File, ...]) -> tuple[File, ...]:
    """The files to put together: those of the smallest size of which there are too many. Each change is so written
    again a few times at most, whatever the number of runs."""
    for step in range(_STEPS):
        alike = tuple(file for file in files if size_step(file.bytes) == step)
        if len(alike) > MOST_OF_A_SIZE:
            return alike
    return ()


def merge_changes(run: Run, shape: Shape, files: tuple[File, ...]) -> tuple[File, ...]:
    """The files of ``changes/`` after too many small ones were put together.

    Raises:
        ProofError: the new files are not what the old ones were.
    """
    chosen = to_merge(files)
    if not chosen:
        return files
    folder = f"{table_folder('changes', shape.table.name)}/merged"
    size = sum(file.bytes for file in chosen)
    count = sum(file.rows for file in chosen)
    rows = run.spark.read.schema(shape.changes).parquet(*(f"{run.folder}/{file.path}" for file in chosen))
    rows = rows.repartition(parts(size)).sortWithinPartitions(
        *(rows[quoted(shape.names[i])] for i in shape.table.key_index), *(rows[OWN][name] for name in ORDER)
    )
    run.write(rows, folder, row_bytes=size / count)
    found = {f"{folder}/{run.run_id}/{one.path}": one.bytes for one in run.files.below(f"{folder}/{run.run_id}")}
    found = {path: size for path, size in found.items() if path.endswith(".parquet")}
    sums = effect_sums(run, shape, list(found))
    total = Sum()
    for file in chosen:
        total += Sum(file.rows, int(file.total, 16))
    require(f"the merged changes of {shape.table.name}", total_of(sums), total)
    return (*(file for file in files if file not in chosen), *as_files(sums, found))
