"""Kinds: how the values of each Postgres type are carried."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """How a column's values are carried. The numbers are those of ``anabranch.v1.ColumnKind``."""

    BOOL = 1
    INT64 = 2
    DOUBLE = 3
    STRING = 4
    BYTES = 5
    DECIMAL = 6
    TIMESTAMP = 7
    DATE = 8
    TIME = 9
    JSON = 10
    UUID = 11
    ARRAY = 12
    LITERAL = 13
