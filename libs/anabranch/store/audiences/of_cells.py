"""The audiences of rows that are there as cells, not in a table: Postgres computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from anabranch.store.audiences.expression import Audience
from anabranch.store.cells.binary_cells import CellSender, Row, literal_sender, quote, sender
from anabranch.store.session.binary import Connection, run
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.cells import Literal
from anabranch.values.postgres_binary import int8_array

_MOST_ROWS = 2_000


def audiences_of(conn: Connection, table: Table, audience: Audience, rows: Sequence[Row]) -> list[list[str]]:
    """The audiences of each of the rows, in the rows' order; no table is read. Raises psycopg.DataError where the
    expression fails for a row."""
    found: list[list[str]] = []
    for first in range(0, len(rows), _MOST_ROWS):
        found += _some(conn, table, audience, rows[first : first + _MOST_ROWS])
    return found


def _some(conn: Connection, table: Table, audience: Audience, rows: Sequence[Row]) -> list[list[str]]:
    columns = [table.by_name[name] for name in audience.columns]
    cells = [[row[table.index[column.name]] for row in rows] for column in columns]
    senders = [_sender(column, values) for column, values in zip(columns, cells, strict=True)]
    arrays = ", ".join(f"${place}::{one.array_type}" for place, one in enumerate(senders, 2))
    names = ", ".join(f"c{place}" for place in range(len(columns)))
    values = "".join(
        f", (v.c{place}{one.cast})::{column.postgres_type} as {quote(column.name)}"
        for place, (column, one) in enumerate(zip(columns, senders, strict=True))
    )
    statement = f"""
    select {audience.as_list} from (
        select v."_DB_number"{values}
        from unnest($1::int8[]{", " + arrays if arrays else ""}) as v ("_DB_number"{", " + names if names else ""})
    ) t order by t."_DB_number"
    """
    numbers = int8_array(list(range(len(rows))))
    built = [one.build(values) for one, values in zip(senders, cells, strict=True)]
    return [cast(list[str], found) for (found,) in run(conn, statement.encode(), [numbers, *built])]


def _sender(column: Column, cells: Sequence[Cell]) -> CellSender:
    return literal_sender(column) if column.kind is Kind.TIMESTAMP and Literal in map(type, cells) else sender(column)
