"""How much longer a value becomes than it was sent, where Postgres prints it: rows are read back as it prints them, and
so they are logged and sent to devices.

A number with an exponent is printed with all of its digits: ``1e131071`` is 131,072 bytes. Such numbers are found in
``numeric``, in ``jsonb`` (outside of its strings), and in the texts of other types that may hold either (ranges, rows,
an application's own). A ``numeric`` with a large scale, and a ``char(n)``, are filled up to their lengths. The size is
known from the text; nothing is made to know it. Exponents of fewer than three digits are not looked at: they add no
more than the value costs in any case.

No values of other types grow by more than a few times.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from anabranch.limits import MAX_VALUE_BYTES
from anabranch.values.cells import Cell
from anabranch.values.kinds import Kind
from anabranch.values.table import Column

Measure = Callable[[Cell], int]
"""Takes a cell that is not NULL; gives at least the bytes by which it grows, as far as a value may."""

MAY_GROW = re.compile(rb"[0-9._][eE][-+]?[0-9_]{3}").search
"""Finds an exponent in a payload: where there is none, only values that are filled up can grow."""

_EXPONENT = re.compile(r"(?<=[0-9._])[eE]([-+]?)[0_]*([1-9][0-9_]{2,})(?![\w.])")
_BEFORE, _BEHIND = 131_072, 16_383
"""The most digits of a numeric before and behind its point."""
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_CHARACTER = re.compile(r"character\((\d+)\)")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_LITERALS = frozenset({"numrange", "nummultirange", "jsonpath"})
"""Types of the system's own that are carried as texts and hold a numeric."""
_SMALL = 200
"""Fewer digits, or blanks, are not counted."""
_MANTISSA = "0123456789_."


class Growth(NamedTuple):
    """How the values of a column grow. ``always``: also those without an exponent."""

    measure: Measure
    always: bool = False


def growth_of(column: Column) -> Growth | None:
    """How the values of ``column`` grow; None where none can."""
    kind = column.element_kind if column.kind is Kind.ARRAY else column.kind
    postgres_type = (column.base_type or column.postgres_type).removesuffix("[]")
    growth: Growth | None = None
    if kind is Kind.DECIMAL:
        growth = _of_numeric(postgres_type)
    elif kind is Kind.JSON and postgres_type != "json":
        growth = Growth(_in_json)
    elif kind is Kind.LITERAL and (postgres_type in _LITERALS or "." in _QUOTED.sub("", postgres_type)):
        growth = Growth(_in_text)
    elif kind is Kind.STRING and (found := _CHARACTER.fullmatch(postgres_type)) and int(found[1]) > _SMALL:
        growth = Growth(_filled(int(found[1])), always=True)
    if growth is None or column.kind is not Kind.ARRAY:
        return growth
    return Growth(_each(growth.measure), growth.always)


def _of_numeric(postgres_type: str) -> Growth | None:
    found = _NUMERIC.fullmatch(postgres_type)
    if found is None:
        return Growth(_in_text)
    # A number with more digits before its point is refused, and one with more behind it is rounded.
    digits, scale = int(found[1]), int(found[2])
    if scale > _SMALL:
        filled = _filled(scale)
        return Growth(lambda cell: filled(cell) + _in_text(cell), always=True)
    return Growth(_in_text) if digits > _SMALL else None


def _filled(length: int) -> Measure:
    return lambda cell: max(0, length - len(cell)) if isinstance(cell, str) else 0


def _each(measure: Measure) -> Measure:
    def of_all(cell: Cell) -> int:
        if isinstance(cell, tuple):
            return sum([of_all(one) for one in cell if one is not None])
        return measure(cell)

    return of_all


def _in_json(cell: Cell) -> int:
    if not isinstance(cell, str) or _EXPONENT.search(cell) is None:
        return 0
    # Without what a backslash stands before, each quote begins a string or ends one.
    outside = cell.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    return _in_text(" ".join(outside))


def _in_text(cell: Cell) -> int:
    if not isinstance(cell, str):
        return 0
    grown = 0
    for found in _EXPONENT.finditer(cell):
        if _is_number(cell, found.start()):
            # With more digits, Postgres refuses it.
            exponent = int(found[2].replace("_", "")[:7])
            grown += min(exponent, _BEHIND if found[1] == "-" else _BEFORE)
            if grown > MAX_VALUE_BYTES:
                break
    return grown


def _is_number(text: str, end: int) -> bool:
    """Whether the digits before ``end`` begin a number, and are not the end of a word."""
    near = text[max(0, end - 40) : end].rstrip(_MANTISSA)
    return not near or not near[-1].isalnum()


def numeric_growth(image: bytes | memoryview) -> int:
    """By how much a numeric grows that is held as ``numeric_send`` makes it."""
    weight, scale = int.from_bytes(image[2:4], "big", signed=True), int.from_bytes(image[6:8], "big")
    return max(0, 4 * max(0, weight + 1) + scale - len(image))
