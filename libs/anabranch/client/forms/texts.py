"""Elements of arrays as Postgres prints them (DateStyle ISO, IntervalStyle postgres, UTC, bytea in hex), to cells."""

from __future__ import annotations

import re
from collections.abc import Callable

from anabranch.schema import Cell, Kind
from anabranch.schema.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    Literal,
)

_DATE = re.compile(r"(\d+)-(\d\d)-(\d\d)( BC)?")
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_TIMESTAMP = re.compile(r"(\d+-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)(?:\+00)?( BC)?")
_DAY_US = 86_400_000_000
_BOOLS = {"t": True, "true": True, "f": False, "false": False}


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a proleptic Gregorian date; year 0 is 1 BC. Counted in years that begin in March and in
    cycles of 400 years, 146,097 days each."""
    year -= month <= 2
    cycle, year_of_cycle = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_cycle = year_of_cycle * 365 + year_of_cycle // 4 - year_of_cycle // 100 + day_of_year
    return cycle * 146_097 + day_of_cycle - 719_468


def date_days(text: str) -> int:
    """A date's days since 1970-01-01. Raises ValueError."""
    if text == "infinity":
        return DATE_INFINITY
    if text == "-infinity":
        return DATE_MINUS_INFINITY
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(f"no date: {text!r}")
    year = int(found[1])
    return _days(1 - year if found[4] else year, int(found[2]), int(found[3]))


def time_us(text: str) -> int:
    """A time's microseconds since midnight. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"no time: {text!r}")
    seconds = (int(found[1]) * 60 + int(found[2])) * 60 + int(found[3])
    return seconds * 1_000_000 + int((found[4] or "").ljust(6, "0"))


def timestamp_us(text: str) -> Cell:
    """A timestamp's microseconds since 1970-01-01, or a Literal beyond 64 bits. Raises ValueError."""
    if text == "infinity":
        return TIMESTAMP_INFINITY
    if text == "-infinity":
        return TIMESTAMP_MINUS_INFINITY
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError(f"no timestamp: {text!r}")
    value = date_days(found[1] + (found[3] or "")) * _DAY_US + time_us(found[2])
    if TIMESTAMP_MINUS_INFINITY < value < TIMESTAMP_INFINITY:
        return value
    return Literal(text)


def _bytes(text: str) -> Cell:
    return bytes.fromhex(text.removeprefix("\\x"))


def _bool(text: str) -> Cell:
    return _BOOLS[text]


_READERS: dict[Kind, Callable[[str], Cell]] = {
    Kind.BOOL: _bool,
    Kind.INT64: int,
    Kind.DOUBLE: float,
    Kind.BYTES: _bytes,
    Kind.TIMESTAMP: timestamp_us,
    Kind.DATE: date_days,
    Kind.TIME: time_us,
}


def text_reader(kind: Kind) -> Callable[[str], Cell]:
    """The function that takes a text of ``kind`` to its cell; it raises ValueError or KeyError."""
    return _READERS.get(kind, str)
