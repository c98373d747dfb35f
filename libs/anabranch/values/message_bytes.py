"""Cells to serialized ``anabranch.v1.Value`` messages.

They are built by hand, since that takes a third of the time of building them in protobuf; a test checks that they equal
protobuf's own bytes. The wire format: a field is ``number << 3 | type`` and its content; type 0 is a varint, 1 eight
bytes little-endian, 2 a varint of length and that many bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from anabranch.v1 import value_pb2
from anabranch.values.cells import Cell, Literal
from anabranch.values.kinds import ByKind, Kind
from anabranch.values.messages import ARMS
from anabranch.values.table import Column

_SHORT = 256
"""Heads of lengths below this are made in advance."""
LENGTH_DELIMITED = 2

Writer = Callable[[Any], bytes]
"""Converts a cell to a serialized Value, as an element of a repeated field: its tag, its length and its content."""


_ONE_BYTE = tuple(bytes((n,)) for n in range(128))
_CONTINUED = tuple(int.from_bytes(b"\x80" * n, "little") for n in range(8))
"""The bits that say "more follows" in all but the last byte, by the number of such bytes."""


def varint(number: int) -> bytes:
    """A varint; negative numbers as the ten bytes of their 64 bit complement."""
    if 0 <= number < 128:
        return _ONE_BYTE[number]
    if 0 <= number < 1 << 56:
        # Groups of seven bits moved to groups of eight, by halves, quarters and eighths.
        size = (number.bit_length() + 6) // 7
        number = (number & 0xFFFFFFF) | (number & 0xFFFFFFF0000000) << 4
        number = (number & 0x3FFF00003FFF) | (number & 0xFFFC0000FFFC000) << 2
        number = (number & 0x7F007F007F007F) | (number & 0x3F803F803F803F80) << 1
        return (number | _CONTINUED[size - 1]).to_bytes(size, "little")
    rest = number & 0xFFFF_FFFF_FFFF_FFFF
    parts = []
    while rest > 127:
        parts.append(rest & 127 | 128)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)


def field_number(message: Any, field: str) -> int:
    """A field's number in the contract."""
    return int(message.DESCRIPTOR.fields_by_name[field].number)


def delimited(number: int, content: bytes) -> bytes:
    """A field of type 2."""
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(content)) + content


def _heads(arm: str, outer: bytes) -> tuple[tuple[bytes, ...], Callable[[int], bytes]]:
    """The bytes before a content of each short length, and the function that makes them for any length."""
    inner = varint(field_number(value_pb2.Value, arm) << 3 | LENGTH_DELIMITED)

    def head(size: int) -> bytes:
        content = inner + varint(size)
        return outer + varint(len(content) + size) + content

    return tuple(head(size) for size in range(_SHORT)), head


def _text(arm: str, outer: bytes, null: bytes) -> Writer:
    heads, head = _heads(arm, outer)

    def write(cell: str | None) -> bytes:
        if cell is None:
            return null
        raw = cell.encode()
        size = len(raw)
        return (heads[size] if size < _SHORT else head(size)) + raw

    return write


def _bytes(arm: str, outer: bytes, null: bytes) -> Writer:
    heads, head = _heads(arm, outer)

    def write(cell: bytes | None) -> bytes:
        if cell is None:
            return null
        size = len(cell)
        return (heads[size] if size < _SHORT else head(size)) + cell

    return write


def _integer(arm: str, outer: bytes, null: bytes) -> Writer:
    tag = varint(field_number(value_pb2.Value, arm) << 3)
    literal = _text("text_literal", outer, null)
    # By the number of bytes in the varint.
    heads = tuple(outer + varint(n + len(tag)) + tag for n in range(11))
    small = tuple(heads[1] + varint(n) for n in range(128))

    def write(cell: Any) -> bytes:
        if cell is None:
            return null
        if type(cell) is Literal:
            return literal(cell)
        if 0 <= cell < 128:
            short: bytes = small[cell]
            return short
        number = varint(cell)
        return heads[len(number)] + number

    return write


def _bool(arm: str, outer: bytes, null: bytes) -> Writer:
    tag = outer + b"\x02" + varint(field_number(value_pb2.Value, arm) << 3)
    return {None: null, False: tag + b"\x00", True: tag + b"\x01"}.__getitem__


def _double(arm: str, outer: bytes, null: bytes) -> Writer:
    head = outer + b"\x09" + varint(field_number(value_pb2.Value, arm) << 3 | 1)
    pack = struct.Struct(f"<{len(head)}sd").pack
    return lambda cell: null if cell is None else pack(head, cell)


def _array(arm: str, outer: bytes, null: bytes, element: Kind) -> Writer:
    elements_field = varint(field_number(value_pb2.ArrayValue, "elements") << 3 | LENGTH_DELIMITED)
    scalar = value_writer(element, None, elements_field)
    literal = _text("text_literal", outer, null)
    number = field_number(value_pb2.Value, arm)

    def value(cell: tuple[Any, ...]) -> bytes:
        """A Value without its tag and length."""
        parts = []
        for c in cell:
            if type(c) is tuple:
                content = value(c)
                parts.append(elements_field + varint(len(content)) + content)
            else:
                parts.append(scalar(c))
        return delimited(number, b"".join(parts))

    def write(cell: tuple[Any, ...] | Literal | None) -> bytes:
        if cell is None:
            return null
        if type(cell) is not tuple:
            return literal(cell)
        content = value(cell)
        return outer + varint(len(content)) + content

    return write


_MAKERS: ByKind[Callable[[str, bytes, bytes], Writer]] = ByKind(
    __name__,
    {
        Kind.BOOL: _bool,
        Kind.INT64: _integer,
        Kind.DOUBLE: _double,
        Kind.STRING: _text,
        Kind.BYTES: _bytes,
        Kind.DECIMAL: _text,
        Kind.TIMESTAMP: _integer,
        Kind.DATE: _integer,
        Kind.TIME: _integer,
        Kind.JSON: _text,
        Kind.UUID: _text,
        Kind.LITERAL: _text,
    },
)


@lru_cache(maxsize=256)
def value_writer(kind: Kind, element_kind: Kind | None, outer: bytes) -> Writer:
    """The function that writes cells of ``kind`` as elements of a repeated Value field with the tag ``outer``."""
    # Kept: all tables of a database are compiled anew whenever one is altered.
    null = outer + b"\x02" + varint(field_number(value_pb2.Value, "null_value") << 3) + b"\x00"
    if kind is Kind.ARRAY:
        return _array(ARMS[kind], outer, null, element_kind or Kind.STRING)
    make = _MAKERS[kind]
    return make(ARMS[kind], outer, null)


def large_head(kind: Kind, outer: bytes) -> Callable[[int], bytes]:
    """The function that writes the bytes before a text or bytes of ``kind``, by their length; ``outer`` as in
    ``value_writer``."""
    return _heads(ARMS[kind], outer)[1]


def value_bytes(column: Column) -> Writer:
    """The function that converts a cell of ``column`` to a serialized Value on its own."""
    write = value_writer(column.kind, column.element_kind, b"")

    def alone(cell: Cell) -> bytes:
        # With an empty tag only the length remains before the content.
        raw = write(cell)
        start = 0
        while raw[start] & 128:
            start += 1
        return raw[start + 1 :]

    return alone
