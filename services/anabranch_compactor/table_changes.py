"""``changes/`` of one table: the run's stretch written, proven, and small files of earlier runs put together."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from anabranch.columnar.file_columns import OWN
from anabranch.columnar.manifest import File, TableFiles, table_folder
from anabranch.columnar.proof import Sum
from anabranch_compactor.base import as_old, bucket, rows_of, touched_files
from anabranch_compactor.decode import log_decoder
from anabranch_compactor.history import ORDER, changes_of
from anabranch_compactor.plan import TablePlan
from anabranch_compactor.prove import effect_sums, require, total_of
from anabranch_compactor.run import Run, parts
from anabranch_compactor.shape import Shape, quoted
from anabranch_compactor.tracing import traced

MOST_OF_A_SIZE = 8
"""Files of about one size before they are put together into one."""
_STEP = 8
_SMALLEST = 1024 * 1024
_STEPS = 3


@dataclass(frozen=True, slots=True)
class Written:
    """``old``: the rows of the base that the run's changes touch, as they were; None where there is no base."""

    files: tuple[File, ...]
    old: DataFrame | None


def write_changes(run: Run, table: TablePlan, known: TableFiles | None) -> Written:
    """Write the run's changes of a table, and prove them.

    Raises:
        ProofError: the files are not what the log says.
    """
    shape, log = table.shape, table.log
    assert log is not None
    decoded = run.log(shape, "log").mapInArrow(traced("decode task", log_decoder(shape.table)), shape.log)
    old = None
    if known is not None and known.base is not None:
        decoded = decoded.persist(StorageLevel.DISK_ONLY)
        old = _old_rows(run, shape, decoded, known)
    folder = table_folder("changes", shape.table.name)
    rows = changes_of(shape, decoded, None if old is None else as_old(shape, old), parts(log.bytes))
    run.write(rows, folder, row_bytes=log.bytes / log.effects.count)
    if old is not None:
        decoded.unpersist()
    sums = effect_sums(shape, run.written(shape, folder, shape.changes))
    require(f"the changes of {shape.table.name}", total_of(sums), log.effects)
    return Written(run.found(folder, sums), old)


def _old_rows(run: Run, shape: Shape, decoded: DataFrame, known: TableFiles) -> DataFrame:
    assert known.base is not None
    keys = decoded.select(*shape.keys).distinct()
    touched = [row[0] for row in keys.select(bucket(shape, len(known.base.buckets))).distinct().collect()]
    rows = run.read(shape, touched_files(known.base, touched), shape.base)
    return rows_of(shape, rows, keys).persist(StorageLevel.DISK_ONLY)


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
    sums = effect_sums(shape, run.written(shape, folder, shape.changes))
    total = Sum()
    for file in chosen:
        total += Sum(file.rows, int(file.total, 16))
    require(f"the merged changes of {shape.table.name}", total_of(sums), total)
    return (*(file for file in files if file not in chosen), *run.found(folder, sums))
