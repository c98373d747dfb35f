"""Cells to columns of Parquet files and back, a whole column at a time.

============================  ==================================================================================
kind                          type in a file
============================  ==================================================================================
BOOL                          boolean
INT64                         INT64
DOUBLE                        DOUBLE, by its bits
STRING, JSON, UUID, LITERAL   string
DECIMAL                       decimal(p, s) where numeric(p, s) is declared with at most 38 digits, else string, as
                              Postgres prints it
BYTES                         binary
TIMESTAMP                     INT64 TIMESTAMP(MICROS), adjusted to UTC for timestamptz; the smallest and the largest
                              number stand for the infinities
DATE                          DATE; the smallest and the largest number stand for the infinities
TIME                          INT64, microseconds since midnight (24:00:00 is 86,400,000,000)
ARRAY                         string, the JSON array of the elements' texts, as a Pull carries it
============================  ==================================================================================

A value that its type can't hold (NaN in a numeric(p, s), a number that Postgres wrote when the column had another
precision, a timestamp after the year 294246) is NULL in the column, and its exact text is in the map
``anabranch.exact``, under the file column's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.values.arrow import numbers, to_cells
from anabranch.values.cells import Cell, Literal
from anabranch.values.kinds import ByKind, Kind
from anabranch.values.postgres_text import element_parser, element_printer
from anabranch.values.table import Column, has_zone

_MOST_DIGITS = 38
_DECLARED = re.compile(r"numeric\((\d+),(\d+)\)")
_TYPES: ByKind[pa.DataType] = ByKind(
    __name__,
    {
        Kind.BOOL: pa.bool_(),
        Kind.INT64: pa.int64(),
        Kind.DOUBLE: pa.float64(),
        Kind.BYTES: pa.binary(),
        Kind.DATE: pa.date32(),
        Kind.TIME: pa.int64(),
        Kind.STRING: pa.string(),
        Kind.JSON: pa.string(),
        Kind.UUID: pa.string(),
        Kind.ARRAY: pa.string(),
        Kind.LITERAL: pa.string(),
    },
)
_NUMBERS: dict[Kind, pa.DataType] = {Kind.TIMESTAMP: pa.int64(), Kind.DATE: pa.int32(), Kind.TIME: pa.int64()}
_NAN = "NaN"
Exact = Sequence[str | None] | None
"""The texts of values that the file column can't hold, each at its row's place; None where there are none."""


def declared_digits(column: Column) -> tuple[int, int] | None:
    """Precision and scale of a DECIMAL column that a file holds as a decimal; None for one that it holds as text."""
    match = _DECLARED.fullmatch(column.postgres_type)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    return (precision, scale) if scale <= precision <= _MOST_DIGITS else None


def file_type(column: Column) -> pa.DataType:
    """The type of the file column that holds ``column``."""
    if column.kind is Kind.TIMESTAMP:
        return pa.timestamp("us", "UTC" if has_zone(column) else None)
    if column.kind is Kind.DECIMAL:
        digits = declared_digits(column)
        return pa.string() if digits is None else pa.decimal128(*digits)
    return _TYPES[column.kind]


def may_need_text(column: Column) -> bool:
    """Whether the column may hold values that its file column can't."""
    return column.kind is Kind.TIMESTAMP or (column.kind is Kind.DECIMAL and declared_digits(column) is not None)


class FileCodec:
    """Converts the cells of one column to a file column and back."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.type = file_type(column)
        element = column.element_kind or Kind.STRING
        self._show = element_printer(element)
        self._read = element_parser(element)
        self._digits = declared_digits(column) if column.kind is Kind.DECIMAL else None
        self._as_declared = "" if self._digits is None else _as_printed(*self._digits)

    def write(self, cells: Sequence[Cell]) -> tuple[pa.Array, Exact]:
        """The file column of ``cells``.

        Raises:
            pyarrow.ArrowInvalid, OverflowError, TypeError: a cell is not of the column's kind.
        """
        kind = self.column.kind
        exact: list[str | None] | None = None
        if kind is Kind.TIMESTAMP and any(type(c) is Literal for c in cells):
            exact = [c if type(c) is Literal else None for c in cells]
            cells = [None if type(c) is Literal else c for c in cells]
        if kind in _NUMBERS:
            numbers = pa.array(cells, _NUMBERS[kind])
            return (numbers if kind is Kind.TIME else numbers.view(self.type)), exact
        if self._digits is not None:
            return self._decimals(pa.array(cells, pa.string()), self._as_declared)
        if kind is Kind.ARRAY:
            cells = [None if c is None else self._array_text(c) for c in cells]
        return pa.array(cells, self.type), None

    def _array_text(self, cell: Cell) -> str:
        if type(cell) is Literal:
            return cell
        return json.dumps(self._texts(cast("tuple[Cell, ...]", cell)), ensure_ascii=False, separators=(",", ":"))

    def _texts(self, cells: tuple[Cell, ...]) -> list[Any]:
        show, texts = self._show, self._texts
        return [None if c is None else texts(c) if type(c) is tuple else show(c) for c in cells]

    def read(self, values: pa.Array, exact: Exact = None) -> list[Cell]:
        """The cells of a file column.

        Raises:
            pyarrow.ArrowInvalid, ValueError: the values are not of the column's type.
        """
        kind = self.column.kind
        cells: list[Any]
        if kind in _NUMBERS:
            cells = numbers(values.view(_NUMBERS[kind]))
        elif kind in (Kind.INT64, Kind.DOUBLE):
            cells = numbers(values.cast(self.type))
        elif self._digits is not None:
            cells = [None if v is None else _plain(v) for v in values.to_pylist()]
        elif kind is Kind.ARRAY:
            cells = to_cells(self.column, values, self._read)
        else:
            cells = values.to_pylist()
        if exact is not None:
            literal = Literal if kind is Kind.TIMESTAMP else str
            for i, text in enumerate(exact):
                if text is not None:
                    cells[i] = literal(text)
        return cells

    def from_pull(self, values: pa.Array) -> tuple[pa.Array, Exact]:
        """The file column of a column as a Pull carries it."""
        kind = self.column.kind
        if kind is Kind.TIME:
            return values.view(pa.int64()), None
        if kind is Kind.TIMESTAMP and pa.types.is_string(values.type):
            return self.write(to_cells(self.column, values))
        if self._digits is not None:
            return self._decimals(values, self._as_declared)
        return (values if values.type == self.type else values.cast(self.type)), None

    def _decimals(self, texts: pa.Array, as_declared: str) -> tuple[pa.Array, Exact]:
        """Texts of decimals as the file column holds them, and those that it would not give back as they are."""
        fits = pc.match_substring_regex(texts, as_declared)
        if pc.all(fits).as_py() is not False:
            return texts.cast(self.type), None
        none = pa.scalar(None, pa.string())
        return pc.if_else(fits, texts, none).cast(self.type), pc.if_else(fits, none, texts).to_pylist()

    def is_odd(self, exact: str) -> bool:
        """Whether an exact text is one that a column of the present type never has."""
        return self._digits is not None and exact != _NAN

    def to_pull(self, values: pa.Array, exact: pa.Array | None = None) -> pa.Array:
        """A file column as a Pull carries it: the inverse of ``from_pull``. ``exact``: the texts of values that the
        file column can't hold, null elsewhere."""
        kind = self.column.kind
        if kind is Kind.TIME:
            return values.view(pa.time64("us"))
        if exact is not None and exact.null_count == len(exact):
            exact = None
        if kind is Kind.TIMESTAMP and exact is not None:
            return pc.coalesce(exact, values.view(pa.int64()).cast(pa.string()))
        if self._digits is not None:
            texts = decimal_texts(values)
            return texts if exact is None else pc.coalesce(exact, texts)
        return values

    def pulled_cells(self, values: pa.Array) -> list[Cell]:
        """The cells of a column as a Pull carries it.

        Raises:
            ValueError: the values are not of the type that carries the column.
        """
        return to_cells(self.column, values, self._read)


def _as_printed(precision: int, scale: int) -> str:
    """A regular expression for numbers as Postgres prints those of a declared precision and scale."""
    whole = precision - scale
    return "^-?" + (f"[0-9]{{1,{whole}}}" if whole else "0") + (f"\\.[0-9]{{{scale}}}" if scale else "") + "$"


def file_codecs(columns: Iterable[Column]) -> list[FileCodec]:
    """One codec a column."""
    return [FileCodec(column) for column in columns]


def decimal_texts(values: pa.Array) -> pa.Array:
    """Decimals as Postgres prints a numeric of their scale."""
    texts = values.cast(pa.string())
    # Arrow writes small numbers with an exponent, such as 1E-8.
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    digits = pa.Array.from_buffers(
        pa.decimal128(_MOST_DIGITS, 0), len(values), values.buffers(), values.null_count, values.offset
    ).cast(pa.string())
    scale = values.type.scale
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    before = pc.utf8_slice_codeunits(padded, 0, -scale)
    after = pc.utf8_slice_codeunits(padded, -scale)
    return pc.binary_join_element_wise(sign, before, ".", after, "")


def _plain(number: Decimal) -> str:
    return format(number, "f")
