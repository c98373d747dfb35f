"""Compare a table's rows with what the log says of them.

The log has the whole row where it has the row's insert, and else the columns that were updated since the table was
registered, or since the log was cut: of those alone it can be said that they were changed behind its back. Of rows that
it never had it knows nothing; a device's file may (``verify --device``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from anabranch.store.catalog.adoption import Contradiction
from anabranch.store.catalog.databases import Database
from anabranch.store.group.rows import TableSql
from anabranch.store.log.rows import effects_by_row
from anabranch.store.session.engine import Session
from anabranch.v1 import change_pb2
from anabranch.values import Cell, Table, key_cells
from anabranch.values.canonical import value_encoder
from anabranch.values.messages import column_reader

Row = list[Cell]


class _Known(NamedTuple):
    """The result of a row's effects: whether the row exists, and the cells that are known, by their place."""

    there: bool
    cells: dict[int, Cell]


def contradictions(
    conn: Session, database: Database, table: Table, before: dict[str, Row | None]
) -> Iterator[Contradiction]:
    """The rows for which log and table differ, in the order of their keys. ``before``: rows that count as they were
    before their undrained changes. Must be read inside a transaction of one snapshot, or one that locks the table."""
    sql, fold = TableSql(database.schema_name, table), _folder(table)
    same = RowComparison(table)
    for chunk in effects_by_row(conn, database.id, table.id):
        stored: dict[str, Row | None] = dict(sql.read(conn, [key_cells(table, key) for key, _ in chunk])())
        stored.update((key, before[key]) for key, _ in chunk if key in before)
        for key, effects in chunk:
            known = fold(effects)
            if known is None:
                continue
            row = stored.get(key)
            if row is None and not known.there:
                continue
            if row is not None and known.there and same(row, known.cells):
                continue
            logged: Row | None = None
            if known.there:
                logged = [None for _ in table.columns] if row is None else list(row)
                for place, cell in known.cells.items():
                    logged[place] = cell
            yield Contradiction(key, logged, row)


def _folder(table: Table) -> Callable[[Sequence[bytes]], _Known | None]:
    readers = {column.name: (table.index[column.name], column_reader(column)) for column in table.columns}

    def fold(effects: Sequence[bytes]) -> _Known | None:
        """None where the effects say nothing about the row."""
        known: _Known | None = None
        for data in effects:
            effect = change_pb2.Effect.FromString(data)
            if effect.type == change_pb2.EFFECT_TYPE_NONE:
                continue
            if effect.type == change_pb2.EFFECT_TYPE_DELETE:
                known = _Known(False, {})
                continue
            given = {
                readers[name][0]: readers[name][1](value)
                for name, value in zip(effect.columns, effect.values, strict=True)
                if name in readers
            }
            if known is None or effect.type == change_pb2.EFFECT_TYPE_INSERT:
                known = _Known(True, given)
            else:
                known = _Known(True, {**known.cells, **given})
        return known

    return fold


class RowComparison:
    """Compares cells as the sums do: a NaN equals itself, 0.0 is not -0.0."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._encoders = [value_encoder(column.kind, column.element_kind) for column in table.columns]

    def __call__(self, row: Sequence[Cell], cells: dict[int, Cell]) -> bool:
        return not self.differing(row, cells)

    def differing(self, row: Sequence[Cell], cells: dict[int, Cell]) -> list[int]:
        """The places at which they differ."""
        encoders = self._encoders
        return [i for i, cell in cells.items() if encoders[i](row[i]) != encoders[i](cell)]

    def describe(self, key: str, here: Row | None, there: Row | None, names: tuple[str, str]) -> str:
        """A difference in words. ``names``: the owner of ``here``, and that of ``there``."""
        if here is None or there is None:
            return f"{key}: only {names[1] if here is None else names[0]} has it"
        places = self.differing(here, dict(enumerate(there)))
        told = (
            f"{self._table.columns[i].sql_name} {_show(here[i])} {names[0]}, {_show(there[i])} {names[1]}"
            for i in places
        )
        return f"{key}: " + "; ".join(told)


_MOST_SHOWN = 60


def _show(cell: Cell) -> str:
    text = repr(cell)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"
