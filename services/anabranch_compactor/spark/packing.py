"""Rows on their way through Spark: whole record batches, packed, for each of the parts that they are written in.

A row that is a row to Spark is copied, compared and converted by itself, four or five times until it is in a file. So
Spark carries packages: ``part``, and the rows of one task that belong to it, as an Arrow stream. Rows of one key are
in one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.columnar.encode import ColumnEncoder

if TYPE_CHECKING:
    from anabranch.values import Table

PACKED_SCHEMA = pa.schema([("part", pa.int32()), ("rows", pa.binary())])
_PACK_BYTES = 4 * 1024 * 1024
"""About how many bytes are gathered before they are packed."""

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class Route:
    """The parts of a table's rows: ``parts`` of them, from number ``first``."""

    table: Table
    first: int
    parts: int


def key_hashes(keys: pa.Array) -> npt.NDArray[np.int64]:
    """The hash of each encoded key (``ColumnEncoder.keys``): CRC-32. Modulo the number of buckets it is the bucket of
    the row in ``base/``."""
    return np.fromiter(map(crc32, keys.to_pylist()), np.int64, len(keys))


def pack(rows: Iterable[tuple[Route, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Packages of rows (``c…`` and ``x…``, and anything else) for each of the parts that they belong to."""
    gathered: dict[int, tuple[Route, list[pa.RecordBatch]]] = {}
    size = 0
    for route, batch in rows:
        if not batch.num_rows:
            continue
        gathered.setdefault(route.first, (route, []))[1].append(batch)
        size += batch.nbytes
        if size >= _PACK_BYTES:
            yield from _packed(gathered)
            gathered, size = {}, 0
    yield from _packed(gathered)


def _packed(gathered: dict[int, tuple[Route, list[pa.RecordBatch]]]) -> Iterator[pa.RecordBatch]:
    for route, batches in gathered.values():
        rows = pa.Table.from_batches(batches)
        if route.parts == 1:
            yield _package(route.first, rows)
            continue
        keys = ColumnEncoder(route.table).keys(whole(rows))
        part = key_hashes(keys) % route.parts
        order = np.argsort(part, kind="stable")
        bounds = np.searchsorted(part[order], np.arange(route.parts + 1))
        rows = rows.take(pa.array(order))
        for number in range(route.parts):
            start, end = int(bounds[number]), int(bounds[number + 1])
            if end > start:
                yield _package(route.first + number, rows.slice(start, end - start))


def _package(part: int, rows: pa.Table) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    # Spark copies a package several times: small ones cost less, even so.
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as stream:
        stream.write_table(rows)
    data = sink.getvalue()
    bounds = pa.py_buffer(np.array([0, data.size], np.int32))
    package = pa.Array.from_buffers(pa.binary(), 1, [None, bounds, data])
    return pa.RecordBatch.from_arrays([pa.array([part], pa.int32()), package], schema=PACKED_SCHEMA)


def unpacked(batches: Iterable[pa.RecordBatch], part: int) -> pa.RecordBatch | None:
    """All rows of the packages of a part, in no particular order; None where there are none.

    Raises:
        ValueError: a package is another part's.
    """
    tables = []
    for batch in batches:
        for number, package in zip(batch.column("part").to_pylist(), batch.column("rows"), strict=True):
            if number != part:
                raise ValueError(f"a package of part {number} has come to part {part}")
            tables.append(_read(package))
    return whole(pa.concat_tables(tables)) if tables else None


def whole(rows: pa.Table) -> pa.RecordBatch:
    """Rows as one batch.

    Raises:
        ValueError: a column has more than 2 GiB.
    """
    batches = rows.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(f"{rows.num_rows} rows have {rows.nbytes} bytes, which is too much for one task")
    found: pa.RecordBatch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)
    return found


def _read(package: pa.BinaryScalar) -> pa.Table:
    rows = pa.ipc.open_stream(package.as_buffer()).read_all()
    # Without what schemas say of NULL, in which Spark's rows and ours differ.
    return pa.Table.from_arrays(rows.columns, names=rows.column_names)
