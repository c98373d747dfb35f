"""The columns that a batch names, found in a table as it is today.

A name is an identity, of a column or of a former one. One that is no identity, and never was, may be today's name in
SQL: of a writer that knows no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.errors import ServerError
from anabranch.values import Column, Table
from anabranch.values.table import FormerColumn


class UnknownColumnError(ServerError, ValueError):
    """A batch names a column that its table does not have, or one twice."""


def named_columns(
    table: Table, given: Sequence[str]
) -> tuple[list[Column], list[tuple[FormerColumn, tuple[Column, ...]]]]:
    """The columns that a mutation names, as it knew them, and those of them that are former ones, each with the columns
    that it became, one after the other: none where it is gone. Raises UnknownColumnError."""
    past = {one.column.name: one for one in table.former}
    by_sql_name = {column.sql_name: column for column in table.columns}
    columns: list[Column] = []
    former: list[tuple[FormerColumn, tuple[Column, ...]]] = []
    taken: set[str] = set()
    for name in given:
        column = table.by_name.get(name)
        if column is None and name in past:
            column = past[name].column
            ways = _ways(table, past, past[name])
            former.append((past[name], ways))
        elif column is None:
            column = by_sql_name.get(name)
        if column is None:
            raise UnknownColumnError(f"the table has no column {quoted(name)}")
        columns.append(column)
    for name in [*(column.name for column in columns), *(ways[-1].name for _, ways in former if ways)]:
        if name in taken:
            raise UnknownColumnError(f"column {quoted(name)} is given twice")
        taken.add(name)
    return columns, former


def _ways(table: Table, past: Mapping[str, FormerColumn], former: FormerColumn) -> tuple[Column, ...]:
    ways: list[Column] = []
    while former.successor:
        column = table.by_name.get(former.successor)
        if column is not None:
            return (*ways, column)
        former = past[former.successor]
        ways.append(former.column)
    return ()


def quoted(name: str) -> str:
    """A name as messages show it."""
    return '"' + name[:80] + '"'
