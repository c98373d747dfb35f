"""The columns of Parquet files for the columns of a table; the form of their values: ``anabranch.values.parquet``.

A file column has the name of the table's column. A column that comes back with another type gets a new file column,
named ``name (2)``, so that no reader meets two types under one name; and so does a column named ``anabranch``, which is
the name of our own struct. Names that differ only in case count as equal, as for most readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from anabranch.values import Column, Table
from anabranch.values.parquet import file_type, may_need_text

OWN = "anabranch"
"""The name of our own struct in every file."""
CHANGES, CONFLICTS, BASE = "changes", "conflicts", "base"
"""The folders of a table's files: each has rows of one kind."""
KINDS = {1: "insert", 2: "update", 3: "delete", 4: "none"}
"""Numbers of ``anabranch.v1.EffectType`` to what files say."""
CONFLICT_FIELDS = (
    "position",
    "batch",
    "ordinal",
    "key",
    "column",
    "losing_batch",
    "losing_node",
    "winning_batch",
    "winning_node",
)
"""The fields of a conflict beside its value."""
EXACT_TEXTS = pa.map_(pa.string(), pa.string())
"""The type of the exact texts of what columns can't hold, by the names of file columns."""


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
        """All columns that a file may have."""
        return self.columns + self.gone

    @cached_property
    def names(self) -> list[str]:
        """Names in files, in the table's order."""
        return [column.file_name for column in self.columns]

    @cached_property
    def with_text(self) -> list[int]:
        """Places of the columns that may need exact texts."""
        return [i for i, one in enumerate(self.columns) if may_need_text(one.column)]


def file_table(table: Table, before: Sequence[FileColumn] = ()) -> FileTable:
    """The file columns of ``table``, continued from the columns that its files had ``before``."""
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
