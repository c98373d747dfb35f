"""``base/``: the latest rows of a table.

Rows lie in buckets by the hash of their key. Of each bucket there are files with all its rows at some position, and
deltas: the rows that later runs have changed, or found deleted. The row of a key is the one of the greatest position.
A bucket's deltas are merged into new files when they are many or large; buckets that a run does not touch keep their
files. Of every bucket the manifest has the proven sum of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from anabranch.columnar.file_columns import OWN
from anabranch.columnar.manifest import Base, Bucket, File
from anabranch.schema import Table
from anabranch.store.binary_cells import Row
from anabranch.store.log_files import read_rows
from anabranch_compactor.decode import Batches, as_batch, pulled, without
from anabranch_compactor.history import ORDER
from anabranch_compactor.shape import DELETE, KINDS, NONE, OLD, Shape
from anabranch_compactor.tracing import traced

MOST_DELTAS = 8
"""Delta files of one bucket."""
DELTA_SHARE = 0.25
"""The most that a bucket's deltas may have of its rows."""
PAGES_PER_READ = 8_192
"""Pages of a table that one task pulls."""
BATCH_BYTES = 4 * 1024 * 1024


def bucket(shape: Shape, number: int) -> Column:
    """The bucket of a row."""
    return F.pmod(F.xxhash64(*shape.keys), F.lit(number)).cast("int")


@dataclass(frozen=True, slots=True)
class Pull:
    """What to pull: all rows of a table as of an exported snapshot, in its pages; those of ``taken_back`` (by key text)
    as they are there (None: not at all)."""

    url: str
    snapshot: str
    schema_name: str
    pages: int
    taken_back: Mapping[str, Row | None]


def pull(spark: SparkSession, shape: Shape, what: Pull) -> DataFrame:
    """The rows (``c…`` and ``x…``)."""
    reads = max(1, -(-what.pages // PAGES_PER_READ))
    table = shape.table
    schema = T.StructType(shape.cells)
    return spark.range(0, reads, 1, reads).mapInArrow(
        traced("pull task", lambda batches: _pull(table, what, reads, batches)), schema
    )


def _pull(table: Table, what: Pull, reads: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column("id").to_pylist():
            first = number * PAGES_PER_READ
            # The last one reads to the end, wherever that is by now.
            end = first + PAGES_PER_READ if number < reads - 1 else 2**32 - 1
            rows = read_rows(what.url, what.snapshot, what.schema_name, table, first, end, BATCH_BYTES)
            for found in pulled(table, rows):
                yield without(table, found, what.taken_back) if what.taken_back else found
            if number == 0 and what.taken_back:
                yield as_batch(table, [row for row in what.taken_back.values() if row is not None])


def base_rows(shape: Shape, rows: DataFrame, buckets: int) -> DataFrame:
    """Rows of ``base/`` for rows with ``position`` and ``deleted``: one bucket a partition, sorted by key."""
    rows = rows.repartitionById(buckets, bucket(shape, buckets)).sortWithinPartitions(*shape.keys)
    own = F.struct(
        "position", "deleted", shape.exact([(i, F.col(f"x{i}")) for i in shape.with_text]).alias("exact")
    ).alias(OWN)
    return rows.select(*shape.file_cells(), own)


def latest(shape: Shape, rows: DataFrame) -> DataFrame:
    """Of rows as ``Shape.read`` gives them for base files, the last one of each key, with ``position`` and
    ``deleted``."""
    kept = [field.name for field in shape.cells if field.name not in shape.keys]
    ours = F.col("ours")
    last = F.struct(*kept, ours["position"].alias("position"), ours["deleted"].alias("deleted"))
    found = rows.groupBy(*shape.keys).agg(F.max_by(last, ours["position"]).alias("last"))
    return found.select(*shape.keys, "last.*")


def last_of(shape: Shape, changes: DataFrame) -> DataFrame:
    """The rows that changes (as ``Shape.read`` gives them) left, one a key, with ``position`` and ``deleted``. A change
    of kind NONE changes nothing."""
    ours = F.col("ours")
    cells = [field.name for field in shape.cells]
    place = F.struct(*(ours[name] for name in ORDER))
    kept = [name for name in cells if name not in shape.keys]
    last = F.struct(*kept, ours["position"].alias("position"), (ours["type"] == KINDS[DELETE]).alias("deleted"))
    found = changes.where(ours["type"] != KINDS[NONE]).groupBy(*shape.keys).agg(F.max_by(last, place).alias("last"))
    return found.select(*shape.keys, "last.*").select(*cells, "position", "deleted")


def rows_of(shape: Shape, rows: DataFrame, keys: DataFrame) -> DataFrame:
    """Of rows of base files the latest of each of ``keys`` that is not deleted."""
    return latest(shape, rows.join(keys, same_key(shape, rows, keys), "left_semi")).where(~F.col("deleted"))


def same_key(shape: Shape, one: DataFrame, other: DataFrame) -> Column:
    """Whether two rows have the same key."""
    return reduce(lambda a, b: a & b, [one[name].eqNullSafe(other[name]) for name in shape.keys])


def as_old(shape: Shape, rows: DataFrame) -> DataFrame:
    """Latest rows as what stands before a run's changes."""
    nothing = F.lit(None)
    return rows.select(
        F.lit(-1).cast("long").alias("position"),
        nothing.cast("string").alias("batch"),
        F.lit(0).alias("ordinal"),
        nothing.cast("string").alias("node"),
        F.lit(OLD).cast("short").alias("kind"),
        nothing.cast("string").alias("changed"),
        *(field.name for field in shape.cells),
    )


def touched_files(base: Base, buckets: Sequence[int]) -> list[File]:
    """The files of some buckets."""
    chosen = set(buckets)
    return [file for file in base.files if file.bucket in chosen]


def due_for_merge(base: Base) -> list[int]:
    """The buckets whose deltas are many or large."""
    due = []
    for number in range(len(base.buckets)):
        whole = sum(f.rows for f in base.files if f.bucket == number and not f.delta)
        deltas = [f.rows for f in base.files if f.bucket == number and f.delta]
        if len(deltas) > MOST_DELTAS or sum(deltas) > DELTA_SHARE * max(whole, 1):
            due.append(number)
    return due


def with_delta(base: Base, added: Sequence[File], old: dict[int, Bucket], new: dict[int, Bucket]) -> Base:
    """The base with a run's deltas. ``old`` and ``new``: by bucket, the sums of the rows that the run replaced and of
    those that it wrote."""
    buckets = []
    for number, kept in enumerate(base.buckets):
        total = kept.sum - old.get(number, Bucket()).sum + new.get(number, Bucket()).sum
        buckets.append(Bucket(total.count, f"{total.total:032x}"))
    return Base(tuple(buckets), (*base.files, *added))


def with_merged(base: Base, merged: Sequence[int], files: Sequence[File]) -> Base:
    """The base with new files for some buckets."""
    gone = set(merged)
    return Base(base.buckets, (*(f for f in base.files if f.bucket not in gone), *files))
