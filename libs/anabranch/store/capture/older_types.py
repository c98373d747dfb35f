"""Values of types that were altered in themselves, while they kept their numbers: from the bytes that Postgres sent of
them then to those that it takes today. No I/O.

Types are described as in ``ddl.shapes`` (``deep``). Attributes of composite types are matched by their numbers, labels
of enumerations by theirs: what was taken out is left out, what was put in is NULL, and a label has its name of today.
Altering a type locks no table, so that a value may be as its type was still earlier than it should be; how it was shows
in it, by the attributes that it has and the labels that it names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from anabranch.errors import ServerError
from anabranch.store.capture.rows import fields_of, image_of

Deep = Mapping[str, Any]
Field = tuple[int, bytes | None]

_int = struct.Struct(">i")


class StrangeValueError(ServerError, ValueError):
    """A value is as none of the types that it may be of."""


def added_types(were: Sequence[Deep], now: Deep) -> set[str]:
    """The types of the attributes that a type has now and had not at some time: their numbers are needed."""
    found: set[str] = set()
    if "row" in now:
        for number, _, kind, inner in now["row"]:
            before = [_attributes(deep).get(number) for deep in were]
            if None in before:
                found.add(kind)
            if inner is not None:
                found |= added_types([one[1] for one in before if one is not None and one[1] is not None], inner)
    for within in _WITHIN & now.keys():
        found |= added_types([deep[within] for deep in were if deep.get(within)], now[within])
    return found


def brought(data: bytes, were: Sequence[Deep], now: Deep, oid_of: Callable[[str], int]) -> bytes:
    """The bytes of a value of a type that is ``now`` and was one of ``were``, the likeliest first. ``oid_of`` gives the
    numbers of ``added_types``.

    Raises:
        StrangeValueError: it is as none of these.
    """
    if "enum" in now:
        return _label(data.decode(), were, now).encode()
    if "row" in now:
        return image_of(list(_row(list(fields_of(data)), were, now, oid_of)))
    if "array" in now:
        return _array(data, [deep["array"] for deep in were if "array" in deep], now["array"], oid_of)
    if now.get("of"):
        return brought(data, [deep["of"] for deep in were if deep.get("of")], now["of"], oid_of)
    return data


_WITHIN = frozenset({"array", "of"})


def _attributes(deep: Deep) -> dict[int, tuple[str, Deep | None]]:
    return {number: (kind, inner) for number, _, kind, inner in deep.get("row", ())}


def _label(label: str, were: Sequence[Deep], now: Deep) -> str:
    names = dict(now["enum"])
    for deep in were:
        for number, name in deep.get("enum", ()):
            if name == label and number in names:
                return str(names[number])
    if label in names.values():
        return label
    raise StrangeValueError(f"no label was {label!r}")


def _row(fields: list[Field], were: Sequence[Deep], now: Deep, oid_of: Callable[[str], int]) -> Iterator[Field]:
    was = next((deep for deep in (*were, now) if len(deep.get("row", ())) == len(fields)), None)
    if was is None:
        raise StrangeValueError(f"it never had {len(fields)} attributes")
    there = dict(zip(_attributes(was), fields, strict=True))
    for number, (kind, inner) in _attributes(now).items():
        if number not in there:
            yield oid_of(kind), None
            continue
        oid, data = there[number]
        if data is not None and inner is not None:
            inner_were = [_attributes(deep).get(number, ("", None))[1] for deep in were]
            data = brought(data, [deep for deep in inner_were if deep is not None], inner, oid_of)
        yield oid, data


def _array(data: bytes, were: Sequence[Deep], now: Deep, oid_of: Callable[[str], int]) -> bytes:
    """Of an array: the number of dimensions, flags, the elements' type, two numbers for each dimension, elements."""
    (dimensions,) = _int.unpack_from(data)
    at = 3 * _int.size + 2 * _int.size * dimensions
    parts = [data[:at]]
    while at < len(data):
        (size,) = _int.unpack_from(data, at)
        at += _int.size
        if size < 0:
            parts.append(_int.pack(size))
            continue
        element = brought(data[at : at + size], were, now, oid_of)
        parts += [_int.pack(len(element)), element]
        at += size
    return b"".join(parts)
