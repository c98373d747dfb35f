"""The proof row by row, as an oracle for the one by columns (``anabranch.columnar.proof``): each row of a file is read
to cells, and hashed by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.columnar.file_columns import BASE, CAUSE, CHANGES, CONFLICT_FIELDS, KINDS, OWN, FileColumn, FileTable
from anabranch.columnar.proof import Sum
from anabranch.values import Cell, Table
from anabranch.values.effect_hashes import EffectEncoder
from anabranch.values.messages import column_writer
from anabranch.values.parquet import file_codecs

_TYPES = {name: number for number, name in KINDS.items()}
_Cells = Mapping[str, Cell]


def rows_sum(table: Table, columns: Sequence[Sequence[Cell]]) -> Sum:
    """The sum of the row hashes of columns of cells."""
    encoder = EffectEncoder(table)
    return _added([encoder.hash(row) for row in zip(*columns, strict=True)])


def file_sum(what: str, files: FileTable, path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> Sum:
    """The sum of the hashes of those rows of a file whose struct of ours ``keep`` takes.

    Raises:
        OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException: the file holds no such rows.
    """
    hash_of, hashes = {CHANGES: _effect, BASE: _row}.get(what, _conflict), []
    for cells, own in _rows(files, pq.ParquetFile(path).read()):
        if keep(own):
            hashes.append(hash_of(files, cells, own))
    return _added(hashes)


def _added(hashes: Sequence[int]) -> Sum:
    return Sum() + Sum(len(hashes), sum(hashes))


def _rows(files: FileTable, rows: pa.Table) -> Iterator[tuple[_Cells, Mapping[str, Any]]]:
    """Each row's cells, by the names of file columns, and our struct."""
    ours = rows.column(OWN).to_pylist()
    exact = [dict(own["exact"] or {}) for own in ours]
    cells: dict[str, Sequence[Cell]] = {}
    for one, codec in zip(files.ever, file_codecs(one.column for one in files.ever), strict=True):
        name = one.file_name
        if name in rows.schema.names:
            values = rows.column(name).combine_chunks()
            cells[name] = codec.read(values, [texts.get(name) for texts in exact])
    for at, own in enumerate(ours):
        yield {name: column[at] for name, column in cells.items()}, own


def _cells(files: FileTable, cells: _Cells) -> list[Cell]:
    """A row's cells. A file that is older than a column has its initial value."""
    found: list[Cell] = []
    for one, places in zip(files.columns, files.places, strict=True):
        there = [cells[place.file_name] for place in places if place.file_name in cells]
        found.append((*there, *one.column.initial, None)[0])
    return found


def _row(files: FileTable, cells: _Cells, _: Mapping[str, Any]) -> int:
    return EffectEncoder(files.table).hash(_cells(files, cells))


def _effect(files: FileTable, cells: _Cells, own: Mapping[str, Any]) -> int:
    names = enumerate(files.table.column_names)
    had = [name for i, name in names if i not in files.ends or own["position"] < files.ends[i]]
    given = {"insert": had, "update": own["changed"] or ()}.get(own["type"], ())
    digest = EffectEncoder(files.table).effect_hash(_TYPES[own["type"]], _cells(files, cells), given)
    return int.from_bytes(digest, "big")


def _conflict(files: FileTable, cells: _Cells, own: Mapping[str, Any]) -> int:
    value = own["untyped"]
    if value is None:
        value = _losing(cells, [one for one in files.ever if one.column.name == own["column"]])
    cause = [own[CAUSE]] if own.get(CAUSE) is not None else []
    return conflict_hash([*(own[name] for name in CONFLICT_FIELDS), *cause], value)


def conflict_hash(fields: Sequence[str | int], value: bytes) -> int:
    """The hash of a conflict. ``fields``: those of CONFLICT_FIELDS, and its cause where it has one."""
    return int.from_bytes(sha256("\x1f".join(map(str, fields)).encode() + value).digest()[:16], "big")


def _losing(cells: _Cells, places: Sequence[FileColumn]) -> bytes:
    """The first value of some file columns, serialized; NULL is the same in all of them."""
    if not places:
        raise KeyError("no file column is of the column that lost")
    there = [one for one in places if cells.get(one.file_name) is not None] or places
    return column_writer(there[0].column)(cells.get(there[0].file_name)).SerializeToString()
