"""Cells as the text that Postgres prints and reads, for values that travel as text: the elements of arrays.

Sessions have DateStyle ISO, TimeZone UTC and bytea_output hex; dates and times are the calendar's
(``anabranch.values.calendar``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from anabranch.values.calendar import (
    cell_timestamp_text,
    date_text,
    parse_date,
    parse_time,
    parse_timestamp,
    time_text,
)
from anabranch.values.cells import Cell, Literal
from anabranch.values.kinds import TEXT_KINDS, ByKind, Kind
from anabranch.values.table import Column


def _double_text(cell: float) -> str:
    return repr(cell) if cell - cell == 0 else "NaN" if cell != cell else "Infinity" if cell > 0 else "-Infinity"


_TEXTS: Mapping[Kind, None] = dict.fromkeys(TEXT_KINDS)
_PRINT: ByKind[Callable[..., str] | None] = ByKind(
    __name__,
    {
        Kind.BOOL: lambda cell: "t" if cell else "f",
        Kind.INT64: str,
        Kind.DOUBLE: _double_text,
        Kind.BYTES: lambda cell: "\\x" + cell.hex(),
        Kind.TIMESTAMP: partial(cell_timestamp_text, zone=True),
        Kind.DATE: date_text,
        Kind.TIME: time_text,
        **_TEXTS,
    },
)
# The first form is in an array's own text, the second in a cast of its elements to text.
_BOOLS = {"t": True, "true": True, "f": False, "false": False}
_PARSE: ByKind[Callable[[str], Cell] | None] = ByKind(
    __name__,
    {
        Kind.BOOL: _BOOLS.__getitem__,
        Kind.INT64: int,
        Kind.DOUBLE: float,
        Kind.BYTES: lambda text: bytes.fromhex(text[2:]),
        Kind.TIMESTAMP: parse_timestamp,
        Kind.DATE: parse_date,
        Kind.TIME: parse_time,
        **_TEXTS,
    },
)


def element_printer(kind: Kind) -> Callable[[Any], str]:
    """The function that converts an array's element of ``kind`` to its text."""
    return _PRINT[kind] or str


def element_parser(kind: Kind) -> Callable[[str], Cell]:
    """The function that converts the text of an array's element of ``kind`` to its cell."""
    return _PARSE[kind] or str


def array_printer(element: Kind) -> Callable[[Cell], str]:
    """The function that converts the cell of an array to a text that Postgres reads. (Postgres itself quotes less.)"""
    show = _PRINT[element]

    def print_elements(cells: tuple[Cell, ...]) -> str:
        parts = []
        for cell in cells:
            if cell is None:
                parts.append("NULL")
            elif type(cell) is tuple:
                parts.append(print_elements(cell))
            else:
                text = cast(str, cell) if show is None else show(cell)
                if "\\" in text or '"' in text:
                    text = text.replace("\\", "\\\\").replace('"', '\\"')
                parts.append(f'"{text}"')
        return "{" + ",".join(parts) + "}"

    def print_array(cell: Cell) -> str:
        return cell if isinstance(cell, str) else print_elements(cast("tuple[Cell, ...]", cell))

    return print_array


_TOKEN = re.compile(r'([{}])|"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def array_parser(element: Kind) -> Callable[[str], Cell]:
    """The function that converts an array's text, as Postgres prints it, to its cell."""
    parse = _PARSE[element]

    def parse_array(text: str) -> Cell:
        if text[0] != "{":
            return Literal(text)
        if text == "{}":
            return ()
        # The elements of each open brace; the first list is for the outermost level.
        open_braces: list[list[Cell]] = [[]]
        for brace, quoted, plain in _TOKEN.findall(text):
            if brace == "{":
                open_braces.append([])
            elif brace:
                done = tuple(open_braces.pop())
                open_braces[-1].append(done)
            elif plain == "NULL":
                open_braces[-1].append(None)
            else:
                value = plain or (_ESCAPE.sub(r"\1", quoted) if "\\" in quoted else quoted)
                open_braces[-1].append(value if parse is None else parse(value))
        return open_braces[0][0]

    return parse_array


def cell_text(column: Column, cell: Cell) -> str | None:
    """A cell's text, as Postgres prints it; None for NULL."""
    if cell is None or isinstance(cell, str):
        return cell
    if column.kind is Kind.ARRAY:
        return array_printer(column.element_kind or Kind.STRING)(cell)
    return element_printer(column.kind)(cell)
