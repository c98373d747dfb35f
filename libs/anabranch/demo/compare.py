"""One full comparison of a tablet's file with Postgres, row by row and column by column, by nothing but SQL on both
sides: it shares no code with the table sums that it checks, nor with what decides who sees which rows.

All rows of the file are compared: one that its tablet may not see has none to stand beside it on the server. Where the
columns of a table are not those that Postgres's catalog has now, all its rows differ.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from anabranch.demo.airports import RESTRICTED
from anabranch.store.catalog.databases import Database
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import Session
from anabranch.values import Column, Kind, Table

_Row: TypeAlias = tuple[Any, ...]

_COLUMNS = """
select a.attname from pg_attribute a where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
"""
# How Postgres writes a value in the form in which SQLite holds it.
_EXPRESSIONS = {
    Kind.BOOL: "{0}::int",
    Kind.DECIMAL: "{0}::text",
    Kind.DATE: "{0} - date '1970-01-01'",
    Kind.TIMESTAMP: "(extract(epoch from {0}) * 1000000)::bigint",
}


def _expression(column: Column) -> str:
    return _EXPRESSIONS.get(column.kind, "{0}").format(quote(column.sql_name))


def _order(table: Table) -> str:
    text = 'collate "C"'
    return ", ".join(
        f"{quote(key)} {text if table.by_sql_name[key].kind is Kind.STRING else ''}"
        for key in table.in_sql(table.key_columns)
    )


def _server_rows(conn: Session, schema: str, table: Table, airport: str | None) -> Iterator[_Row]:
    columns = ", ".join(_expression(column) for column in table.columns)
    which = "" if airport is None else "where origin = %s"
    query = f"select {columns} from {quote(schema)}.{quote(table.sql_name)} {which} order by {_order(table)}"
    with conn.transaction(), conn.cursor(name="demo_compare", binary=True) as cursor:
        cursor.itersize = 20_000
        cursor.execute(query.encode(), None if airport is None else (airport,))
        yield from cursor


def _pairs(
    here: Iterator[_Row], there: Iterator[_Row], key: Callable[[_Row], _Row]
) -> Iterator[tuple[_Row | None, _Row | None]]:
    """Rows of one key side by side, None where a side has none; both come in the order of their keys."""
    ours, theirs = next(here, None), next(there, None)
    while ours is not None or theirs is not None:
        first = min(key(row) for row in (ours, theirs) if row is not None)
        mine = ours if ours is not None and key(ours) == first else None
        its = theirs if theirs is not None and key(theirs) == first else None
        yield mine, its
        ours = ours if mine is None else next(here, None)
        theirs = theirs if its is None else next(there, None)


def _same_columns(conn: Session, schema: str, table: Table, device: sqlite3.Connection) -> bool:
    """Whether Postgres, the file and what is synced have the same columns."""
    there = {name for (name,) in conn.execute(_COLUMNS, (f"{quote(schema)}.{quote(table.sql_name)}",))}
    here = {name for (name,) in device.execute("select name from pragma_table_info(?)", (table.sql_name,))}
    return here == there == {column.sql_name for column in table.columns}


def differing_rows(conn: Session, schema: str, table: Table, file: Path, airport: str | None = None) -> tuple[int, int]:
    """The number of rows compared, and of those that differ or exist on one side only. ``airport``: the file should
    have the rows of this ``origin``; all rows of the table where it is left out."""
    columns = ", ".join(quote(column.sql_name) for column in table.columns)
    keys = ", ".join(quote(key) for key in table.in_sql(table.key_columns))
    index = table.key_index
    compared = differing = 0
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as device:
        if not _same_columns(conn, schema, table, device):
            rows = sum(1 for _ in _server_rows(conn, schema, table, airport))
            return rows, max(rows, 1)
        here = device.execute(f"select {columns} from {quote(table.sql_name)} order by {keys}")
        there = _server_rows(conn, schema, table, airport)
        for ours, theirs in _pairs(here, there, lambda row: tuple(row[i] for i in index)):
            compared += 1
            differing += ours != theirs
    return compared, differing


def whole(conn: Session, database: Database, file: Path, airport: str) -> tuple[int, int]:
    """Those numbers over all tables, for the tablet of an airport."""
    compared = differing = 0
    for name, table in database.tables.items():
        only = airport if name in RESTRICTED else None
        rows, wrong = differing_rows(conn, database.schema_name, table, file, only)
        compared += rows
        differing += wrong
    return compared, differing
