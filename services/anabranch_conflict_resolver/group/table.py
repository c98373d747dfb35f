"""A synced table: its statements, encoders and writers, made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.store.audiences.row_audiences import RowAudiences
from anabranch.store.group.rows import TableSql
from anabranch.v1 import value_pb2
from anabranch.values import Cell, Table
from anabranch.values.messages import Writer
from anabranch.wire.effects import EffectBuilder

Sums = dict[int, tuple[int, int]]
"""By table id: number of rows, and the sum of their hashes modulo 2**128."""


@dataclass(frozen=True, slots=True)
class SyncedTable:
    """A synced table and all that is compiled for it. ``rank`` is its place in the order of foreign keys: the table
    that is pointed to has the lower one."""

    table: Table
    rank: int
    sql: TableSql
    effects: EffectBuilder
    writers: Mapping[str, Writer]
    primary_key: str
    names: tuple[str, ...]
    """The columns' names, in the table's order."""
    audiences: RowAudiences | None = None
    """The audiences of its rows; None for an open table."""
    gives_audiences: bool = False
    """Whether a membership query reads it."""
    successors: Mapping[str, str] = field(default_factory=dict)
    """The columns that it had and that were retyped, each with the column that it is by now."""

    def key_values(self, key: Sequence[Cell]) -> list[value_pb2.Value]:
        """A key's cells as Values."""
        return [self.writers[name](cell) for name, cell in zip(self.table.key_columns, key, strict=True)]

    def named_row(self, row: Sequence[Cell]) -> value_pb2.NamedRow:
        """A whole row with its column names."""
        values = [self.writers[name](cell) for name, cell in zip(self.names, row, strict=True)]
        return value_pb2.NamedRow(columns=self.names, values=values)


def successors(table: Table) -> Mapping[str, str]:
    """The columns that a table had and that were retyped, each with the column that it is by now; those that are gone
    are left out."""
    became = {former.column.name: former.successor for former in table.former if former.successor}
    found = {}
    for name in became:
        now = name
        while now in became:
            now = became[now]
        if now in table.by_name:
            found[name] = now
    return found
