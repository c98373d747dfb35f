"""A device's rows against Postgres', value by value, by SQL on both sides: no code is shared with the table sums or
with the client's own conversions."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from typing import Any

from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import Session
from anabranch.values import Column, Kind, Table

MOST_TOLD = 10
"""The most differences that are named."""

_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1

# SQL with which Postgres gives a value in the form in which SQLite holds it.
_EXPRESSIONS = {
    Kind.BOOL: "{0}::int",
    Kind.INT64: "{0}::bigint",
    Kind.DOUBLE: "{0}::float8",
    Kind.BYTES: "{0}",
    Kind.DATE: f"case {{0}} when 'infinity' then {_INT32_MAX} when '-infinity' then {-_INT32_MAX - 1}"
    " else {0} - date '1970-01-01' end",
    Kind.TIMESTAMP: f"case {{0}} when 'infinity' then {_INT64_MAX} when '-infinity' then {-_INT64_MAX - 1}"
    " else (extract(epoch from {0}) * 1000000)::bigint end",
    Kind.TIME: "(extract(epoch from {0}) * 1000000)::bigint",
    Kind.ARRAY: "array_to_json({0}::text[])::text",
}
_ARRAYS_AS_TEXT = frozenset({Kind.STRING, Kind.INT64, Kind.DECIMAL, Kind.UUID})


def _expression(column: Column) -> str:
    if column.kind is Kind.ARRAY and column.element_kind not in _ARRAYS_AS_TEXT:
        raise ValueError(f"arrays like that of {column.sql_name} can't be compared here")
    return _EXPRESSIONS.get(column.kind, "{0}::text").format(quote(column.sql_name))


def _texts(value: Any) -> Any:
    """An array's elements as text, as Postgres prints them."""
    if isinstance(value, list):
        return [_texts(element) for element in value]
    return value if value is None or isinstance(value, str) else str(value)


def _comparable(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.kind is Kind.DOUBLE:
        number = math.nan if value == "NaN" else float(value)
        return "NaN" if math.isnan(number) else struct.pack(">d", number)
    if column.kind is Kind.ARRAY:
        return json.dumps(_texts(json.loads(value)), ensure_ascii=False)
    return bytes(value) if column.kind is Kind.BYTES else value


def _keyed(table: Table, rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    columns = table.columns
    places = [table.column_names.index(name) for name in table.key_columns]
    found = [tuple(_comparable(c, v) for c, v in zip(columns, row, strict=True)) for row in rows]
    return {tuple(row[place] for place in places): row for row in found}


def server_rows(conn: Session, schema: str, table: Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """All rows by key, in the comparable form."""
    columns = ", ".join(_expression(column) for column in table.columns)
    cursor = conn.execute(f"select {columns} from {quote(schema)}.{quote(table.sql_name)}".encode())
    return _keyed(table, cursor.fetchall())


def device_rows(conn: sqlite3.Connection, table: Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """All shown rows by key, in the comparable form."""
    columns = ", ".join(quote(column.sql_name) for column in table.columns)
    return _keyed(table, conn.execute(f"SELECT {columns} FROM {quote(table.sql_name)}").fetchall())


def differences(conn: Session, schema: str, table: Table, device: sqlite3.Connection) -> list[str]:
    """The first differences between the rows of a table here and there, in words; none where they are equal."""
    there, here = server_rows(conn, schema, table), device_rows(device, table)
    told = [
        f"{table.sql_name} {key}: server {there.get(key)}, device {here.get(key)}"
        for key in sorted(there.keys() | here.keys(), key=repr)
        if there.get(key) != here.get(key)
    ]
    return told[:MOST_TOLD]
