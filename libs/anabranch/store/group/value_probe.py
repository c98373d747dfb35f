"""Find the column of a refused row that holds the value which Postgres refuses, where its error names none.

Errors about values as such (class 22: a label that an enum lacks, a number out of range, a text that is too long) name
neither table nor column, and their text may hold any data that a function of the application has read. So each of the
sent values is tried again alone. Keys are tried in the same way (``refusal``): one that is no value of its column's
type fails the look-up of all rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation

import psycopg

from anabranch.store.cells.binary_cells import carried_type, is_built_in
from anabranch.store.group.rows_statements import sent_as
from anabranch.store.group.waves import wave
from anabranch.store.session.binary import Connection, run
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.calendar import DAY_US, END_US, FIRST_DAY, FIRST_US, LAST_DAY
from anabranch.values.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
)
from anabranch.values.kinds import TEXT_KINDS
from anabranch.values.postgres_binary import text

_INTEGERS = {"smallint": 16, "integer": 32}
_LENGTH = re.compile(r"(?:character varying|character)\((\d+)\)")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_JUDGED_AS_SENT = TEXT_KINDS | {Kind.ARRAY, Kind.DATE, Kind.TIME, Kind.TIMESTAMP}
"""Kinds of which Postgres refuses some values before it looks at the table."""
_RANGES: Mapping[Kind, tuple[int, int, tuple[int, ...]]] = {
    Kind.DATE: (FIRST_DAY, LAST_DAY + 1, (DATE_MINUS_INFINITY, DATE_INFINITY)),
    Kind.TIME: (0, DAY_US + 1, ()),
    Kind.TIMESTAMP: (FIRST_US, END_US, (TIMESTAMP_MINUS_INFINITY, TIMESTAMP_INFINITY)),
}
"""The first cell of a kind, the end of its cells, and further ones."""
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
        if column.kind in _JUDGED_AS_SENT:
            error = refusal(conn, schema_name, column, [cell])
            if error is not None and error.sqlstate == sqlstate:
                return column.name
    return None


def refusal(conn: Connection, schema_name: str, column: Column, cells: Sequence[Cell]) -> psycopg.Error | None:
    """The error with which Postgres refuses one of these values as a value of the column's type, before it looks at any
    table; None where it takes them all. The session goes on as it was.

    Raises:
        psycopg.Error: the session is lost.
    """
    [sent] = sent_as([column], [cells], "c")
    statement = f"select count({sent.expression}) from unnest($1::{sent.sender.array_type}) as v (c1)".encode()
    try:
        with wave(conn, schema_name, lambda: run(conn, statement, [sent.sender.build(cells)])):
            pass
    except psycopg.Error as error:
        if conn.closed:
            raise
        return error
    return None


LABELS = b"select enumlabel::text from pg_catalog.pg_enum where enumtypid = $1::text::regtype"


def out_of_range(conn: Connection, column: Column, cells: Sequence[Cell]) -> set[Cell]:
    """Those of the values that are surely none of the column's type: labels that an enumeration lacks, days, times and
    moments that there are not."""
    first, end, kept = _RANGES.get(column.kind, (0, 0, ()))
    if end:
        return {cell for cell in cells if not (isinstance(cell, int) and (first <= cell < end or cell in kept))}
    carried = carried_type(column)
    if column.kind is Kind.STRING and not is_built_in(carried):
        return set(cells) - {label for (label,) in run(conn, LABELS, [text(carried)]).fetchall()}
    return set()


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
