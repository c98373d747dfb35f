"""A table as columns of rows and of files.

While rows are worked on, their columns have the names of ``anabranch.columnar.encode``: ``c0``, … are the cells and
``x0``, … exact texts. In files they have the names of ``anabranch.columnar.file_columns``, and all that is ours stands
in one struct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from anabranch.columnar.file_columns import (
    BASE,
    CAUSE,
    CHANGES,
    CONFLICT_FIELDS,
    CONFLICTS,
    EXACT_TEXTS,
    OWN,
    FileTable,
)
from anabranch.values import Table

OLD, INSERT, UPDATE, DELETE, NONE = range(5)
"""OLD is no effect of the log: it marks the row as it was before the run."""


def quoted(name: str) -> str:
    """A column's name in an expression of Spark's."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Shape:
    """One table's columns, as they are at the end of a run's stretch, which begins after ``since``."""

    file_table: FileTable
    since: int = 0

    @cached_property
    def history(self) -> Shape:
        """The columns of the table's changes in the stretch: those that were dropped in it come behind the others."""
        found = self.file_table.with_former(max(0, self.since))
        return self if found is self.file_table else Shape(found, self.since)

    @property
    def table(self) -> Table:
        """The table."""
        return self.file_table.table

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.file_table.columns)

    @property
    def names(self) -> list[str]:
        """Names in files, in the table's order."""
        return self.file_table.names

    @property
    def with_text(self) -> list[int]:
        """Places of the columns that may need exact texts."""
        return self.file_table.with_text

    @cached_property
    def keys(self) -> list[str]:
        """The columns that identify a row: the key's cells, and their exact texts."""
        index = self.table.key_index
        return [f"c{i}" for i in index] + [f"x{i}" for i in index if i in self.with_text]

    @cached_property
    def key_columns(self) -> list[str]:
        """The key's cells, in the key's order."""
        return [f"c{i}" for i in self.table.key_index]

    @cached_property
    def sorting(self) -> list[str]:
        """The columns by which rows are sorted in files: the key's cells, then their exact texts."""
        return [*self.key_columns, *(name for name in self.keys if name not in self.key_columns)]

    @cached_property
    def rest(self) -> list[int]:
        """Places of the columns that are not the key's."""
        return [i for i in range(self.width) if i not in self.table.key_index]

    @cached_property
    def changes_schema(self) -> pa.Schema:
        """A row of ``changes/`` as Arrow has it."""
        ours = [
            ("position", pa.int64()),
            ("batch", pa.string()),
            ("ordinal", pa.int32()),
            ("node", pa.string()),
            ("type", pa.string()),
            ("changed", pa.list_(pa.string())),
            ("complete", pa.bool_()),
            ("exact", EXACT_TEXTS),
            ("exact_before", EXACT_TEXTS),
        ]
        if self.rest:
            columns = [self.file_table.columns[i] for i in self.rest]
            ours.append(("before", pa.struct([pa.field(c.file_name, c.type) for c in columns])))
        return self._schema(ours)

    @cached_property
    def base_schema(self) -> pa.Schema:
        """A row of ``base/`` as Arrow has it."""
        return self._schema([("position", pa.int64()), ("deleted", pa.bool_()), ("exact", EXACT_TEXTS)])

    @cached_property
    def conflicts_schema(self) -> pa.Schema:
        """A row of ``conflicts/`` as Arrow has it."""
        numbers = {"position": pa.int64(), "ordinal": pa.int32()}
        ours = [(name, numbers.get(name, pa.string())) for name in CONFLICT_FIELDS]
        return self._schema([*ours, (CAUSE, pa.int32()), ("untyped", pa.binary()), ("exact", EXACT_TEXTS)])

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """Those of the three folders, by their names."""
        return {CHANGES: self.changes_schema, CONFLICTS: self.conflicts_schema, BASE: self.base_schema}

    def _schema(self, ours: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
        columns = [pa.field(c.file_name, c.type) for c in self.file_table.columns]
        return pa.schema([*columns, pa.field(OWN, pa.struct([pa.field(name, kind) for name, kind in ours]))])
