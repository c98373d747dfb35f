"""Cells as the text that Postgres prints and reads, for what travels as text: the elements of arrays, and timestamps
that 64 bits of microseconds don't hold.

Sessions have DateStyle ISO, TimeZone UTC and bytea_output hex. Years are counted as Postgres does: no year zero, and
BC after the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from anabranch.schema.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    Cell,
    Literal,
)
from anabranch.schema.table import Kind

_DAY_US = 86_400_000_000
_MOMENT = re.compile(r"(?:(\d+)-(\d\d)-(\d\d))?(?: ?(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:\+00)?( BC)?", re.ASCII)
# The days of a year that begins in March, so that the leap day is its last; 400 such years are 146,097 days.
_ERA_DAYS = 146_097
_MARCH_FIRST_YEAR_0 = -719_468


def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a date of the proleptic Gregorian calendar; ``year`` 0 is 1 BC."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * _ERA_DAYS + of_era * 365 + of_era // 4 - of_era // 100 + of_year + _MARCH_FIRST_YEAR_0


def date_of(days: int) -> tuple[int, int, int]:
    """Year, month and day; the inverse of ``days_of``."""
    era, of_era = divmod(days - _MARCH_FIRST_YEAR_0, _ERA_DAYS)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return era * 400 + year + (month <= 2), month, day


def _date(days: int) -> tuple[str, str]:
    year, month, day = date_of(days)
    if year > 0:
        return f"{year:04}-{month:02}-{day:02}", ""
    return f"{1 - year:04}-{month:02}-{day:02}", " BC"


def _time(us: int) -> str:
    seconds, fraction = divmod(us, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def timestamp_text(us: int, *, zone: bool) -> str:
    """Microseconds since 1970, of any size and never standing for an infinity, as a timestamptz (``zone``) or
    timestamp prints."""
    days, of_day = divmod(us, _DAY_US)
    date, era = _date(days)
    return f"{date} {_time(of_day)}{'+00' if zone else ''}{era}"


def cell_timestamp_text(cell: int | Literal, *, zone: bool) -> str:
    """The cell of a timestamp as it prints."""
    if isinstance(cell, Literal):
        return cell
    if cell == TIMESTAMP_INFINITY:
        return "infinity"
    if cell == TIMESTAMP_MINUS_INFINITY:
        return "-infinity"
    return timestamp_text(cell, zone=zone)


def date_text(days: int) -> str:
    """Days since 1970 as a date prints."""
    if days == DATE_INFINITY:
        return "infinity"
    if days == DATE_MINUS_INFINITY:
        return "-infinity"
    date, era = _date(days)
    return date + era


def _parse(text: str) -> tuple[int, int]:
    """Days since 1970 and microseconds since midnight."""
    match = _MOMENT.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"not a date or time as Postgres prints it: {text!r}")
    year, month, day, hour, minute, second, fraction, era = match.groups()
    us = 0
    if hour is not None:
        us = ((int(hour) * 60 + int(minute)) * 60 + int(second)) * 1_000_000
        us += int((fraction or "").ljust(6, "0"))
    if year is None:
        return 0, us
    return days_of(1 - int(year) if era else int(year), int(month), int(day)), us


def parse_timestamp(text: str) -> Cell:
    """The cell of a timestamp's text."""
    if text == "infinity":
        return TIMESTAMP_INFINITY
    if text == "-infinity":
        return TIMESTAMP_MINUS_INFINITY
    days, of_day = _parse(text)
    us = days * _DAY_US + of_day
    return us if us < TIMESTAMP_INFINITY else Literal(text)


def parse_date(text: str) -> Cell:
    """The cell of a date's text."""
    if text == "infinity":
        return DATE_INFINITY
    if text == "-infinity":
        return DATE_MINUS_INFINITY
    return _parse(text)[0]


def _double_text(cell: float) -> str:
    return repr(cell) if cell - cell == 0 else "NaN" if cell != cell else "Infinity" if cell > 0 else "-Infinity"


_PRINT: dict[Kind, Callable[..., str]] = {
    Kind.BOOL: lambda cell: "t" if cell else "f",
    Kind.INT64: str,
    Kind.DOUBLE: _double_text,
    Kind.BYTES: lambda cell: "\\x" + cell.hex(),
    Kind.TIMESTAMP: partial(cell_timestamp_text, zone=True),
    Kind.DATE: date_text,
    Kind.TIME: _time,
}
# As an array's own text has it, and as a cast of its elements to text does.
_BOOLS = {"t": True, "true": True, "f": False, "false": False}
_PARSE: dict[Kind, Callable[[str], Cell]] = {
    Kind.BOOL: _BOOLS.__getitem__,
    Kind.INT64: int,
    Kind.DOUBLE: float,
    Kind.BYTES: lambda text: bytes.fromhex(text[2:]),
    Kind.TIMESTAMP: parse_timestamp,
    Kind.DATE: parse_date,
    Kind.TIME: lambda text: _parse(text)[1],
}
# The kinds not named here are text already.


def element_printer(kind: Kind) -> Callable[[Any], str]:
    """The function that takes an array's element of ``kind`` to its text."""
    return _PRINT.get(kind, str)


def element_parser(kind: Kind) -> Callable[[str], Cell]:
    """The function that takes the text of an array's element of ``kind`` to its cell."""
    return _PARSE.get(kind, str)


def array_printer(element: Kind) -> Callable[[Cell], str]:
    """The function that takes the cell of an array to a text that Postgres reads. (Its own text quotes less.)"""
    show = _PRINT.get(element)

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
    """The function that takes an array's text, as Postgres prints it, to its cell."""
    parse = _PARSE.get(element)

    def parse_array(text: str) -> Cell:
        if text[0] != "{":
            return Literal(text)
        if text == "{}":
            return ()
        # What holds the elements of each open brace; the first stands for the outside.
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
