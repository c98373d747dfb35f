"""Cells of values that people write: those that Postgres would store for their texts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import psycopg

from anabranch.store.cells.binary_cells import quote, read_expression, row_loader
from anabranch.store.session import binary
from anabranch.store.session.engine import Session
from anabranch.values import Cell, Column, Kind, Table, key_cells, postgres_binary
from anabranch.values.calendar import cell_timestamp_text, date_text, time_text
from anabranch.values.table import has_zone

_NUMBER = re.compile(r"-?[0-9]+")


def cells_of_texts(conn: Session, columns: Sequence[Column], texts: Sequence[str | None]) -> tuple[Cell, ...]:
    """The cells that Postgres would store for texts, as their columns' types print them. Raises psycopg.Error."""
    selected = ", ".join(f"(${i}::text)::{c.postgres_type} as {quote(c.sql_name)}" for i, c in enumerate(columns, 1))
    read = ", ".join(read_expression(column, "v") for column in columns)
    parameters = [None if t is None else postgres_binary.Parameter(postgres_binary.TEXT, t.encode()) for t in texts]
    cursor = binary.cursor(conn)
    cursor.execute(f"select {read} from (select {selected}) v".encode(), parameters, prepare=False, binary=True)
    return tuple(row_loader(columns)(cursor.fetchall())[0])


def key_of_text(conn: Session, table: Table, text: str) -> tuple[Cell, ...]:
    """The key that a person wrote: a key column's value as Postgres prints it, of several a JSON array. Moments, days
    and times may also be the numbers, and bytes the hexadecimal digits, that stand in the log's key texts.

    Raises:
        ValueError: it is no key of the table.
    """
    columns = [table.by_name[name] for name in table.key_columns]
    parts = [text] if len(columns) == 1 else _parts(text)
    if len(parts) != len(columns):
        raise ValueError(f"it has {len(parts)} values, and the key of {table.sql_name} {len(columns)}")
    cells: list[Cell] = []
    for column, part in zip(columns, parts, strict=True):
        if column.kind is Kind.BYTES and not part.startswith("\\x"):
            cells += key_cells(Table(table.name, (column,), (column.name,)), part)
            continue
        try:
            cells += cells_of_texts(conn, [column], [_printed(column, part)])
        except psycopg.DataError as error:
            raise ValueError(str(error).splitlines()[0]) from error
    return tuple(cells)


def _printed(column: Column, part: str) -> str:
    """A number in a column of moments, days or times as Postgres prints it: some moments are beyond 64 bits, and a cell
    does not hold them as numbers; some numbers stand for no value, and Postgres refuses them."""
    if not _NUMBER.fullmatch(part):
        return part
    if column.kind is Kind.TIMESTAMP:
        return cell_timestamp_text(int(part), zone=has_zone(column))
    if column.kind is Kind.DATE:
        return date_text(int(part))
    return time_text(int(part)) if column.kind is Kind.TIME else part


def _parts(text: str) -> list[str]:
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("the key has several columns: give a JSON array")
    return [part if isinstance(part, str) else json.dumps(part) for part in found]
