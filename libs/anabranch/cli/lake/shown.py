"""Rows and changes of the lake, as JSON and in a grid; values as Postgres prints them, columns by their names in SQL at
that moment. An unknown value is left out of JSON, and is a question mark in a grid."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table as Grid

from anabranch.cli.lake.positions import moment_of
from anabranch.cli.lines import cell
from anabranch.columnar.row_states import Change, Key, Row
from anabranch.store.nodes.names import Who
from anabranch.values import Cell, Table
from anabranch.values.postgres_text import cell_text

UNKNOWN = "?"
_NOBODY = Who("", "")


def row_json(table: Table, row: Row) -> dict[str, str | None]:
    """A row's known columns, in the table's order."""
    return {c.sql_name: cell_text(c, row[c.name]) for c in table.columns if c.name in row}


def change_json(table: Table, change: Change, names: Mapping[str, Who]) -> dict[str, object]:
    """A change as JSON; ``complete``: whether all values that it gives of its row are known."""
    who = names.get(change.node_id, _NOBODY)
    return {
        "position": change.position,
        "time": moment_of(change.position),
        "batch": change.batch_id,
        "ordinal": change.ordinal,
        "node": change.node_id,
        "node_name": who.name or None,
        "principal": who.principal or None,
        "type": change.type,
        "changed": [_called(table, name) for name in change.changed],
        "row": None if change.row is None else row_json(table, change.row),
        "before": row_json(table, change.before),
        "complete": change.complete,
    }


def add_change(grid: Grid, table: Table, change: Change, names: Mapping[str, Who]) -> None:
    """Add a line for each column that a change is about."""
    who = names.get(change.node_id, _NOBODY)
    columns = _columns_shown(table, change)
    for at, name in enumerate(columns or [""]):
        first = at == 0
        head = (moment_of(change.position), who.name or change.node_id, who.principal, change.type) if first else _HEAD
        # An insert has no row before it, and a delete has no row after it.
        before = _shown(table, change.before, name) if name and change.type in ("update", "delete") else ""
        after = _shown(table, change.row, name) if name and change.row is not None else ""
        end = (change.batch_id, str(change.position)) if first else ("", "")
        grid.add_row(*map(cell, (*head, _called(table, name), before, after, *end)))


_HEAD = ("",) * 4


def _columns_shown(table: Table, change: Change) -> list[str]:
    rest = [name for name in table.column_names if name not in table.key_columns]
    return {"update": list(change.changed), "delete": rest, "insert": list(table.column_names)}.get(change.type, [])


def _called(table: Table, name: str) -> str:
    return table.by_name[name].sql_name if name in table.by_name else name


def _shown(table: Table, row: Row | None, name: str) -> str:
    if row is None or name not in row:
        return UNKNOWN
    text = cell_text(table.by_name[name], row[name])
    return "NULL" if text is None else text


def add_row(grid: Grid, table: Table, row: Row) -> None:
    """Add a row."""
    grid.add_row(*(cell(_shown(table, row, name)) for name in table.column_names))


def key_order(key: Key) -> tuple[tuple[str, Cell], ...]:
    """The value by which a key is sorted; moments beyond 64 bits are texts among numbers."""
    return tuple(("text" if isinstance(cell, str) else type(cell).__name__, cell) for cell in key)
