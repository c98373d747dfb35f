"""Cells, and the values that SQLite holds for them.

=====================  ==============  =====================================================================
kind                   declared type   stored as
=====================  ==============  =====================================================================
BOOL                   INTEGER         0 or 1
INT64, DATE, TIME      INTEGER         the cell
TIMESTAMP              INTEGER         microseconds; the infinities are the limits; a Literal is its text
DOUBLE                 none            a float; NaN is the text 'NaN' (a REAL column would make it NULL)
BYTES                  BLOB            the cell
ARRAY                  TEXT            JSON, see below
DECIMAL                TEXT            the cell, in a column of the collation ``decimal``: see ``decimals``
all others             TEXT            the cell
=====================  ==============  =====================================================================

An array is a JSON array of its elements, nested for further dimensions, null for NULL: booleans, numbers for INT64,
DATE, TIME, TIMESTAMP and finite DOUBLE, the strings "NaN", "Infinity" and "-Infinity" for other doubles, lower case
hexadecimal strings for BYTES, strings for every other kind. A Literal, of an array or of a timestamp in one, is
``{"literal": text}``. The form is exact and reversible.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from anabranch.values.cells import Cell, Literal
from anabranch.values.decimals import COLLATION
from anabranch.values.kinds import TEXT_KINDS, ByKind, Kind
from anabranch.values.table import Column, Table

Convert = Callable[[Any], Any]
StoredRow = Sequence[Any]

_TYPES: ByKind[str] = ByKind(
    __name__,
    {
        Kind.BOOL: "INTEGER",
        Kind.INT64: "INTEGER",
        Kind.DATE: "INTEGER",
        Kind.TIME: "INTEGER",
        Kind.TIMESTAMP: "INTEGER",
        Kind.DOUBLE: "",
        Kind.BYTES: "BLOB",
        Kind.DECIMAL: f"TEXT COLLATE {COLLATION}",
        Kind.STRING: "TEXT",
        Kind.JSON: "TEXT",
        Kind.UUID: "TEXT",
        Kind.ARRAY: "TEXT",
        Kind.LITERAL: "TEXT",
    },
)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def declared_type(kind: Kind) -> str:
    """The declared type of a column of ``kind`` that is in no key; "" for no affinity."""
    return _TYPES[kind]


def _store_bool(cell: Any) -> Any:
    return cell if cell is None else int(cell)


def _load_bool(stored: Any) -> Any:
    return stored if stored is None else bool(stored)


def _store_double(cell: Any) -> Any:
    return "NaN" if cell != cell else cell


def _load_double(stored: Any) -> Any:
    return math.nan if stored == "NaN" else stored


def _load_timestamp(stored: Any) -> Any:
    return Literal(stored) if type(stored) is str else stored


def _element_out(kind: Kind) -> Convert:
    if kind is Kind.DOUBLE:
        return lambda c: c if math.isfinite(c) else "NaN" if c != c else "Infinity" if c > 0 else "-Infinity"
    if kind is Kind.BYTES:
        return bytes.hex
    return lambda c: c


def _element_in(kind: Kind) -> Convert:
    if kind is Kind.DOUBLE:
        return lambda v: _NOT_FINITE[v] if type(v) is str else float(v)
    if kind is Kind.BYTES:
        return bytes.fromhex
    return lambda v: v


def _store_array(element_kind: Kind) -> Convert:
    element = _element_out(element_kind)

    def out(cell: Any) -> Any:
        if type(cell) is tuple:
            return [out(c) for c in cell]
        if cell is None:
            return None
        return {"literal": cell} if type(cell) is Literal else element(cell)

    def store(cell: Any) -> Any:
        if cell is None:
            return None
        return json.dumps(out(cell), ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    return store


def _load_array(element_kind: Kind) -> Convert:
    element = _element_in(element_kind)

    def back(value: Any) -> Cell:
        if type(value) is list:
            return tuple(back(v) for v in value)
        if value is None:
            return None
        if type(value) is dict:
            return Literal(value["literal"])
        cell: Cell = element(value)
        return cell

    def load(stored: Any) -> Any:
        return None if stored is None else back(json.loads(stored))

    return load


_CELLS: Mapping[Kind, None] = dict.fromkeys(TEXT_KINDS | {Kind.INT64, Kind.BYTES, Kind.DATE, Kind.TIME})
"""The kinds whose cells SQLite holds as they are."""
_STORE: ByKind[Convert | None] = ByKind(
    __name__, {**_CELLS, Kind.BOOL: _store_bool, Kind.DOUBLE: _store_double, Kind.TIMESTAMP: None}
)
_LOAD: ByKind[Convert | None] = ByKind(
    __name__, {**_CELLS, Kind.BOOL: _load_bool, Kind.DOUBLE: _load_double, Kind.TIMESTAMP: _load_timestamp}
)


def storer(column: Column) -> Convert | None:
    """The function that converts a cell of ``column`` to the value in SQLite, or None where that is the cell itself."""
    return _store_array(column.element_kind or Kind.STRING) if column.kind is Kind.ARRAY else _STORE[column.kind]


def loader(column: Column) -> Convert | None:
    """The function that converts the value in SQLite to the cell, or None where they are the same.

    The function raises ValueError or KeyError where an array's text does not have the form that ``storer`` makes."""
    return _load_array(column.element_kind or Kind.STRING) if column.kind is Kind.ARRAY else _LOAD[column.kind]


def _by_column(rows: Sequence[Any], conversions: Sequence[tuple[int, Convert]]) -> Sequence[Any]:
    if not conversions or not rows:
        return rows
    columns: list[Iterable[Any]] = list(zip(*rows, strict=True))
    for i, convert in conversions:
        columns[i] = map(convert, columns[i])
    return list(zip(*columns, strict=True))


class RowCodec:
    """Converts rows of one table, column by column; rows are in the order of ``table.columns``."""

    __slots__ = ("_doubles", "_load", "_store")

    def __init__(self, table: Table) -> None:
        self._store = [(i, f) for i, c in enumerate(table.columns) if (f := storer(c)) is not None]
        self._load = [(i, f) for i, c in enumerate(table.columns) if (f := loader(c)) is not None]
        self._doubles = [i for i, c in enumerate(table.columns) if c.kind is Kind.DOUBLE]

    def store(self, row: Sequence[Cell]) -> tuple[Any, ...]:
        """The stored form of a row of cells."""
        if not self._store:
            return tuple(row)
        out: list[Any] = list(row)
        for i, convert in self._store:
            out[i] = convert(out[i])
        return tuple(out)

    def load(self, row: StoredRow) -> tuple[Cell, ...]:
        """The cells of a stored row."""
        if not self._load:
            return tuple(row)
        out: list[Any] = list(row)
        for i, convert in self._load:
            out[i] = convert(out[i])
        return tuple(out)

    def store_rows(self, rows: Sequence[tuple[Cell, ...]]) -> Sequence[tuple[Any, ...]]:
        """The stored forms of rows of cells."""
        return _by_column(rows, self._store)

    def load_rows(self, rows: Sequence[StoredRow]) -> Sequence[tuple[Cell, ...]]:
        """The cells of stored rows."""
        return _by_column(rows, self._load)

    def same(self, a: StoredRow | None, b: StoredRow | None) -> bool:
        """Whether two stored rows are equal, the sign of zeros included."""
        if a is None or b is None:
            return a is b
        return a == b and all(
            a[i] != 0 or math.copysign(1, a[i]) == math.copysign(1, b[i])
            for i in self._doubles
            if a[i] is not None and a[i] != "NaN"
        )
