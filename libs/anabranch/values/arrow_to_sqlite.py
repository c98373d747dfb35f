"""Convert Arrow columns of a pull to the values that SQLite holds, column by column.

The columns come as BOOL: bool; INT64: int16, int32 or int64; DOUBLE: float or double; BYTES: binary; TIMESTAMP: int64
or timestamp[us] with the exact microseconds; DATE: int32 or date32; TIME: int64 or time64[us]; all others: utf8. An
ARRAY is the JSON array of its elements' texts as Postgres prints them, nested for further dimensions, null for NULL;
text that is no JSON is a Literal's, and so is a TIMESTAMP that comes as text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.values.arrow import array_cell, numbers
from anabranch.values.kinds import ByKind, Kind
from anabranch.values.postgres_text import element_parser
from anabranch.values.sqlite import storer
from anabranch.values.table import Column

_WIDTHS = {32: pa.int32(), 64: pa.int64()}


def _integers(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_temporal(kind):
        column = column.view(_WIDTHS[kind.bit_width])
    elif not pa.types.is_integer(kind):
        # A column with timestamps beyond 64 bits comes as text: their text, and the numbers of the others.
        return [v if v is None or not v.lstrip("-").isdigit() else int(v) for v in column.to_pylist()]
    return numbers(column)


def _doubles(column: pa.Array) -> list[Any]:
    values = numbers(column.cast(pa.float64()))
    for i in pc.indices_nonzero(pc.is_nan(column).fill_null(False)).to_pylist():
        values[i] = "NaN"
    return values


def _objects(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _arrays(column: Column) -> Callable[[pa.Array], list[Any]]:
    element = element_parser(column.element_kind or Kind.STRING)
    store = storer(column)
    assert store is not None

    def convert(values: pa.Array) -> list[Any]:
        return [None if v is None else store(array_cell(v, element)) for v in values.to_pylist()]

    return convert


_CONVERT: ByKind[Callable[[pa.Array], list[Any]]] = ByKind(
    __name__,
    {
        **dict.fromkeys((Kind.BOOL, Kind.INT64, Kind.TIMESTAMP, Kind.DATE, Kind.TIME), _integers),
        Kind.DOUBLE: _doubles,
        **dict.fromkeys((Kind.STRING, Kind.BYTES, Kind.DECIMAL, Kind.JSON, Kind.UUID, Kind.LITERAL), _objects),
    },
)


def sqlite_column(column: Column) -> Callable[[pa.Array], list[Any]]:
    """The function that converts a column of a pull to the values that SQLite holds for ``column``. For an array it
    raises ValueError or KeyError where an element is not readable."""
    return _arrays(column) if column.kind is Kind.ARRAY else _CONVERT[column.kind]
