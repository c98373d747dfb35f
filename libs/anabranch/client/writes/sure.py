"""Values that the server would surely refuse, so that they are refused where they are written and not hours later.

The judgement follows assignment in Postgres: a value that it silently rounds, pads or cuts (digits after the point,
blanks beyond a length) passes. A domain is not judged, because only Postgres knows its checks, nor a column whose
policy computes the stored value. A device's knowledge may be old: before it refuses a value it asks the server, where
it can.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from anabranch.errors import AnabranchError
from anabranch.v1 import snapshot_pb2
from anabranch.values import Cell, Column, Kind
from anabranch.values.calendar import FIRST_DAY, FIRST_US, LAST_DAY
from anabranch.values.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    Literal,
)

Judge = Callable[[Any], None]
"""Takes a cell that is not NULL. Raises SurelyRefusedError."""

_INFINITE_DAYS = (DATE_MINUS_INFINITY, DATE_INFINITY)
_INFINITE_US = (TIMESTAMP_MINUS_INFINITY, TIMESTAMP_INFINITY)
_LENGTH = re.compile(r"(character varying|character|bit varying|bit)\((\d+)\)")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_BITS = re.compile(r"[01]*")
_DIGITS = 160_000


class SurelyRefusedError(AnabranchError, ValueError):
    """The server refuses the value, unless the table has changed since the device last asked."""


@dataclass(frozen=True, slots=True)
class SureOfColumn:
    """The sure refusals of one column. ``needed``: an insert that leaves it out is refused, as NULL is."""

    refuses_null: bool = False
    needed: bool = False
    judge: Judge | None = None


def sure_of(message: snapshot_pb2.Table, columns: tuple[Column, ...]) -> dict[str, SureOfColumn]:
    """The sure refusals of the columns that an app writes, from Describe, by identity; a column without any is left
    out."""
    sure: dict[str, SureOfColumn] = {}
    of_message = {described.name: described for described in message.columns if not described.gone}
    for column in columns:
        described = of_message[column.name]
        if column.generated or column.policy != "lww" or described.hidden:
            continue
        judge = None if described.base_type else _judge(column, tuple(described.enum_labels))
        # A NULL in a key is refused in any case.
        refuses_null = described.refuses_null and column.name not in message.key_columns
        if judge is not None or refuses_null:
            sure[column.name] = SureOfColumn(refuses_null, refuses_null and not column.has_default, judge)
    return sure


def _judge(column: Column, labels: tuple[str, ...]) -> Judge | None:
    if column.kind is Kind.ARRAY:
        kind = column.element_kind or Kind.STRING
        element = _of_one(kind, column.postgres_type.removesuffix("[]"), labels)
        return None if element is None else _each(element)
    return _of_one(column.kind, column.postgres_type, labels)


def _of_one(kind: Kind, postgres_type: str, labels: tuple[str, ...]) -> Judge | None:
    if labels:
        return _label(frozenset(labels), labels)
    if found := _LENGTH.fullmatch(postgres_type):
        return (_bits if found[1].startswith("bit") else _characters)(postgres_type, int(found[2]))
    if found := _NUMERIC.fullmatch(postgres_type):
        return _digits(postgres_type, int(found[1]), int(found[2]))
    if postgres_type == "real":
        return _real
    if kind is Kind.DATE:
        return _within("date", FIRST_DAY, LAST_DAY, _INFINITE_DAYS)
    if kind is Kind.TIMESTAMP:
        return _within("timestamp", FIRST_US, TIMESTAMP_INFINITY, _INFINITE_US)
    return None


def _each(element: Judge) -> Judge:
    def judge(cell: Cell) -> None:
        if isinstance(cell, tuple):
            for one in cell:
                judge(one)
        elif cell is not None and not isinstance(cell, Literal):
            element(cell)

    return judge


def _label(labels: frozenset[str], in_order: tuple[str, ...]) -> Judge:
    def judge(cell: Any) -> None:
        if cell not in labels:
            some = ", ".join(repr(label) for label in in_order[:10])
            raise SurelyRefusedError(f"takes one of {some}{', …' if len(in_order) > 10 else ''}")

    return judge


def _characters(postgres_type: str, most: int) -> Judge:
    def judge(cell: Any) -> None:
        # Postgres silently cuts blanks beyond the length.
        if len(cell) > most and len(cell.rstrip(" ")) > most:
            raise SurelyRefusedError(f"is {postgres_type}: takes at most {most} characters, not {len(cell)}")

    return judge


def _bits(postgres_type: str, length: int) -> Judge:
    varying = postgres_type.startswith("bit varying")

    def judge(cell: Any) -> None:
        if not _BITS.fullmatch(cell):
            return  # Hexadecimal, or no bits: Postgres reads it.
        if len(cell) > length or (len(cell) < length and not varying):
            raise SurelyRefusedError(f"is {postgres_type}, and this is {len(cell)} bits")

    return judge


def _digits(postgres_type: str, precision: int, scale: int) -> Judge:
    step, most = Decimal((0, (1,), -scale)), Decimal((0, (1,), precision - scale))
    context = Context(prec=_DIGITS)

    def judge(cell: Any) -> None:
        if cell == "NaN":
            return
        number = Decimal(cell)
        if number.is_infinite() or number.quantize(step, ROUND_HALF_UP, context).copy_abs() >= most:
            raise SurelyRefusedError(f"is {postgres_type}: takes at most {precision - scale} digits before the point")

    return judge


def _real(cell: Any) -> None:
    try:
        (held,) = struct.unpack("<f", struct.pack("<f", cell))
    except OverflowError:
        held = 0.0
    if not held and cell:
        raise SurelyRefusedError("is real: takes numbers from about 1.4e-45 to 3.4e38")


def _within(name: str, first: int, last: int, infinite: tuple[int, int]) -> Judge:
    def judge(cell: Any) -> None:
        if isinstance(cell, int) and not first <= cell <= last and cell not in infinite:
            raise SurelyRefusedError(f"is outside the range of a {name} in Postgres")

    return judge
