"""Counts the fields of a serialized message before it is parsed.

A parsed message takes far more memory than its bytes where these hold many small submessages: an empty one is two
bytes on the wire, and about seventy when it is parsed. Each is a field of the message that holds it, so the number of
fields bounds what a message expands to. The bytes are walked by tags and lengths; large fields cost no more than small
ones, and the walk ends at the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

FIELD_BYTES = 72
"""Bytes of memory that a field takes at most when it is parsed."""

Shape = Mapping[int, "Shape"]
"""The fields of a message that hold messages, by number, each with the shape of its own. Those left out hold no
further fields that count."""
FLAT: Shape = {}
"""The shape by which only the fields of the outermost message count."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@cache
def shape_of(descriptor: Any) -> Shape:
    """The shape of a message type, a ``google.protobuf.descriptor.Descriptor``. A type may hold itself."""
    return _shape(descriptor, {})


def _shape(descriptor: Any, known: dict[str, dict[int, Shape]]) -> Shape:
    found = known.get(descriptor.full_name)
    if found is None:
        found = known[descriptor.full_name] = {}
        for field in descriptor.fields:
            if field.message_type is not None and _counts(field.message_type, set()):
                found[field.number] = _shape(field.message_type, known)
    return found


def _counts(descriptor: Any, seen: set[str]) -> bool:
    """Whether the message may hold more fields than a few."""
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    return any(
        field.is_repeated or (field.message_type is not None and _counts(field.message_type, seen))
        for field in descriptor.fields
    )


def count_fields(raw: bytes, shape: Shape, most: int) -> int:
    """The number of fields in ``raw``; ``most + 1`` where there are more. Bytes that are no message are counted as far
    as they can be read: parsing them fails."""
    place, end, fields = 0, len(raw), 0
    outer: list[tuple[int, Shape]] = []
    try:
        while True:
            while place >= end:
                if not outer:
                    return fields
                end, shape = outer.pop()
            fields += 1
            if fields > most:
                return fields
            tag = raw[place]
            place += 1
            if tag > 0x7F:
                tag, place = _varint(raw, place - 1)
            if tag < 8:
                # There is no field 0.
                return fields
            kind = tag & 7
            if kind == _BYTES:
                size = raw[place]
                place += 1
                if size > 0x7F:
                    size, place = _varint(raw, place - 1)
                inner = shape.get(tag >> 3)
                if inner is None:
                    place += size
                else:
                    outer.append((end, shape))
                    end, shape = place + size, inner
            elif kind == _VARINT:
                while raw[place] > 0x7F:
                    place += 1
                place += 1
            elif kind == _FIXED64:
                place += 8
            elif kind == _FIXED32:
                place += 4
    except IndexError:
        return fields


def _varint(raw: bytes, place: int) -> tuple[int, int]:
    """A number, and the place behind it."""
    value = shift = 0
    while raw[place] > 0x7F:
        value |= (raw[place] & 0x7F) << shift
        shift += 7
        place += 1
    return value | raw[place] << shift, place + 1
