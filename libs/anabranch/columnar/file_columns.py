"""Which column of a Parquet file holds which column of a table.

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

A value that its type can't hold (NaN in a numeric(p, s), a timestamp after the year 294246) is NULL in the column, and
its exact text is in the map ``anabranch.exact``, under the file column's name.

A file column has the name of the table's column. A column that comes back with another type gets a new one, named
``name (2)``, so that no reader meets two types under one name; and so does a column named ``anabranch``, which is the
name of our own struct. Names are told apart without regard to case, as most readers do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from anabranch.columnar.arrow_types import has_zone
from anabranch.schema import Column, Kind, Table

OWN = "anabranch"
"""The struct of ours in every file."""
_MOST_DIGITS = 38
_DECLARED = re.compile(r"numeric\((\d+),(\d+)\)")
_TYPES: dict[Kind, pa.DataType] = {
    Kind.BOOL: pa.bool_(),
    Kind.INT64: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.BYTES: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.int64(),
}


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
    return _TYPES.get(column.kind, pa.string())


def may_need_text(column: Column) -> bool:
    """Whether the column may hold values that its file column can't."""
    return column.kind is Kind.TIMESTAMP or (column.kind is Kind.DECIMAL and declared_digits(column) is not None)


@dataclass(frozen=True)
class FileColumn:
    """``file_name``: the name in files. ``column``: the table's column as it was when a file was last written."""

    file_name: str
    column: Column

    @cached_property
    def type(self) -> pa.DataType:
        """Its type in files."""
        return file_type(self.column)


@dataclass(frozen=True)
class FileTable:
    """A table and the file columns of its columns, in the table's order; ``gone`` are those of columns that it no
    longer has."""

    table: Table
    columns: tuple[FileColumn, ...]
    gone: tuple[FileColumn, ...] = ()

    @property
    def ever(self) -> tuple[FileColumn, ...]:
        """All that a file may have."""
        return self.columns + self.gone


def file_table(table: Table, before: Sequence[FileColumn] = ()) -> FileTable:
    """The file columns of ``table``, going on from those that its files had ``before``."""
    taken = {OWN, *(c.file_name.casefold() for c in before)}
    columns: list[FileColumn] = []
    for column in table.columns:
        known = [c for c in before if _same(c.column, column)]
        if known:
            columns.append(FileColumn(known[-1].file_name, column))
            continue
        name = _free(column.name, taken)
        taken.add(name.casefold())
        columns.append(FileColumn(name, column))
    kept = {c.file_name for c in columns}
    return FileTable(table, tuple(columns), tuple(c for c in before if c.file_name not in kept))


def _same(old: Column, new: Column) -> bool:
    return (old.name, old.kind, old.element_kind, file_type(old)) == (
        new.name,
        new.kind,
        new.element_kind,
        file_type(new),
    )


def _free(name: str, taken: Iterable[str]) -> str:
    number, candidate = 2, name
    while candidate.casefold() in taken:
        candidate = f"{name} ({number})"
        number += 1
    return candidate
