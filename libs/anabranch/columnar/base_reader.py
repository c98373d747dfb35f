"""Reads a table's published base without Spark: its rows in record batches as a Pull carries them.

The order of rows is the manifest's, and the same each time: bucket by bucket, of each bucket first the rows of its
whole files that no delta replaces, then the rows that the deltas left. So a reader can go back to a place, which is a
bucket and a number of its rows. Memory holds a chunk, and the deltas of one bucket, which the compactor keeps below a
quarter of its rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from anabranch.columnar.encode import cells_of, own_fields
from anabranch.columnar.evidence import EvidenceError
from anabranch.columnar.file_columns import OWN
from anabranch.columnar.manifest import File, TableFiles
from anabranch.values import Kind
from anabranch.values.parquet import file_codecs

_AT = "at"
_BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RowPlace:
    """The place after ``rows`` rows of bucket ``bucket``, and all rows of the buckets before."""

    bucket: int = 0
    rows: int = 0


class BaseReader:
    """Reads the base of one table, whose files lie in ``folder``; batches of about ``batch_bytes``. Pages are checked
    against their checksums."""

    def __init__(self, filesystem: fs.FileSystem, folder: str, files: TableFiles, batch_bytes: int) -> None:
        assert files.base is not None
        self._filesystem = filesystem
        self._folder = folder
        self._base = files.base
        self._columns = files.columns
        self._codecs = file_codecs(files.columns.table.columns)
        self._batch_bytes = batch_bytes
        self._table = files.columns.table

    def batches(self, after: RowPlace) -> Generator[tuple[pa.RecordBatch, RowPlace], None, None]:
        """The rows after a place, each batch with the place after it; none is empty.

        Raises:
            EvidenceError: a file is missing, can't be read, or does not hold this table.
        """
        for number in range(after.bucket, len(self._base.buckets)):
            done = after.rows if number == after.bucket else 0
            with closing(self.bucket(number, done)) as batches:
                for batch in batches:
                    done += batch.num_rows
                    yield batch, RowPlace(number, done)

    def bucket(self, number: int, skip: int = 0) -> Generator[pa.RecordBatch, None, None]:
        """The rows of one bucket after the first ``skip``; no batch is empty. Raises as ``batches``."""
        files = [file for file in self._base.files if file.bucket == number]
        deltas = [file for file in files if file.delta]
        latest = self._latest(deltas) if deltas else None
        for file in files:
            if file.delta:
                continue
            try:
                with self._open(file) as opened:
                    for group in range(opened.num_row_groups):
                        shown = None if latest is None else self._shown(opened, group, latest)
                        rows = opened.metadata.row_group(group).num_rows if shown is None else shown.true_count
                        if rows > skip:
                            yield from self._group(opened, group, shown, skip)
                        skip = max(0, skip - rows)
            except (OSError, ValueError, KeyError, pa.ArrowException) as error:
                raise EvidenceError(f"{self._folder}/{file.path}: {error}") from error
        if latest is not None:
            left = latest.filter(pc.invert(latest.column("deleted"))).slice(skip)
            size = max(1, int(self._batch_bytes / max(1, left.nbytes) * left.num_rows))
            for batch in left.combine_chunks().to_batches(max_chunksize=size):
                yield self._pulled(batch)

    def _open(self, file: File) -> pq.ParquetFile:
        return pq.ParquetFile(
            f"{self._folder}/{file.path}",
            filesystem=self._filesystem,
            buffer_size=_BUFFER_BYTES,
            # Data read ahead would be kept until the file is closed.
            pre_buffer=False,
            page_checksum_verification=True,
        )

    def _group(
        self, opened: pq.ParquetFile, group: int, shown: pa.BooleanArray | None, skip: int
    ) -> Iterator[pa.RecordBatch]:
        about = opened.metadata.row_group(group)
        size = max(1, int(self._batch_bytes / max(1, about.total_byte_size) * about.num_rows))
        columns = [*self._columns.sources(), f"{OWN}.exact"]
        at = 0
        for batch in opened.iter_batches(size, row_groups=[group], columns=columns, use_threads=False):
            read = batch.num_rows
            if shown is not None:
                batch = batch.filter(shown.slice(at, read))
            at += read
            if skip < batch.num_rows:
                yield self._pulled(cells_of(self._columns, batch.slice(skip), range(len(self._codecs))))
            skip = max(0, skip - batch.num_rows)

    def _pulled(self, cells: pa.RecordBatch) -> pa.RecordBatch:
        exact = {i: cells.column(f"x{i}") for i in self._columns.with_text}
        columns = [codec.to_pull(cells.column(f"c{i}"), exact.get(i)) for i, codec in enumerate(self._codecs)]
        return pa.RecordBatch.from_arrays(columns, names=self._table.column_names)

    def _latest(self, deltas: Sequence[File]) -> pa.Table:
        """The last row of each key in a bucket's deltas, deleted ones included: cells, ``position`` and ``deleted``."""
        read = []
        for file in deltas:
            try:
                with self._open(file) as opened:
                    rows = _one_batch(opened.read(columns=[*self._columns.sources(), OWN], use_threads=False))
            except (OSError, ValueError, pa.ArrowException) as error:
                raise EvidenceError(f"{self._folder}/{file.path}: {error}") from error
            # Each file has the columns of its time.
            cells, own = cells_of(self._columns, rows, range(len(self._codecs))), own_fields(rows)
            read.append(cells.append_column("position", own["position"]).append_column("deleted", own["deleted"]))
        rows = pa.Table.from_batches(read).combine_chunks()
        keys = self._keys(rows)
        order = [(name, "ascending") for name in keys.column_names]
        indices = pc.sort_indices(
            keys.append_column("position", rows.column("position")), [*order, ("position", "descending")]
        )
        keys, rows = keys.take(indices), rows.take(indices)
        other = None
        for values in keys.columns:
            one = pc.not_equal(values.slice(1), values.slice(0, max(0, len(values) - 1)))
            other = one if other is None else pc.or_(other, one)
        first = pa.chunked_array([pa.array([True] if rows.num_rows else [], pa.bool_()), *_chunks(other)])
        return rows.filter(first)

    def _keys(self, cells: pa.Table | pa.RecordBatch) -> pa.Table:
        """The columns that distinguish rows, without nulls."""
        columns: dict[str, pa.ChunkedArray | pa.Array] = {}
        for i in self._table.key_index:
            values = cells.column(f"c{i}")
            if self._table.columns[i].kind is Kind.TIMESTAMP:
                columns[f"x{i}"] = pc.fill_null(cells.column(f"x{i}"), "")
                values = pc.fill_null(values.cast(pa.int64()), 0)
            columns[f"c{i}"] = values
        return pa.table(columns)

    def _shown(self, opened: pq.ParquetFile, group: int, latest: pa.Table) -> pa.BooleanArray:
        """A mask of the rows of a row group that no delta replaces."""
        index = self._table.key_index
        columns = [*self._columns.sources(index), f"{OWN}.exact"]
        rows = _one_batch(opened.read_row_group(group, columns=columns, use_threads=False))
        keys = self._keys(cells_of(self._columns, rows, index))
        at = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), keys.num_rows))
        found = keys.append_column(_AT, at).join(
            self._keys(latest), keys.column_names, join_type="left semi", use_threads=False
        )
        return pc.invert(pc.is_in(at, found.column(_AT).combine_chunks()))


def _chunks(values: pa.ChunkedArray | pa.Array | None) -> Sequence[pa.Array]:
    if values is None:
        return ()
    return values.chunks if isinstance(values, pa.ChunkedArray) else (values,)


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)
