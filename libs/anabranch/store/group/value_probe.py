"""Find the column of a refused row that holds the value which Postgres refuses, where its error names none.

Errors about values as such (class 22: a label that an enum lacks, a number out of range, a text that is too long) name
neither table nor column, and their text may hold any data that a function of the application has read. So each of the
sent values is tried again alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

import psycopg

from anabranch.store.group.rows_statements import sent_as
from anabranch.store.group.waves import wave
from anabranch.store.session.binary import Connection, run
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.kinds import TEXT_KINDS

_INTEGERS = {"smallint": 16, "integer": 32}
_LENGTH = re.compile(r"(?:character varying|character)\((\d+)\)")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_AS_TEXT = TEXT_KINDS | {Kind.ARRAY}
_TOO_LONG, _OUT_OF_RANGE = "22001", "22003"


def refused_column(
    conn: Connection, schema_name: str, table: Table, values: Mapping[str, Cell], sqlstate: str
) -> str | None:
    """The first column in the table's order whose value alone is refused with ``sqlstate``; None where none is. The
    session goes on as it was.

    Raises:
        psycopg.Error: the session is lost.
    """
    for column in table.columns:
        cell = values.get(column.name)
        if cell is None or column.generated:
            continue
        if sqlstate in (_TOO_LONG, _OUT_OF_RANGE) and _exceeds(column, cell):
            return column.name
        if column.kind in _AS_TEXT and _refused_with(conn, schema_name, column, cell) == sqlstate:
            return column.name
    return None


def _exceeds(column: Column, cell: Cell) -> bool:
    """Whether a value is beyond what a built-in type's modifier or width allows."""
    bits = _INTEGERS.get(column.postgres_type)
    if bits is not None and isinstance(cell, int):
        return not -(2 ** (bits - 1)) <= cell < 2 ** (bits - 1)
    if not isinstance(cell, str):
        return False
    if found := _LENGTH.fullmatch(column.postgres_type):
        return len(cell.rstrip(" ")) > int(found[1])
    if found := _NUMERIC.fullmatch(column.postgres_type):
        return _beyond(cell, int(found[1]), int(found[2]))
    return False


def _beyond(cell: str, precision: int, scale: int) -> bool:
    try:
        number = Decimal(cell)
    except InvalidOperation:
        return False
    if number.is_nan():
        return False
    # Rounding may carry into one digit more; then it is refused, too.
    limit = Decimal((0, (1,), precision - scale))
    return number.is_infinite() or abs(number) + Decimal((0, (5,), -scale - 1)) >= limit


def _refused_with(conn: Connection, schema_name: str, column: Column, cell: Cell) -> str:
    """The SQLSTATE with which the type's input refuses a value; "" where it takes it."""
    [sent] = sent_as([column], [[cell]], "c")
    statement = f"select {sent.expression} from unnest($1::{sent.sender.array_type}) as v (c1)".encode()
    try:
        with wave(conn, schema_name, lambda: run(conn, statement, [sent.sender.build([cell])])):
            pass
    except psycopg.Error as error:
        if conn.closed:
            raise
        return error.sqlstate or ""
    return ""
