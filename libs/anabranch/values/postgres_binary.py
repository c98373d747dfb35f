"""Cells as parameters in Postgres's binary format, built by hand.

A set statement takes one array for each column (``unnest($1::int8[], $2::text[])``). psycopg's own dumpers
cost several times what the database needs for such a statement, so the arrays are made here, a whole column
at a time. A binary array of one dimension is: 32 bit number of dimensions (0 when empty), 32 bit flag "has
NULLs", oid of the element type, number of elements, lower bound 1; then for each element its 32 bit length
(-1 is NULL) and its bytes. All big-endian. The epoch of Postgres is 2000-01-01.

The sessions that take them: ``anabranch.store.session.binary``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from anabranch.errors import AnabranchError
from anabranch.values.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
)

Column = Sequence[Any]
"""One cell for each row."""

EPOCH_US = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970."""
EPOCH_DAYS = 10_957
"""2000-01-01 in days since 1970."""

BOOL, BYTEA, INT8, TEXT, FLOAT8, DATE, TIME, TIMESTAMP, TIMESTAMPTZ = (
    16,
    17,
    20,
    25,
    701,
    1082,
    1083,
    1114,
    1184,
)
"""Oids of element types."""
ARRAY_OF = {
    BOOL: 1000,
    BYTEA: 1001,
    INT8: 1016,
    TEXT: 1009,
    FLOAT8: 1022,
    DATE: 1182,
    TIME: 1183,
    TIMESTAMP: 1115,
    TIMESTAMPTZ: 1185,
}
"""Oid of the array type of each."""

_header = struct.Struct(">iiIii").pack
_length = struct.Struct(">i").pack
_int8 = struct.Struct(">q").pack
_NULL = b"\xff\xff\xff\xff"
_LENGTHS = tuple(_length(n) for n in range(1024))
_LENGTH_TEXTS = tuple(raw.decode("latin-1") for raw in _LENGTHS)
_TRUE, _FALSE = b"\x00\x00\x00\x01\x01", b"\x00\x00\x00\x01\x00"


class NulInTextError(AnabranchError, ValueError):
    """Text holds a NUL character, which Postgres can't store. ``column`` names the column."""

    REASON = "NUL_IN_TEXT"

    def __init__(self, column: str) -> None:
        super().__init__(f'column "{column}": text can not hold a NUL character')
        self.column = column


class Parameter(NamedTuple):
    """A parameter as it goes over the wire. ``oid`` is its type, 0 to let the statement decide; ``binary``
    its format."""

    oid: int
    data: bytes
    binary: bool = True


def int8(value: int) -> Parameter:
    """One bigint."""
    return Parameter(INT8, _int8(value))


def text(value: str) -> Parameter:
    """One text without NUL."""
    return Parameter(TEXT, value.encode())


def bytea(value: bytes) -> Parameter:
    """One bytea."""
    return Parameter(BYTEA, value)


def _array(element: int, count: int, has_null: bool, body: bytes | bytearray) -> Parameter:
    if not count:
        return Parameter(ARRAY_OF[element], struct.pack(">iiI", 0, 0, element))
    return Parameter(ARRAY_OF[element], _header(1, has_null, element, count, 1) + body)


def _is_constant(cells: Column) -> bool:
    """Whether all cells are equal: many columns of a group's records hold one value. Not usable for floats, where 0.0
    equals -0.0."""
    return bool(cells) and cells[0] is cells[-1] and cells.count(cells[0]) == len(cells)


def _fixed(element: int, code: str, size: int, cells: Column) -> Parameter:
    """An array of numbers of ``size`` bytes, packed by ``code``. Without NULLs the column is packed at once and then
    spread over the elements, byte by byte of the number, without a loop over the cells."""
    count = len(cells)
    if None in cells:
        pack = struct.Struct(f">i{code}").pack
        return _array(element, count, True, b"".join([_NULL if c is None else pack(size, c) for c in cells]))
    if element != FLOAT8 and _is_constant(cells):
        return _array(element, count, False, struct.pack(f">i{code}", size, cells[0]) * count)
    packed = struct.pack(f">{count}{code}", *cells)
    step = size + 4
    body = bytearray(step * count)
    body[3::step] = bytes((size,)) * count
    for i in range(size):
        body[4 + i :: step] = packed[i::size]
    return _array(element, count, False, body)


def int8_array(cells: Column) -> Parameter:
    """Integers of 64 bits as bigint[]."""
    return _fixed(INT8, "q", 8, cells)


def float8_array(cells: Column) -> Parameter:
    """Floats as float8[], by their bits."""
    return _fixed(FLOAT8, "d", 8, cells)


def bool_array(cells: Column) -> Parameter:
    """Booleans as bool[]."""
    body = b"".join([_NULL if c is None else _TRUE if c else _FALSE for c in cells])
    return _array(BOOL, len(cells), None in cells, body)


def _moved(cells: Column, epoch: int, first: int, last: int) -> Column:
    """Cells counted from ``epoch``; ``first`` and ``last`` are the infinities, which stay. A cell that falls below the
    first after the change becomes a value that Postgres refuses as out of range."""
    if cells and None not in cells and min(cells) > first + epoch and max(cells) < last:
        return [c - epoch for c in cells]
    return [None if c is None else c if c in (first, last) else max(c - epoch, first + 1) for c in cells]


def timestamp_array(cells: Column, *, zone: bool) -> Parameter:
    """Microseconds since 1970 as timestamptz[] (``zone``) or timestamp[]."""
    moved = _moved(cells, EPOCH_US, TIMESTAMP_MINUS_INFINITY, TIMESTAMP_INFINITY)
    return _fixed(TIMESTAMPTZ if zone else TIMESTAMP, "q", 8, moved)


def date_array(cells: Column) -> Parameter:
    """Days since 1970 as date[]."""
    return _fixed(DATE, "i", 4, _moved(cells, EPOCH_DAYS, DATE_MINUS_INFINITY, DATE_INFINITY))


def time_array(cells: Column) -> Parameter:
    """Microseconds since midnight as time[]."""
    return _fixed(TIME, "q", 8, cells)


def _element(cell: bytes | None) -> bytes:
    return _NULL if cell is None else _length(len(cell)) + cell


def _varying(element: int, cells: Sequence[bytes | None], has_null: bool) -> Parameter:
    count = len(cells)
    if has_null:
        return _array(element, count, True, b"".join(map(_element, cells)))
    sizes = list(map(len, cells))  # type: ignore[arg-type]
    if not count:
        return _array(element, 0, False, b"")
    woven = [b""] * (2 * count + 1)
    # With the head among the parts a large array is joined once.
    woven[0] = _header(1, False, element, count, 1)
    woven[1::2] = map(_LENGTHS.__getitem__ if max(sizes) < len(_LENGTHS) else _length, sizes)
    woven[2::2] = cells  # type: ignore[assignment]
    return Parameter(ARRAY_OF[element], b"".join(woven))


def bytea_array(cells: Column) -> Parameter:
    """Bytes as bytea[]."""
    return _varying(BYTEA, cells, None in cells)


def _refuse_nul(text: str, column: str) -> None:
    if "\0" in text:
        raise NulInTextError(column)


def text_array(cells: Column, column: str) -> Parameter:
    """Texts as text[].

    Raises:
        NulInTextError: a cell holds a NUL; ``column`` is the column's name for the error.
    """
    count = len(cells)
    if _is_constant(cells):
        only = cells[0]
        if only is None:
            return _array(TEXT, count, True, _NULL * count)
        _refuse_nul(only, column)
        return _array(TEXT, count, False, _element(only.encode()) * count)
    if None in cells:
        _refuse_nul("".join([c for c in cells if c is not None]), column)
        return _varying(TEXT, [None if c is None else c.encode() for c in cells], True)
    joined = "".join(cells)
    _refuse_nul(joined, column)
    if not joined.isascii():
        return _varying(TEXT, list(map(str.encode, cells)), False)
    # Lengths and texts make one text of single bytes, which is encoded at once.
    sizes = list(map(len, cells))
    size = max(sizes, default=0)
    if size >= len(_LENGTH_TEXTS):
        return _varying(TEXT, list(map(str.encode, cells)), False)
    if size * count == len(joined):
        head = _LENGTH_TEXTS[size]
        body = (head + head.join(cells)) if count else ""
    else:
        woven = [""] * (2 * count)
        woven[0::2] = map(_LENGTH_TEXTS.__getitem__, sizes)
        woven[1::2] = cells
        body = "".join(woven)
    return _array(TEXT, count, False, body.encode("latin-1"))


def typed_text_array(cells: Column, column: str) -> Parameter:
    """Texts as an array of whatever element type the statement names, in Postgres's text format: for types
    whose oids are not fixed, so that each element goes through its type's input function.

    Raises:
        NulInTextError: as ``text_array``.
    """
    elements = ["NULL" if c is None else '"' + c.replace("\\", "\\\\").replace('"', '\\"') + '"' for c in cells]
    joined = "{" + ",".join(elements) + "}"
    _refuse_nul(joined, column)
    return Parameter(0, joined.encode(), False)


ArrayBuilder = Callable[[Column], Parameter]
