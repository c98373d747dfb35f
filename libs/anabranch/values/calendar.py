"""Dates, times of day and timestamps as text: read, and printed as Postgres prints them.

This is the only calendar here. A device, the server and the rules read the same texts, and a text means the same as in
Postgres: ``tests/integration/values/test_calendar.py`` compares every form below and every refused form with Postgres.

=========  =========================================================================================================
read as    texts
=========  =========================================================================================================
date       ``YYYY-MM-DD``, four to seven digits of year, `` BC`` behind it; ``infinity``, ``-infinity``
time       ``HH:MM``, ``HH:MM:SS``, ``HH:MM:SS.f``; to 24:00:00, which is the end of the day; second 60 is the next
           minute's first; more than six digits of a second are rounded, to the nearest even one
timestamp  a date; a date, a space or ``T``, and a time; behind the time perhaps an offset (``Z``, ``+HH``, ``+HHMM``,
           ``+HH:MM``, ``+HH:MM:SS``; to 15:59:59) and `` BC``; the infinities. Without an offset it is UTC. Of a
           timestamp without time zone the offset is read and does not count, as for Postgres
=========  =========================================================================================================

Out of range for Postgres is out of range here (``OutOfRangeError``): a month 13, 24:00:01, the year 0, days before
4714-11-24 BC, dates from 5874898 on, timestamps from 294277 on.

Postgres reads more than it prints, and we refuse that (ValueError): words whose moment depends on when they are read
(``now``, ``today``), other orders of day, month and year, which depend on the session, as do years of fewer digits;
names of months, days and zones; Julian days, days of the year, digits without dashes; AM and PM, AD; blanks around a
text, capitals and small letters other than printed; a date with a time as a date, an offset behind a date or a time of
day alone.

An interval has no number here: it is carried as its text.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date, datetime

from anabranch.errors import AnabranchError
from anabranch.values.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    Literal,
)

DAY_US = 86_400_000_000
FIRST_DAY, LAST_DAY = -2_440_588, 2_145_042_905
"""4714-11-24 BC and 5874897-12-31, between which a date lies."""
FIRST_US, END_US = FIRST_DAY * DAY_US, 106_762_940 * DAY_US
"""4714-11-24 00:00:00 BC, the first timestamp, and 294277-01-01 00:00:00, after the last."""
_MONTH_DAYS = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LAST_OFFSET_HOUR = 15

_DATE = r"(\d{4,7})-(\d\d)-(\d\d)"
_TIME = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,20}))?)?"
_OFFSET = r" ?(?:Z|([+-])(\d\d)(?::(\d\d)(?::(\d\d))?|(\d\d))?)"
_read_date = re.compile(f"{_DATE}( BC)?", re.ASCII).fullmatch
_read_time = re.compile(_TIME, re.ASCII).fullmatch
_read_timestamp = re.compile(f"{_DATE}(?:[ T]{_TIME}(?:{_OFFSET})?)?( BC)?", re.ASCII).fullmatch
# The form of nearly all texts, which Python reads in the same way, at a third of the cost: years to 9999, of our era.
_plain_date = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII).fullmatch
_plain_timestamp = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?(?:\+00)?", re.ASCII).fullmatch
_date_of, _datetime_of = date.fromisoformat, datetime.fromisoformat
_DAYS_TO_1970 = date(1970, 1, 1).toordinal()

# The days of a year that begins in March, so that the leap day is its last; 400 such years are 146,097 days.
_ERA_DAYS = 146_097
_MARCH_FIRST_YEAR_0 = -719_468


class OutOfRangeError(AnabranchError, ValueError):
    """A text has the form of a date or time, and Postgres has no such date or time."""


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


def _days(text: str, year: str, month: str, day: str, bc: str | None) -> int:
    y, m, d = int(year), int(month), int(day)
    if bc:
        y = 1 - y
    if not (0 < m <= 12 and 0 < d <= _MONTH_DAYS[m] and int(year)):
        raise OutOfRangeError(f"no such day: {text[:60]!r}")
    if d == 29 and m == 2 and (y % 4 or (not y % 100 and y % 400)):
        raise OutOfRangeError(f"no such day, in a year without a leap day: {text[:60]!r}")
    return days_of(y, m, d)


def _of_day(text: str, hour: str, minute: str, second: str | None, fraction: str | None) -> int:
    m, s = int(minute), int(second or 0)
    us = ((int(hour) * 60 + m) * 60 + s) * 1_000_000
    if fraction:
        # Computed as a float, and rounded to the nearest even one, as in Postgres.
        us += int(fraction.ljust(6, "0")) if len(fraction) <= 6 else round(float(f".{fraction}") * 1_000_000)
    if m > 59 or s > 60 or us > DAY_US:
        raise OutOfRangeError(f"no such time of day: {text[:60]!r}")
    return us


def _offset(text: str, sign: str, hour: str, minute: str | None, second: str | None, minute_alone: str | None) -> int:
    h, m, s = int(hour), int(minute or minute_alone or 0), int(second or 0)
    if h > _LAST_OFFSET_HOUR or m > 59 or s > 59:
        raise OutOfRangeError(f"no such offset of a time zone: {text[:60]!r}")
    us = ((h * 60 + m) * 60 + s) * 1_000_000
    return -us if sign == "-" else us


def parse_date(text: str) -> int:
    """The cell of a date. Raises ValueError."""
    if _plain_date(text):
        # The code below reports a text that is no day.
        with suppress(ValueError):
            return _date_of(text).toordinal() - _DAYS_TO_1970
    found = _read_date(text)
    if found is None:
        if text == "infinity":
            return DATE_INFINITY
        if text == "-infinity":
            return DATE_MINUS_INFINITY
        raise ValueError(f"not a date as Postgres prints it: {text[:60]!r}")
    year, month, day, bc = found.groups()
    days = _days(text, year, month, day, bc)
    if not FIRST_DAY <= days <= LAST_DAY:
        raise OutOfRangeError(f"a date that Postgres doesn't hold: {text[:60]!r}")
    return days


def parse_time(text: str) -> int:
    """The cell of a time of day. Raises ValueError."""
    found = _read_time(text)
    if found is None:
        raise ValueError(f"not a time as Postgres prints it: {text[:60]!r}")
    return _of_day(text, *found.groups())


def timestamp_us(text: str, *, zone: bool = True) -> int:
    """Microseconds since 1970, of any size, of a timestamptz (``zone``) or timestamp that is not an infinity. Raises
    ValueError."""
    if _plain_timestamp(text):
        # The code below handles 24:00:00, a second 60 and a text that is no moment.
        with suppress(ValueError):
            at = _datetime_of(text)
            seconds = ((at.toordinal() - _DAYS_TO_1970) * 24 + at.hour) * 3600 + at.minute * 60 + at.second
            return seconds * 1_000_000 + at.microsecond
    found = _read_timestamp(text)
    if found is None:
        raise ValueError(f"not a date or time as Postgres prints it: {text[:60]!r}")
    year, month, day, hour, minute, second, fraction, sign, *offset, bc = found.groups()
    us = _days(text, year, month, day, bc) * DAY_US
    if hour is not None:
        us += _of_day(text, hour, minute, second, fraction)
        if sign is not None:
            east = _offset(text, sign, *offset)
            us -= east if zone else 0
    if not FIRST_US <= us < END_US:
        raise OutOfRangeError(f"a timestamp that Postgres doesn't hold: {text[:60]!r}")
    return us


def parse_timestamp(text: str, *, zone: bool = True) -> int | Literal:
    """The cell of a timestamptz (``zone``) or timestamp. Raises ValueError."""
    if text == "infinity":
        return TIMESTAMP_INFINITY
    if text == "-infinity":
        return TIMESTAMP_MINUS_INFINITY
    us = timestamp_us(text, zone=zone)
    return us if us < TIMESTAMP_INFINITY else Literal(text)


def without_offset(text: str) -> str:
    """The text of a timestamp without time zone, without its offset if it has one: an offset does not count."""
    try:
        us = timestamp_us(text, zone=False)
    except ValueError:
        return text  # Postgres judges any other text.
    with suppress(OutOfRangeError):
        if us == timestamp_us(text):
            return text
    return timestamp_text(us, zone=False)


def moment_rank(text: str) -> tuple[int, int]:
    """The rank of a timestamp among all others, also those that 64 bits don't hold, as (-1, 0 or 1: before, among or
    after all dates; microseconds since 1970). Raises ValueError."""
    if text == "infinity":
        return 1, 0
    if text == "-infinity":
        return -1, 0
    return 0, timestamp_us(text)


def _date(days: int) -> tuple[str, str]:
    year, month, day = date_of(days)
    if year > 0:
        return f"{year:04}-{month:02}-{day:02}", ""
    return f"{1 - year:04}-{month:02}-{day:02}", " BC"


def date_text(days: int) -> str:
    """The text of a date's cell as Postgres prints it."""
    if days == DATE_INFINITY:
        return "infinity"
    if days == DATE_MINUS_INFINITY:
        return "-infinity"
    date, era = _date(days)
    return date + era


def time_text(us: int) -> str:
    """The text of a time of day's cell as Postgres prints it."""
    seconds, fraction = divmod(us, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def timestamp_text(us: int, *, zone: bool) -> str:
    """The text of microseconds since 1970, of any size and never an infinity, as Postgres prints a timestamptz
    (``zone``) or timestamp."""
    days, of_day = divmod(us, DAY_US)
    date, era = _date(days)
    return f"{date} {time_text(of_day)}{'+00' if zone else ''}{era}"


def cell_timestamp_text(cell: int | Literal, *, zone: bool) -> str:
    """The text of a timestamp's cell as Postgres prints it."""
    if isinstance(cell, Literal):
        return cell
    if cell == TIMESTAMP_INFINITY:
        return "infinity"
    if cell == TIMESTAMP_MINUS_INFINITY:
        return "-infinity"
    return timestamp_text(cell, zone=zone)
