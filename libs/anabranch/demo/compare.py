"""One full comparison of a tablet's file with Postgres, row by row and column by column, by nothing but SQL on both
sides: it shares no code with the table sums that it checks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from anabranch.schema import Column, Kind, Table

# How Postgres writes a value in the form in which SQLite holds it.
_EXPRESSIONS: dict[Kind, LiteralString] = {
    Kind.BOOL: "{0}::int",
    Kind.DECIMAL: "{0}::text",
    Kind.DATE: "{0} - date '1970-01-01'",
    Kind.TIMESTAMP: "(extract(epoch from {0}) * 1000000)::bigint",
}
_PLAIN: LiteralString = "{0}"


def _expression(column: Column) -> sql.Composed:
    return sql.SQL(_EXPRESSIONS.get(column.kind, _PLAIN)).format(sql.Identifier(column.name))


def _order(table: Table) -> sql.Composed:
    parts = [
        sql.SQL('{} collate "C"' if table.by_name[key].kind is Kind.STRING else "{}").format(sql.Identifier(key))
        for key in table.key_columns
    ]
    return sql.SQL(", ").join(parts)


def _server_rows(conn: psycopg.Connection[Any], schema: str, table: Table) -> Iterator[tuple[Any, ...]]:
    query = sql.SQL("select {} from {} order by {}").format(
        sql.SQL(", ").join(_expression(column) for column in table.columns),
        sql.Identifier(schema, table.name),
        _order(table),
    )
    with conn.transaction(), conn.cursor(name="demo_compare", binary=True) as cursor:
        cursor.itersize = 20_000
        cursor.execute(query)
        yield from cursor


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def differing_rows(conn: psycopg.Connection[Any], schema: str, table: Table, file: Path) -> tuple[int, int]:
    """Rows compared, and how many of them differ or stand on one side only."""
    columns = ", ".join(_quoted(column.name) for column in table.columns)
    keys = ", ".join(_quoted(key) for key in table.key_columns)
    device = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    compared = differing = 0
    try:
        here = device.execute(f"select {columns} from {_quoted(table.name)} order by {keys}")
        for ours, theirs in zip_longest(here, _server_rows(conn, schema, table)):
            compared += 1
            differing += ours != theirs
    finally:
        device.close()
    return compared, differing
