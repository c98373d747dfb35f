"""Decimals in SQL: they are held as text, which is exact, in columns of the collation ``decimal``, which compares them
as numbers. So ``price > 9000``, ``price = 1.1`` (where 1.10 is stored), BETWEEN, IN, ORDER BY, min, max, DISTINCT and
GROUP BY are right wherever a column itself is compared: SQLite converts the number on the other side to text. NaN is
equal to itself and greater than all else, as in Postgres.

SQLite knows no such collation: a connection that lacks it refuses the comparison ("no such collation sequence") instead
of answering wrongly. ``add_decimals`` gives it one; names and meaning are those of SQLite's own extension ``decimal``,
which its shell has built in.

=======================  ===========================================================================================
function                 gives
=======================  ===========================================================================================
decimal_sum(x)           the exact sum, NULL of no values. ``sum`` adds floats decimal_avg(x)           the mean, to 38
digits or as many as the sum has decimal_cmp(x, y)        -1, 0 or 1; for values that are no column: ``having
decimal_cmp(max(price), 9000) > 0`` decimal_add, _sub, _mul  of x and y, exact
=======================  ===========================================================================================
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Any

COLLATION = "decimal"
_DIGITS = 400_000
"""More digits than any sum, difference or product of two values of a numeric has."""
_MEAN_DIGITS = 38
_EXACT = Context(prec=_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


def text_of(number: Decimal) -> str:
    """A decimal as Postgres prints it, and as it is held."""
    if number.is_nan():
        return "NaN"
    if number.is_infinite():
        return "Infinity" if number > 0 else "-Infinity"
    text = format(number.copy_abs(), "f")
    return f"-{text}" if number < 0 else text


def compare(a: str, b: str) -> int:
    """The collation: texts of numbers by their values, then NaN, then every other text by its characters."""
    if a == b:
        return 0
    try:
        x, y = float(a), float(b)
    except ValueError:
        pass
    else:
        # A greater number never has a smaller float.
        if x < y:
            return -1
        if x > y:
            return 1
    one, other = _place(a), _place(b)
    return (one > other) - (one < other)


def _place(text: str) -> tuple[int, Any]:
    try:
        number = float(text)
    except ValueError:
        return 2, text
    if number != number:
        return 1, ""
    try:
        return 0, Decimal(text)
    except InvalidOperation:
        return 0, Decimal(number)  # The exponent is beyond that of any decimal.


def _number(value: Any) -> Decimal:
    try:
        return Decimal(repr(value) if isinstance(value, float) else value)
    except (InvalidOperation, TypeError, ValueError):
        raise ValueError(f"{value!r} is no decimal") from None


class _Sum:
    def __init__(self) -> None:
        self._total = Decimal(0)
        self._count = 0

    def step(self, value: Any) -> None:
        if value is not None:
            self._total = _EXACT.add(self._total, _number(value))
            self._count += 1

    def finalize(self) -> Any:
        return text_of(self._total) if self._count else None


class _Mean(_Sum):
    def finalize(self) -> Any:
        if not self._count:
            return None
        digits = max(_MEAN_DIGITS, len(self._total.as_tuple().digits))
        return text_of(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[]).divide(self._total, self._count))


def _of_two(function: Callable[[Decimal, Decimal], Decimal]) -> Callable[[Any, Any], str | None]:
    def call(x: Any, y: Any) -> str | None:
        return None if x is None or y is None else text_of(function(_number(x), _number(y)))

    return call


def _cmp(x: Any, y: Any) -> int | None:
    return None if x is None or y is None else compare(text_of(_number(x)), text_of(_number(y)))


def add_decimals(conn: sqlite3.Connection) -> None:
    """Give a connection of the app's own to a device's file the collation and the functions, as those of
    ``SyncedDb.execute`` have them."""
    conn.create_collation(COLLATION, compare)
    conn.create_aggregate("decimal_sum", 1, _Sum)
    conn.create_aggregate("decimal_avg", 1, _Mean)
    conn.create_function("decimal_cmp", 2, _cmp, deterministic=True)
    conn.create_function("decimal_add", 2, _of_two(_EXACT.add), deterministic=True)
    conn.create_function("decimal_sub", 2, _of_two(_EXACT.subtract), deterministic=True)
    conn.create_function("decimal_mul", 2, _of_two(_EXACT.multiply), deterministic=True)
