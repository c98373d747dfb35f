"""By how much captured rows grow where they are decoded: an image holds a numeric in few bytes, and it is printed with
all of its digits (``values.growth``). Other values that grow stand in images as they are printed."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from anabranch.store.capture.captured import Captured
from anabranch.values import Kind, Table
from anabranch.values.growth import growth_of, numeric_growth

Growing = Mapping[int, Mapping[int, bool]]
"""By the number of a table, the places of its columns whose numerics grow, and whether these are in arrays. Tables
without such columns are left out."""

_count_of = struct.Struct(">i").unpack_from
_field_of = struct.Struct(">Ii").unpack_from
_ARRAY_HEAD, _DIMENSION = 12, 8


def growing_columns(tables: Sequence[Table]) -> Growing:
    """Those of ``tables``."""
    found: dict[int, dict[int, bool]] = {}
    for table in tables:
        for place, column in enumerate(table.columns):
            if Kind.DECIMAL in (column.kind, column.element_kind) and growth_of(column) is not None:
                found.setdefault(table.id, {})[place] = column.kind is Kind.ARRAY
    return found


def growth(growing: Growing, rows: Sequence[Captured]) -> int:
    """By how many bytes the images of captured rows grow."""
    return sum([row_growth(growing, row) for row in rows]) if growing else 0


def row_growth(growing: Growing, row: Captured) -> int:
    """By how many bytes the images of one captured row grow."""
    places = growing.get(row.table_id)
    if places is None:
        return 0
    return sum([image_growth(image, places) for image in (row.old, row.new) if image is not None])


def image_growth(image: bytes, places: Mapping[int, bool]) -> int:
    """By how many bytes an image grows; ``places``: of its table, not empty."""
    grown, at, last = 0, 4, max(places)
    (count,) = _count_of(image)
    for place in range(min(count, last + 1)):
        _, size = _field_of(image, at)
        at += 8
        if size > 0:
            if place in places:
                value = image[at : at + size]
                grown += _array_growth(value) if places[place] else numeric_growth(value)
            at += size
    return grown


def _array_growth(array: bytes) -> int:
    (dimensions,) = _count_of(array)
    grown, at = 0, _ARRAY_HEAD + _DIMENSION * dimensions
    while at < len(array):
        (size,) = _count_of(array, at)
        at += 4
        if size > 0:
            grown += numeric_growth(array[at : at + size])
            at += size
    return grown
