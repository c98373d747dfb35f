"""Elements of arrays as Postgres prints them (DateStyle ISO, IntervalStyle postgres, UTC, bytea in hex), to cells."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.schema import Cell, Kind
from anabranch.values.calendar import parse_date, parse_time, parse_timestamp

_BOOLS = {"t": True, "true": True, "f": False, "false": False}


def _bytes(text: str) -> Cell:
    return bytes.fromhex(text.removeprefix("\\x"))


def _bool(text: str) -> Cell:
    return _BOOLS[text]


_READERS: dict[Kind, Callable[[str], Cell]] = {
    Kind.BOOL: _bool,
    Kind.INT64: int,
    Kind.DOUBLE: float,
    Kind.BYTES: _bytes,
    Kind.TIMESTAMP: parse_timestamp,
    Kind.DATE: parse_date,
    Kind.TIME: parse_time,
}


def text_reader(kind: Kind) -> Callable[[str], Cell]:
    """The function that takes a text of ``kind`` to its cell; it raises ValueError or KeyError."""
    return _READERS.get(kind, str)
