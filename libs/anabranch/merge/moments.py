"""Timestamps that are held as text, on one line with those that are numbers.

A timestamp's cell is the number of microseconds since 1970 where 64 bits hold it, and its Postgres text where not:
after the year 294246. A device may send any moment as text, also one that a number could hold, ``infinity``, or a
year BC. To be compared all of them need one measure.
"""

from __future__ import annotations

import re

INFINITY, MINUS_INFINITY = 2**63 - 1, -(2**63)
"""The cells of the infinities: beyond every moment, also beyond those that only text can hold."""

_MOMENT = re.compile(
    r"(?P<year>\d{4,6})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[ T](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<part>\d{1,6}))?)?)?"
    r" ?(?:(?P<sign>[+-])(?P<east>\d\d)(?::?(?P<east_minute>\d\d)(?::(?P<east_second>\d\d))?)?|Z)?(?P<bc> BC)?",
    re.ASCII,
)
_DAYS_OF_400_YEARS = 146_097
_DAYS_TO_1970 = 719_468
"""From the first of March of the year 0."""


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the Gregorian calendar carried on both ways, as Postgres counts; ``year`` 0 is 1 BC."""
    year -= month < 3
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * _DAYS_OF_400_YEARS + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _DAYS_TO_1970


def moment_rank(text: str) -> tuple[int, int]:
    """Where a moment in words stands among the others, as (-1, 0 or 1: before, among or after all dates;
    microseconds since 1970). Without an offset it is taken as UTC.

    Raises:
        ValueError: it is none of the forms that Postgres prints (``now``, or a month's name, could be any moment).
    """
    if text in ("infinity", "-infinity"):
        return (-1 if text[0] == "-" else 1), 0
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError(f"not a moment as Postgres prints it: {text[:60]!r}")
    part = {name: int(value or 0) for name, value in found.groupdict().items() if name not in ("sign", "bc", "part")}
    if not (1 <= part["month"] <= 12 and 1 <= part["day"] <= 31):
        raise ValueError(f"no such day: {text[:60]!r}")
    year = 1 - part["year"] if found["bc"] else part["year"]
    seconds = (_days(year, part["month"], part["day"]) * 24 + part["hour"]) * 3600 + part["minute"] * 60
    east = part["east"] * 3600 + part["east_minute"] * 60 + part["east_second"]
    seconds += part["second"] + (east if found["sign"] == "-" else -east)
    return 0, seconds * 1_000_000 + int((found["part"] or "").ljust(6, "0"))
