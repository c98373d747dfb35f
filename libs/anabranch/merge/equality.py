"""Equality of cells, exact: the comparison by which conflicts are judged."""

from __future__ import annotations

import struct

from anabranch.merge.model import Cell

_bits = struct.Struct(">d").pack


def same(a: Cell, b: Cell) -> bool:
    """Whether two cells are one value, exactly as Postgres stores it.

    Floats are compared by their bits, all NaN being one; a boolean is no integer, an integer no float; a
    decimal is its text, so that 1.10 is not 1.1; arrays are compared element by element.
    """
    if a is b:
        return True
    if isinstance(a, str):
        return isinstance(b, str) and a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return bool(a != a and b != b) or _bits(a) == _bits(b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
