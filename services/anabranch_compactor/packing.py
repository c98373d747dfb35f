"""Rows on their way through Spark: whole record batches, packed, for each of the parts that a table is written in.

A row that is a row to Spark is copied, compared and converted by itself, four or five times until it is in a file. So
Spark carries packages: ``part``, and the rows of one task that belong to it, as an Arrow stream. Rows of one key are
in one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from zlib import crc32

import numpy as np
import pyarrow as pa

from anabranch_compactor.encode import ColumnEncoder

PACKED_SCHEMA = pa.schema([("part", pa.int32()), ("rows", pa.binary())])
_PACK_BYTES = 4 * 1024 * 1024
"""About what is gathered before it is packed."""


def pack(encoder: ColumnEncoder, parts: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Packages of rows (``c…`` and ``x…``, and anything else) for each of ``parts`` parts."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= _PACK_BYTES:
            yield from _packed(encoder, parts, gathered)
            gathered, size = [], 0
    if gathered:
        yield from _packed(encoder, parts, gathered)


def _packed(encoder: ColumnEncoder, parts: int, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = pa.Table.from_batches(batches)
    if parts == 1:
        yield _package(0, rows)
        return
    rows = rows.combine_chunks()
    part = np.array([crc32(key) % parts for key in encoder.keys(rows.to_batches()[0]).to_pylist()], np.int32)
    order = np.argsort(part, kind="stable")
    bounds = np.searchsorted(part[order], np.arange(parts + 1))
    rows = rows.take(pa.array(order))
    for number in range(parts):
        start, end = int(bounds[number]), int(bounds[number + 1])
        if end > start:
            yield _package(number, rows.slice(start, end - start))


def _package(part: int, rows: pa.Table) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    data = sink.getvalue()
    bounds = pa.py_buffer(np.array([0, data.size], np.int32))
    package = pa.Array.from_buffers(pa.binary(), 1, [None, bounds, data])
    return pa.RecordBatch.from_arrays([pa.array([part], pa.int32()), package], schema=PACKED_SCHEMA)


def unpacked(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch | None:
    """All rows of the packages of a part, in no particular order; None where there are none."""
    tables = [_read(package) for batch in batches for package in batch.column("rows")]
    if not tables:
        return None
    found: pa.RecordBatch = pa.concat_tables(tables).combine_chunks().to_batches()[0]
    return found


def _read(package: pa.BinaryScalar) -> pa.Table:
    rows = pa.ipc.open_stream(package.as_buffer()).read_all()
    # Without what schemas say of NULL, in which Spark's rows and ours differ.
    return pa.Table.from_arrays(rows.columns, names=rows.column_names)
