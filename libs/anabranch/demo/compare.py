"""One full comparison of a tablet's file with Postgres, row by row and column by column, by nothing but SQL on both
sides: it shares no code with the table sums that it checks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import Session
from anabranch.values import Column, Kind, Table

# How Postgres writes a value in the form in which SQLite holds it.
_EXPRESSIONS = {
    Kind.BOOL: "{0}::int",
    Kind.DECIMAL: "{0}::text",
    Kind.DATE: "{0} - date '1970-01-01'",
    Kind.TIMESTAMP: "(extract(epoch from {0}) * 1000000)::bigint",
}


def _expression(column: Column) -> str:
    return _EXPRESSIONS.get(column.kind, "{0}").format(quote(column.name))


def _order(table: Table) -> str:
    text = 'collate "C"'
    return ", ".join(
        f"{quote(key)} {text if table.by_name[key].kind is Kind.STRING else ''}" for key in table.key_columns
    )


def _server_rows(conn: Session, schema: str, table: Table) -> Iterator[tuple[Any, ...]]:
    columns = ", ".join(_expression(column) for column in table.columns)
    query = f"select {columns} from {quote(schema)}.{quote(table.name)} order by {_order(table)}"
    with conn.transaction(), conn.cursor(name="demo_compare", binary=True) as cursor:
        cursor.itersize = 20_000
        cursor.execute(query.encode())
        yield from cursor


def differing_rows(conn: Session, schema: str, table: Table, file: Path) -> tuple[int, int]:
    """The number of rows compared, and of those that differ or exist on one side only."""
    columns = ", ".join(quote(column.name) for column in table.columns)
    keys = ", ".join(quote(key) for key in table.key_columns)
    device = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    compared = differing = 0
    try:
        here = device.execute(f"select {columns} from {quote(table.name)} order by {keys}")
        for ours, theirs in zip_longest(here, _server_rows(conn, schema, table)):
            compared += 1
            differing += ours != theirs
    finally:
        device.close()
    return compared, differing
