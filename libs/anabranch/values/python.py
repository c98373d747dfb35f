"""Convert an app's values to cells, exactly or not at all.

A column takes the values that a read of it gives, and equivalent Python types:

=========  =====================================================================================================
kind       also taken
=========  =====================================================================================================
DOUBLE     an int that a float holds exactly
BYTES      bytearray, memoryview
DECIMAL    Decimal, int
TIMESTAMP  datetime: with a time zone for timestamptz, without one for timestamp; "infinity", "-infinity"; Postgres's
           text of one beyond 64 bits
DATE       date; "infinity", "-infinity"
TIME       time without a time zone
JSON       dict, list, int, float, bool: anything that ``json`` writes. A str is JSON text; "null" is the JSON null
UUID       UUID
ARRAY      list, tuple, nested for further dimensions; a str is the JSON form in which SQLite holds it
=========  =====================================================================================================

None is SQL NULL. Every function here raises ValueError with the fault; the caller adds table and column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from anabranch.errors import AnabranchError
from anabranch.values.calendar import DAY_US, timestamp_text, timestamp_us
from anabranch.values.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    Cell,
    Literal,
)
from anabranch.values.decimals import text_of
from anabranch.values.kinds import ByKind, Kind
from anabranch.values.sqlite import loader
from anabranch.values.table import Column

Converter = Callable[[Any], Cell]

_PLAIN_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?|NaN|-?Infinity")
_INT_LIMITS = {"smallint": 2**15, "integer": 2**31}
_MOST_DIMENSIONS = 6
_EPOCH = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)


class NumberRangeError(AnabranchError, ValueError):
    """The column's type can't hold the number; a wider one, which the column may have by now, may."""


def _wrong(value: Any, takes: str) -> ValueError:
    return ValueError(f"takes {takes}, not {type(value).__name__}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(value, "str")
    if "\0" in value:
        raise ValueError("has a NUL character, which Postgres can't hold")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"is no text: a lone surrogate at character {error.start}") from None
    return value


def _bool(value: Any) -> Cell:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise _wrong(value, "bool")


def _integer(low: int, high: int) -> Converter:
    def convert(value: Any) -> Cell:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(value, "int")
        if not low <= value <= high:
            raise NumberRangeError(f"is outside {low} to {high}")
        return int(value)

    return convert


def _double(value: Any) -> Cell:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = 0.0
        if number != value:
            raise ValueError("is an int that no float holds exactly")
        return number
    if isinstance(value, str) and value == "NaN":
        return float("nan")
    raise _wrong(value, "float")


def _bytes(value: Any) -> Cell:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _wrong(value, "bytes")


def _decimal(value: Any) -> Cell:
    if isinstance(value, str):
        if _PLAIN_DECIMAL.fullmatch(value) and value not in ("-0",) and not value.startswith("-0."):
            return value
        try:
            value = Decimal(value)
        except InvalidOperation:
            raise ValueError("is no number") from None
    elif isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    elif not isinstance(value, Decimal):
        raise _wrong(value, "Decimal, int or text")
    if not value.is_finite():
        return text_of(value)
    exponent = value.as_tuple().exponent
    if value.adjusted() > 131_071 or (isinstance(exponent, int) and exponent < -16_383):
        raise ValueError("has more digits than a numeric holds")
    return text_of(value)


def _timestamp(zoned: bool) -> Converter:
    whole = _integer(TIMESTAMP_MINUS_INFINITY, TIMESTAMP_INFINITY)

    def convert(value: Any) -> Cell:
        if isinstance(value, datetime):
            if (value.tzinfo is not None) is not zoned:
                raise ValueError(f"takes a datetime {'with' if zoned else 'without'} a time zone")
            wall_us = (value.toordinal() - _EPOCH) * DAY_US + int(_time(value.time()))  # type: ignore[arg-type]
            # utcoffset, not astimezone: an instant just outside the years 1 to 9999 is exact, too.
            return wall_us - (value.utcoffset() or timedelta()) // _MICROSECOND
        if type(value) is Literal:
            return value
        if value == "infinity":
            return TIMESTAMP_INFINITY
        if value == "-infinity":
            return TIMESTAMP_MINUS_INFINITY
        if isinstance(value, int) and not isinstance(value, bool):
            return whole(value)
        if isinstance(value, str):
            # A read gives text beyond 64 bits of microseconds; within them a text could mean several moments.
            with suppress(ValueError):
                us = timestamp_us(value, zone=zoned)
                if us >= TIMESTAMP_INFINITY:
                    return Literal(timestamp_text(us, zone=zoned))
        raise _wrong(value, "datetime or int")

    return convert


_days = _integer(DATE_MINUS_INFINITY, DATE_INFINITY)


def _date(value: Any) -> Cell:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.toordinal() - _EPOCH
    if value == "infinity":
        return DATE_INFINITY
    if value == "-infinity":
        return DATE_MINUS_INFINITY
    if isinstance(value, int) and not isinstance(value, bool):
        return _days(value)
    raise _wrong(value, "date or int")


_time_us = _integer(0, DAY_US)


def _time(value: Any) -> Cell:
    if isinstance(value, time):
        if value.tzinfo is not None:
            raise ValueError("takes a time without a time zone")
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    if isinstance(value, int) and not isinstance(value, bool):
        return _time_us(value)
    raise _wrong(value, "time or int")


def _json(value: Any) -> Cell:
    try:
        if isinstance(value, str):
            json.loads(_text(value), parse_constant=_no_json)
            return value
        return _text(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON text: {error}") from None
    except TypeError as error:
        raise ValueError(f"has no JSON form: {error}") from None
    except RecursionError:
        raise ValueError("is JSON that is nested too deeply") from None


def _no_json(constant: str) -> None:
    raise ValueError(f"is no JSON text: {constant} is no value of JSON")


_NO_TEXT_ESCAPE = re.compile(r"\\u(?:0000|d[89a-f])", re.IGNORECASE)


def _jsonb(value: Any) -> Cell:
    """As for JSON, but escapes that no text of Postgres can hold are refused: jsonb decodes them, json does not."""
    cell = _json(value)
    if isinstance(cell, str) and _NO_TEXT_ESCAPE.search(cell):
        pending: list[Any] = [json.loads(cell)]
        while pending:
            part = pending.pop()
            if isinstance(part, str):
                _text(part)
            elif isinstance(part, dict):
                pending += [*part, *part.values()]
            elif isinstance(part, list):
                pending += part
    return cell


def _uuid(value: Any) -> Cell:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str):
        try:
            return str(UUID(value))
        except ValueError:
            raise ValueError("is no UUID") from None
    raise _wrong(value, "UUID or text")


def _array(column: Column) -> Converter:
    kind = column.element_kind or Kind.STRING
    element = _scalar(kind, column.postgres_type.removesuffix("[]"))
    load = loader(column)

    def nested(value: Any) -> Cell:
        if value is None:
            return None
        if isinstance(value, list | tuple):
            return tuple(nested(v) for v in value)
        return element(value)

    def convert(value: Any) -> Cell:
        if type(value) is Literal:
            return value
        if isinstance(value, str) and load is not None:
            try:
                cell: Cell = load(_text(value))
            except (ValueError, KeyError, TypeError):
                raise ValueError("is no array in its JSON form") from None
            return cell
        if not isinstance(value, list | tuple):
            raise _wrong(value, "list or tuple")
        cells = nested(value)
        if len(_shape(cells)) > _MOST_DIMENSIONS:
            raise ValueError(f"has more than {_MOST_DIMENSIONS} dimensions")
        return cells

    return convert


def _shape(cell: Cell) -> tuple[int, ...]:
    """The lengths of an array's dimensions. Raises ValueError where it is not rectangular."""
    if not isinstance(cell, tuple):
        return ()
    shapes = {_shape(c) for c in cell}
    if len(shapes) > 1:
        raise ValueError("is an array whose rows differ in length")
    inner = shapes.pop() if shapes else ()
    if isinstance(cell[0] if cell else None, tuple) and 0 in inner:
        raise ValueError("is an array of empty arrays, which Postgres can't hold")
    return (len(cell), *inner)


def _scalar(kind: Kind, postgres_type: str) -> Converter:
    if kind is Kind.INT64:
        limit = _INT_LIMITS.get(postgres_type, 2**63)
        return _integer(-limit, limit - 1)
    if kind is Kind.TIMESTAMP:
        return _timestamp("with time zone" in postgres_type)
    simple: ByKind[Converter] = ByKind(
        __name__,
        {
            Kind.BOOL: _bool,
            Kind.DOUBLE: _double,
            Kind.BYTES: _bytes,
            Kind.DECIMAL: _decimal,
            Kind.DATE: _date,
            Kind.TIME: _time,
            Kind.JSON: _jsonb if postgres_type == "jsonb" else _json,
            Kind.UUID: _uuid,
            Kind.STRING: _text,
            Kind.LITERAL: _text,
        },
    )
    return simple[kind]


def converter(column: Column) -> Converter:
    """The function that converts a value other than None to a cell of ``column``; it raises ValueError."""
    if column.kind is Kind.ARRAY:
        return _array(column)
    return _scalar(column.kind, column.postgres_type)
