"""Positions as people write and read them: a position is a moment, in milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

_NUMBER = re.compile(r"[0-9]{1,18}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def position_of(text: str) -> int:
    """The position that ``text`` means: the number itself, a timestamp with its zone, or a day's beginning in UTC.

    Raises:
        ValueError: it is none of them.
    """
    if _NUMBER.fullmatch(text):
        return int(text)
    if _DAY.fullmatch(text):
        day = date.fromisoformat(text)
        return (datetime(day.year, day.month, day.day, tzinfo=UTC) - _BEGIN) // _MS
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone: append Z for UTC, or an offset as +02:00")
    return (moment - _BEGIN) // _MS


def moment_of(position: int) -> str:
    """A position as a moment in UTC, to the millisecond; the number itself where it is beyond the calendar."""
    try:
        return (_BEGIN + position * _MS).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(position)
