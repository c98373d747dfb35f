"""``base/`` of one table: its first one, a run's deltas, and buckets put together."""

from __future__ import annotations

import math

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from anabranch.columnar.manifest import Base, Bucket, File, table_folder
from anabranch.columnar.proof import Sum
from anabranch_compactor.base import (
    Pull,
    base_rows,
    bucket,
    due_for_merge,
    last_of,
    latest,
    pull,
    same_key,
    with_delta,
    with_merged,
)
from anabranch_compactor.parquet_files import FILE_BYTES
from anabranch_compactor.plan import TablePlan
from anabranch_compactor.prove import FileSum, require, row_sums
from anabranch_compactor.run import Run
from anabranch_compactor.shape import Shape

PAGE_BYTES = 8_192


def _by_bucket(sums: list[FileSum]) -> dict[int, Bucket]:
    """Sums whose names begin with the bucket."""
    found: dict[int, Sum] = {}
    for one in sums:
        number = int(one.name.partition("|")[0])
        found[number] = found.get(number, Sum()) + one.sum
    return {number: Bucket(total.count, f"{total.total:032x}") for number, total in found.items()}


def _total(buckets: tuple[Bucket, ...]) -> Sum:
    total = Sum()
    for one in buckets:
        total += one.sum
    return total


def base_sum(base: Base) -> Sum:
    """The proven sum of all rows."""
    return _total(base.buckets)


def _written(run: Run, shape: Shape, folder: str, number: int, *, delta: bool) -> tuple[tuple[File, ...], Base]:
    """What this run has written into a folder: its files, and the sums of the rows that are not deleted."""
    rows = run.written(shape, folder, shape.base)
    ours = F.col("ours")
    name = F.concat(bucket(shape, number).cast("string"), F.lit("|"), F.col("file"))
    found = row_sums(shape, rows, F.concat(name, F.when(ours["deleted"], "#").otherwise("")), ours["position"])
    files: dict[str, FileSum] = {}
    for one in found:
        path = one.name.removesuffix("#")
        before = files.get(path)
        first, last = one.first_position, one.last_position
        if before is not None:
            first, last = min(first, before.first_position), max(last, before.last_position)
            one = FileSum(path, before.sum + one.sum, first, last)
        files[path] = FileSum(path, one.sum, first, last)
    live = _by_bucket([one for one in found if not one.name.endswith("#")])
    buckets = tuple(live.get(i, Bucket()) for i in range(number))
    return run.found(folder, list(files.values()), delta=delta), Base(buckets)


def first_base(run: Run, table: TablePlan) -> Base:
    """A table's first base, pulled as of the run's moment, without what is in no group yet.

    Raises:
        ProofError: its rows are not those of the table sum.
    """
    shape, pages = table.shape, table.pages
    assert pages is not None
    number = max(1, math.ceil(pages * PAGE_BYTES / FILE_BYTES))
    what = Pull(run.url, run.plan.snapshot, run.plan.database.schema_name, pages, table.taken_back)
    rows = pull(run.spark, shape, what).withColumns(
        {"position": F.lit(run.plan.upto).cast("long"), "deleted": F.lit(False)}
    )
    folder = table_folder("base", shape.table.name)
    run.write(base_rows(shape, rows, number), folder, row_bytes=pages * PAGE_BYTES / max(1, table.table_sum.count))
    files, sums = _written(run, shape, folder, number, delta=False)
    require(f"the first base of {shape.table.name}", _total(sums.buckets), table.table_sum)
    return Base(sums.buckets, files)


def add_delta(run: Run, table: TablePlan, base: Base, changes: tuple[File, ...], old: DataFrame) -> Base:
    """The base with what the run's changes left of the rows that they touch.

    Raises:
        ProofError: its rows are then not those of the table sum.
    """
    shape, number = table.shape, len(base.buckets)
    rows = last_of(shape, run.read(shape, changes, shape.changes))
    folder = f"{table_folder('base', shape.table.name)}/delta"
    size = sum(file.bytes for file in changes) / max(1, sum(file.rows for file in changes))
    run.write(base_rows(shape, rows, number), folder, row_bytes=size)
    files, new = _written(run, shape, folder, number, delta=True)
    # A change of kind NONE touches a row and leaves it as it is.
    written = run.written(shape, folder, shape.base).select(*shape.keys)
    replaced = old.join(written, same_key(shape, old, written), "left_semi")
    before = _by_bucket(row_sums(shape, replaced, bucket(shape, number).cast("string"), F.col("position")))
    changed = with_delta(base, files, before, dict(enumerate(new.buckets)))
    require(f"the base of {shape.table.name}", base_sum(changed), table.table_sum)
    return changed


def merge_base(run: Run, shape: Shape, base: Base) -> Base:
    """The base after the deltas of some buckets were merged.

    Raises:
        ProofError: a bucket's rows are not what they were.
    """
    due = due_for_merge(base)
    if not due:
        return base
    chosen = [file for file in base.files if file.bucket in due]
    rows = latest(shape, run.read(shape, chosen, shape.base)).where(~F.col("deleted"))
    folder = f"{table_folder('base', shape.table.name)}/merged"
    size = sum(file.bytes for file in chosen) / max(1, sum(file.rows for file in chosen))
    run.write(base_rows(shape, rows, len(base.buckets)), folder, row_bytes=size)
    files, new = _written(run, shape, folder, len(base.buckets), delta=False)
    for number in due:
        require(f"bucket {number} of {shape.table.name}", new.buckets[number].sum, base.buckets[number].sum)
    return with_merged(base, due, files)
