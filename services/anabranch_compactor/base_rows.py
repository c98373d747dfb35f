"""Rows of ``base/`` on their way to files and back, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from anabranch.columnar.encode import ColumnEncoder, cells_of, own_fields
from anabranch.columnar.file_columns import OWN
from anabranch.columnar.manifest import File
from anabranch_compactor.history import SLICE_BYTES, SLICE_ROWS, exact_map
from anabranch_compactor.scan import Places
from anabranch_compactor.shape import OLD, Shape
from anabranch_compactor.spark.packing import key_hashes, whole


def base_table(shape: Shape, rows: pa.RecordBatch) -> pa.Table:
    """Rows of ``base/`` for ``c…``, ``x…``, ``position`` and ``deleted``."""
    exact = exact_map(shape, [(i, rows.column(f"x{i}")) for i in shape.with_text], rows.num_rows)
    own = [rows.column("position"), rows.column("deleted"), exact]
    struct = pa.StructArray.from_arrays(own, fields=list(shape.base_schema.field(OWN).type))
    return pa.Table.from_arrays([*(rows.column(f"c{i}") for i in range(shape.width)), struct], schema=shape.base_schema)


def latest(shape: Shape, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Of rows with ``position`` the last one of each key, by key."""
    by = [(name, "ascending") for name in (*shape.sorting, "position")]
    rows = rows.take(pc.sort_indices(rows, sort_keys=by))
    keys = ColumnEncoder(shape.table).keys(rows)
    last = np.ones(rows.num_rows, np.bool_)
    last[:-1] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return rows if last.all() else rows.filter(pa.array(last))


def rows_of(
    shape: Shape, encoder: ColumnEncoder, filesystem: fs.FileSystem, paths: Iterable[str], changes: pa.RecordBatch
) -> pa.RecordBatch | None:
    """Of the rows of base files the latest of each key that ``changes`` have, as a row of kind OLD before the run's
    changes. Rows that are deleted are none. None where there is no row.

    Raises:
        OSError, pyarrow.ArrowException: a file can't be read.
    """
    found = []
    keys, (least, most) = encoder.keys(changes).unique(), _bounds(shape, changes)
    key_columns = [*shape.file_table.sources(shape.table.key_index), f"{OWN}.exact"]
    for path in paths:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            for group in range(file.num_row_groups):
                if not _may_have(file, shape, group, least, most):
                    continue
                rows = whole(file.read_row_group(group, columns=key_columns, use_threads=False))
                hit = pc.is_in(encoder.keys(cells_of(shape.file_table, rows, shape.table.key_index)), value_set=keys)
                if pc.any(hit).as_py():
                    found.append(_group(shape, file, group).filter(hit))
    if not found:
        return None
    rows = latest(shape, whole(pa.Table.from_batches(found)))
    rows = rows.filter(pc.invert(rows.column("deleted")))
    return _as_old(rows.drop_columns(["position", "deleted"])) if rows.num_rows else None


def _bounds(shape: Shape, rows: pa.RecordBatch) -> tuple[Any, Any]:
    """The least and the greatest value of the first key column; None where not all rows have one in the column."""
    values = rows.column(shape.sorting[0])
    if values.null_count or not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)):
        return None, None
    bounds = pc.min_max(values)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _may_have(file: pq.ParquetFile, shape: Shape, group: int, least: Any, most: Any) -> bool:
    """Whether a row group may have a row whose first key column is between two values."""
    if least is None:
        return True
    place = file.schema_arrow.get_field_index(shape.names[shape.table.key_index[0]])
    if place < 0:
        return True
    bounds = file.metadata.row_group(group).column(place).statistics
    return bounds is None or not bounds.has_min_max or (bounds.min <= most and bounds.max >= least)


def base_groups(shape: Shape, filesystem: fs.FileSystem, path: str) -> Iterator[pa.RecordBatch]:
    """The rows of a base file, a row group at a time: ``c…`` and ``x…``, ``position`` and ``deleted``."""
    with pq.ParquetFile(path, filesystem=filesystem) as file:
        for group in range(file.num_row_groups):
            yield _group(shape, file, group)


def _group(shape: Shape, file: pq.ParquetFile, group: int) -> pa.RecordBatch:
    there = set(file.schema_arrow.names)
    names = [*(name for name in shape.file_table.sources() if name in there), OWN]
    rows = whole(file.read_row_group(group, columns=names, use_threads=False))
    cells, own = cells_of(shape.file_table, rows, range(shape.width)), own_fields(rows)
    return cells.append_column("position", own["position"]).append_column("deleted", own["deleted"])


def _as_old(cells: pa.RecordBatch) -> pa.RecordBatch:
    count = cells.num_rows
    ours = {
        "position": pa.repeat(pa.scalar(-1, pa.int64()), count),
        "batch": pa.nulls(count, pa.string()),
        "ordinal": pa.repeat(pa.scalar(0, pa.int32()), count),
        "node": pa.nulls(count, pa.string()),
        "kind": pa.repeat(pa.scalar(OLD, pa.int16()), count),
        "changed": pa.nulls(count, pa.string()),
    }
    return pa.RecordBatch.from_arrays([*ours.values(), *cells.columns], names=[*ours, *cells.schema.names])


def in_slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """So many rows at a time as a row group is to have."""
    most = min(SLICE_ROWS, max(1, SLICE_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, most):
        yield rows.slice(start, most)


def by_bucket(keys: pa.Array, buckets: int) -> Iterator[tuple[int, Places]]:
    """The places of the rows of each bucket, by their encoded keys."""
    number = key_hashes(keys) % buckets if buckets > 1 else np.zeros(len(keys), np.int64)
    for one in np.unique(number).tolist():
        yield one, np.flatnonzero(number == one)


def touched(files: Sequence[File], buckets: set[int]) -> list[File]:
    """The files of some buckets."""
    return [file for file in files if file.bucket in buckets]
