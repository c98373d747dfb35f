"""The values that lost, as the files of a manifest have them, added up as Postgres adds up its own (``compactions``):
so that none is removed from Postgres that the files do not really hold.

In a file a losing value stands in the file column of the column that lost, or as its bytes where it fits none. Since a
manifest lives longer than a table's columns, that file column may be one of a column that is gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from anabranch.columnar.evidence import EvidenceError, manifest_folder
from anabranch.columnar.file_columns import OWN, FileColumn
from anabranch.columnar.manifest import Manifest, TableFiles
from anabranch.columnar.proof import Sum
from anabranch.store.lake.compactions import CONFLICT_FIELDS, conflict_bytes
from anabranch.v1 import value_pb2
from anabranch.values import Cell
from anabranch.values.messages import column_writer
from anabranch.values.parquet import file_codecs

_ROWS = 10_000
_DIGEST = 16


def conflicts_sum(root: str, manifest: Manifest, after: int, upto: int) -> Sum:
    """Number of losing values of (``after``, ``upto``] and the sum of their hashes, of all tables together.

    Raises:
        EvidenceError: a file can't be read, or its content is not that of a file of conflicts.
    """
    filesystem, folder = manifest_folder(root, manifest)
    total = Sum()
    for table in manifest.tables.values():
        places = _places(table)
        for file in table.conflicts:
            if file.first_position > upto or file.last_position <= after:
                continue
            path = f"{folder}/{file.path}"
            try:
                for batch in _batches(filesystem, path, after, upto):
                    total += _sum(batch, places)
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
                raise EvidenceError(f"{path}: {error!r}") from error
    return total


def _batches(filesystem: fs.FileSystem, path: str, after: int, upto: int) -> Iterator[pa.RecordBatch]:
    position = ds.field(OWN, "position")
    data = ds.dataset(path, format="parquet", filesystem=filesystem)
    stretch = (position > after) & (position <= upto)
    return (batch for batch in data.to_batches(filter=stretch, batch_size=_ROWS) if batch.num_rows)


@dataclass(frozen=True, slots=True)
class _Place:
    """A file column that may hold a losing value, its reader, and the writer of the value."""

    file_name: str
    read: Callable[[pa.Array, Sequence[str | None]], Sequence[Cell]]
    write: Callable[[Cell], value_pb2.Value]


def _places(table: TableFiles) -> Mapping[str, Sequence[_Place]]:
    """Where a column's losing values may stand, the newest place first."""
    ever: Sequence[FileColumn] = table.columns.ever
    found: dict[str, list[_Place]] = {}
    for one, codec in zip(ever, file_codecs(one.column for one in ever), strict=True):
        found.setdefault(one.column.name, []).append(_Place(one.file_name, codec.read, column_writer(one.column)))
    return found


def _sum(batch: pa.RecordBatch, places: Mapping[str, Sequence[_Place]]) -> Sum:
    own = batch.column(OWN)
    struct = dict(zip([field.name for field in own.type], own.flatten(), strict=True))
    fields = [struct[name].to_pylist() for name in CONFLICT_FIELDS]
    untyped, exact = struct["untyped"].to_pylist(), [dict(texts or {}) for texts in struct["exact"].to_pylist()]
    names = struct["column"].to_pylist()
    columns = {
        name: [(place, _cells(batch, place, exact)) for place in places[name] if place.file_name in batch.schema.names]
        for name in {name for name, raw in zip(names, untyped, strict=True) if raw is None}
    }
    total = 0
    for row, raw in enumerate(untyped):
        value = _value(row, columns[names[row]], places[names[row]]) if raw is None else raw
        data = conflict_bytes([values[row] for values in fields], value)
        total += int.from_bytes(hashlib.sha256(data).digest()[:_DIGEST], "big")
    return Sum() + Sum(batch.num_rows, total)


def _cells(batch: pa.RecordBatch, place: _Place, exact: Sequence[Mapping[str, str]]) -> Sequence[Cell]:
    return place.read(batch.column(place.file_name), [texts.get(place.file_name) for texts in exact])


def _value(row: int, columns: Sequence[tuple[_Place, Sequence[Cell]]], places: Sequence[_Place]) -> bytes:
    """NULL is the same in every place."""
    for place, cells in columns:
        if cells[row] is not None:
            return place.write(cells[row]).SerializeToString()
    return places[0].write(None).SerializeToString()
