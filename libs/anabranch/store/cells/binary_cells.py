"""How the cells of each column travel: as which array parameter, through which SQL expression, and back.

Sent: numbers, text, bytes, dates and times as binary arrays of the widest type of their kind, which Postgres then
assigns to the column (and refuses what doesn't fit, as for any writer); the rest as text, cast to the type without its
modifier, so that the modifier is applied by assignment, too: an explicit cast would cut silently. So would one to a
domain over a type with a modifier: values are cast to the type below all domains, and a domain's checks run where a row
is written, and nowhere else. An enumeration is sent as an array of that very type in text format, so that its input
function checks the value; other types can't be, since an array of a composite type would fall apart into columns.

Read: types that the binary format carries exactly in that format, the rest as the text that the type's output function
prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from psycopg import sql

from anabranch.values import Cell, Column, Kind, postgres_binary, postgres_text
from anabranch.values.calendar import cell_timestamp_text, timestamp_text
from anabranch.values.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    Literal,
)
from anabranch.values.kinds import TEXT_KINDS, NoFormError
from anabranch.values.postgres_binary import EPOCH_DAYS, EPOCH_US, ArrayBuilder, Parameter
from anabranch.values.table import has_zone

_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_MODIFIER = re.compile(r"\([^()]*\)")
# Without a modifier these names mean a length of one.
_LENGTH_ONE = {"bit": '"bit"', "character": "bpchar"}
_LAST_US = TIMESTAMP_INFINITY - 1 - EPOCH_US
"""The last moment since 2000 that fits into 64 bits since 1970."""


def quote(name: str) -> str:
    """A name as SQL takes it."""
    return sql.Identifier(name).as_string()


def bare_type(postgres_type: str) -> str:
    """A type as ``format_type`` prints it, without its modifiers: ``numeric(5,2)[]`` gives ``numeric[]``."""
    names: list[str] = _QUOTED.findall(postgres_type)
    # The modifier can't be taken for a part of a quoted name once those are out of the way.
    plain = _MODIFIER.sub("", _QUOTED.sub("\0", postgres_type))
    for name in names:
        plain = plain.replace("\0", name, 1)
    base, brackets = plain.removesuffix("[]"), "[]" if plain.endswith("[]") else ""
    return _LENGTH_ONE.get(base, base) + brackets


def carried_type(column: Column) -> str:
    """The type that a column's values are cast to: its type without a modifier, or the type below its domain."""
    return column.base_type or bare_type(column.postgres_type)


def is_built_in(postgres_type: str) -> bool:
    """Whether a type as ``format_type`` prints it is the system's own."""
    return "." not in _QUOTED.sub("", postgres_type)


@dataclass(frozen=True, slots=True)
class CellSender:
    """``array_type`` of the parameter, its builder, and the ``cast`` ("" or ``::type``) of one element."""

    array_type: str
    build: ArrayBuilder
    cast: str = ""


def sender(column: Column) -> CellSender:
    """How the cells of ``column`` are sent. Literals in a TIMESTAMP column are not: see ``literal_sender``."""
    kind, name, carried = column.kind, column.sql_name, carried_type(column)
    match kind:
        case Kind.BOOL:
            return CellSender("bool[]", postgres_binary.bool_array)
        case Kind.INT64:
            return CellSender("int8[]", postgres_binary.int8_array)
        case Kind.DOUBLE:
            return CellSender("float8[]", postgres_binary.float8_array)
        case Kind.BYTES:
            return CellSender("bytea[]", postgres_binary.bytea_array)
        case Kind.DATE:
            return CellSender("date[]", postgres_binary.date_array)
        case Kind.TIME:
            return CellSender("time[]", postgres_binary.time_array)
        case Kind.TIMESTAMP:
            zone = has_zone(column)
            return CellSender(
                "timestamptz[]" if zone else "timestamp[]", partial(postgres_binary.timestamp_array, zone=zone)
            )
        case Kind.ARRAY:
            return CellSender("text[]", _array_builder(column), "::" + carried)
    if kind not in TEXT_KINDS:
        raise NoFormError(kind, __name__)
    if kind is not Kind.LITERAL and not is_built_in(carried):
        return CellSender(carried + "[]", partial(postgres_binary.typed_text_array, column=name))
    cast = "" if kind is Kind.STRING else "::" + carried
    return CellSender("text[]", partial(postgres_binary.text_array, column=name), cast)


def literal_sender(column: Column) -> CellSender:
    """How cells of a TIMESTAMP column are sent where some are Literals."""
    cast = "::timestamptz" if has_zone(column) else "::timestamp"
    show = partial(cell_timestamp_text, zone=has_zone(column))

    def build(cells: Sequence[Cell]) -> Parameter:
        texts = [None if c is None else show(c) for c in cells]  # type: ignore[arg-type]
        return postgres_binary.text_array(texts, column.sql_name)

    return CellSender("text[]", build, cast)


def _array_builder(column: Column) -> ArrayBuilder:
    show = postgres_text.array_printer(column.element_kind or Kind.STRING)

    def build(cells: Sequence[Cell]) -> Parameter:
        return postgres_binary.text_array([None if c is None else show(c) for c in cells], column.sql_name)

    return build


def read_expression(column: Column, relation: str) -> str:
    """The expression that selects ``column`` of ``relation`` (quoted, or an alias) for binary results."""
    reference = f"{relation}.{quote(column.sql_name)}"
    match column.kind:
        case Kind.DECIMAL | Kind.JSON | Kind.UUID:
            return f"{reference}::text"
        case Kind.ARRAY:
            text = array_text(column, reference)
            # As float8 a real's text is exact when read as such.
            return f"{text}::float8[]::text" if column.element_kind is Kind.DOUBLE else f"{text}::text"
        case Kind.LITERAL:
            return output_text(reference)
        case Kind.BOOL | Kind.INT64 | Kind.DOUBLE | Kind.STRING | Kind.BYTES | Kind.TIMESTAMP | Kind.DATE | Kind.TIME:
            return reference
    raise NoFormError(column.kind, __name__)


def array_text(column: Column, reference: str) -> str:
    """The SQL that an array is cast from: itself, or its text where its type is the application's. A cast that the
    type's owner has made would run in a session of the services; one of a domain is ignored by Postgres."""
    return reference if is_built_in(column.postgres_type) else f"({output_text(reference)})"


def output_text(expression: str) -> str:
    """The text that the output function of an expression's type prints; a cast to text may differ (inet, char(n))."""
    return f"case when num_nulls({expression}) = 0 then concat({expression}) end"


Row = list[Cell]


@dataclass(frozen=True, slots=True)
class _Loading:
    """How values become cells: those between ``low`` and ``high`` by adding ``epoch``, others by ``load``."""

    place: int
    load: Callable[[Any], Cell]
    low: int = 0
    high: int = 0
    epoch: int = 0


def _loading(place: int, column: Column) -> _Loading | None:
    """None: the values of ``read_expression`` are cells, as ``binary.run`` gives them."""
    match column.kind:
        case Kind.TIMESTAMP:
            load = partial(_load_odd_timestamp, zone=has_zone(column))
            return _Loading(place, load, TIMESTAMP_MINUS_INFINITY + 1, _LAST_US, EPOCH_US)
        case Kind.DATE:
            # The values outside these bounds are the infinities, which have the same numbers in cells.
            return _Loading(place, int, DATE_MINUS_INFINITY + 1, DATE_INFINITY - 1, EPOCH_DAYS)
        case Kind.ARRAY:
            return _Loading(place, postgres_text.array_parser(column.element_kind or Kind.STRING))
    return None


def _load_odd_timestamp(value: int, *, zone: bool) -> Cell:
    if value in (TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY):
        return value
    return Literal(timestamp_text(value + EPOCH_US, zone=zone))


def row_loader(columns: Sequence[Column]) -> Callable[[Sequence[Sequence[object]]], list[Row]]:
    """A function that turns rows of the ``read_expression`` of ``columns`` (by ``binary.run``) into rows of cells."""
    loadings = [loading for i, column in enumerate(columns) if (loading := _loading(i, column)) is not None]

    def load_rows(rows: Sequence[Sequence[object]]) -> list[Row]:
        loaded: list[list[Any]] = list(map(list, rows))
        for loading in loadings:
            place, load, low, high, epoch = loading.place, loading.load, loading.low, loading.high, loading.epoch
            for row in loaded:
                value = row[place]
                if value is None:
                    continue
                row[place] = value + epoch if epoch and low <= value <= high else load(value)
        return loaded

    return load_rows
