"""The columns of Parquet files for the columns of a table; the form of their values: ``anabranch.values.parquet``.

A file column has the name of the table's column, which is its identity: a rename changes no file. A column whose type
in files becomes another one (a numeric(10,2) that becomes a numeric(12,2), or a column of that name in another
registration) gets a new file column, named ``name (2)``, so that no reader meets two types under one name; and so does
a column named ``anabranch``, which is the name of our own struct. Names that differ only in case count as equal, as for
most readers.

A file has the columns that its table had when it was written. Of a column that it lacks, its rows have the initial
value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
CAUSE = "cause"
"""Why a value lost where it did not lose to another one: the number of an ``anabranch.v1.LossCause``, else NULL. Files
of earlier releases lack it."""
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
    longer has, and those that columns had before their type became another one, the newer ones first."""

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
    def places(self) -> list[tuple[FileColumn, ...]]:
        """By place, the file columns that a file may have the column in: the newest first."""
        return [(one, *(old for old in self.gone if _is_of(old.column, one.column))) for one in self.columns]

    def sources(self, of: Iterable[int] | None = None) -> list[str]:
        """The names of all file columns that columns (None: all) may be found in."""
        chosen = range(len(self.columns)) if of is None else of
        return [one.file_name for i in chosen for one in self.places[i]]

    def with_former(self, since: int = 0) -> FileTable:
        """The table as its changes after ``since`` know it: with the columns behind its own that were dropped after
        ``since``. They are in its ``table.former``, with their positions."""
        former = [one.column for one in self.table.former if one.dropped_position > since]
        if not former:
            return self
        there = [next(c for c in self.gone if _same(c.column, column)) for column in former]
        columns = (*self.columns, *(replace(c, column=column) for c, column in zip(there, former, strict=True)))
        table = replace(self.table, columns=tuple(c.column for c in columns))
        return FileTable(table, columns, tuple(c for c in self.gone if c not in there))

    @cached_property
    def ends(self) -> dict[int, int]:
        """By place, the positions from which on columns are dropped, of those columns that are (``with_former``)."""
        index = self.table.index
        return {index[one.column.name]: one.dropped_position for one in self.table.former if one.column.name in index}

    @cached_property
    def with_text(self) -> list[int]:
        """Places of the columns that may need exact texts."""
        return [i for i, one in enumerate(self.columns) if may_need_text(one.column)]


def file_table(table: Table, before: Sequence[FileColumn] = ()) -> FileTable:
    """The file columns of ``table``, and of the columns that it had, continued from the columns that its files had
    ``before``."""
    taken = {OWN, *(c.file_name.casefold() for c in before)}

    def file_column(column: Column) -> FileColumn:
        known = [c for c in before if _same(c.column, column)]
        if known:
            return FileColumn(known[-1].file_name, column)
        name = _free(column.name, taken)
        taken.add(name.casefold())
        return FileColumn(name, column)

    columns = tuple(map(file_column, table.columns))
    kept = {c.file_name for c in columns}
    former = tuple(c for c in (file_column(one.column) for one in table.former) if c.file_name not in kept)
    kept |= {c.file_name for c in former}
    return FileTable(table, columns, (*former, *(c for c in before if c.file_name not in kept)))


def _is_of(old: Column, new: Column) -> bool:
    return (old.name, old.kind, old.element_kind) == (new.name, new.kind, new.element_kind)


def _same(old: Column, new: Column) -> bool:
    return _is_of(old, new) and file_type(old) == file_type(new)


def _free(name: str, taken: Iterable[str]) -> str:
    number, candidate = 2, name
    while candidate.casefold() in taken:
        candidate = f"{name} ({number})"
        number += 1
    return candidate
