"""The Arrow type that carries each kind, and the conversion of Arrow columns to cells.

============================  ================================================================================
kind                          Arrow type
============================  ================================================================================
BOOL                          bool
INT64                         int64
DOUBLE                        float64, by its bits (a real is widened exactly)
STRING, JSON, UUID, LITERAL   string
DECIMAL                       string, as Postgres prints it
BYTES                         binary
TIMESTAMP                     timestamp[us], with zone UTC for timestamptz; the smallest and the largest number
                              stand for the infinities. A chunk with a value beyond 64 bits of microseconds has
                              string for this column: numbers in decimal, and the text of that value
DATE                          date32; the smallest and the largest number stand for the infinities
TIME                          time64[us]; 24:00:00 is 86,400,000,000
ARRAY                         string: a JSON array of the elements' texts, nested for further dimensions, null
                              for NULL. Text that is no JSON is an array with lower bounds other than one, as
                              Postgres prints it
============================  ================================================================================

SQL NULL is null in every type.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.values.cells import Cell, Literal
from anabranch.values.kinds import ByKind, Kind
from anabranch.values.table import Column, Table, has_zone

_TYPES: ByKind[pa.DataType] = ByKind(
    __name__,
    {
        Kind.BOOL: pa.bool_(),
        Kind.INT64: pa.int64(),
        Kind.DOUBLE: pa.float64(),
        Kind.BYTES: pa.binary(),
        Kind.DATE: pa.date32(),
        Kind.TIME: pa.time64("us"),
        Kind.STRING: pa.string(),
        Kind.DECIMAL: pa.string(),
        Kind.JSON: pa.string(),
        Kind.UUID: pa.string(),
        Kind.ARRAY: pa.string(),
        Kind.LITERAL: pa.string(),
    },
)
_NUMBERS: dict[Kind, pa.DataType] = {
    Kind.TIMESTAMP: pa.int64(),
    Kind.DATE: pa.int32(),
    Kind.TIME: pa.int64(),
}
_CODES = {pa.uint8(): "B", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q", pa.float64(): "d"}


def arrow_type(column: Column) -> pa.DataType:
    """The type that carries a column, except in chunks with timestamps beyond 64 bits."""
    if column.kind is Kind.TIMESTAMP:
        return pa.timestamp("us", "UTC" if has_zone(column) else None)
    return _TYPES[column.kind]


def arrow_schema(table: Table) -> pa.Schema:
    """The table's columns, in its order."""
    return pa.schema([pa.field(column.name, arrow_type(column)) for column in table.columns])


def to_cells(column: Column, values: pa.Array, element: Callable[[str], Cell] | None = None) -> list[Cell]:
    """The cells of one column. ``element`` reads the text of an array's element (None: it is the cell).

    Raises:
        ValueError: the values are not of the type that carries the column.
    """
    if column.kind in _NUMBERS and not pa.types.is_string(values.type):
        return numbers(values.view(_NUMBERS[column.kind]))
    cells: list[Any] = values.to_pylist()
    if column.kind is Kind.TIMESTAMP:
        return [None if text is None else _timestamp(text) for text in cells]
    if column.kind is Kind.ARRAY:
        return [None if text is None else array_cell(text, element) for text in cells]
    return cells


def _timestamp(text: str) -> Cell:
    return int(text) if text.removeprefix("-").isdecimal() else Literal(text)


def array_cell(text: str, element: Callable[[str], Cell] | None) -> Cell:
    """The cell of an array as a pull carries it. Raises the error of ``element`` where an element is not readable."""
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        return Literal(text)

    def cells(value: Any) -> Cell:
        if type(value) is list:
            return tuple(map(cells, value))
        return value if value is None or element is None else element(value)

    return cells(parsed)


def numbers(values: pa.Array) -> list[Any]:
    """The numbers of a column, None for a null. They are read from the buffer itself: to_pylist is three times slower,
    and to_numpy needs another package."""
    if not len(values):
        return []
    start = values.offset
    buffer: Any = memoryview(values.buffers()[1])
    found: list[Any] = buffer.cast(_CODES[values.type])[start : start + len(values)].tolist()
    if values.null_count:
        for i in pc.indices_nonzero(values.is_null()).to_pylist():
            found[i] = None
    return found
