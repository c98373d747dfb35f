"""Postgres types: the kind that carries each, and whether it may be in a key.

=====================================================  =========
type                                                   kind
=====================================================  =========
boolean                                                BOOL
smallint, integer, bigint                              INT64
real, double precision                                 DOUBLE
text, varchar, char(n), name, every enum               STRING
bytea                                                  BYTES
numeric                                                DECIMAL
timestamp with and without time zone                   TIMESTAMP
date                                                   DATE
time without time zone                                 TIME
json, jsonb                                            JSON
uuid                                                   UUID
arrays of the above                                    ARRAY
everything else, arrays of everything else             LITERAL
=====================================================  =========

A domain is carried as its base type; Postgres judges the domain's further checks. A LITERAL is the text that the type's
output function prints (not the result of a cast to text: for inet and cidr they differ).

A type that gets a kind of its own leaves LITERAL: every table that has it drifts then and must be added anew, and a
release without the kind can't read it (devices set such a table aside). Where equal values print differently, as 1
month and 30 days do, ``REFUSED_KEYS`` needs the kind; LITERAL refuses such keys already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.values.kinds import Kind

_KINDS: Mapping[str, Kind] = {
    "bool": Kind.BOOL,
    "int2": Kind.INT64,
    "int4": Kind.INT64,
    "int8": Kind.INT64,
    "float4": Kind.DOUBLE,
    "float8": Kind.DOUBLE,
    "text": Kind.STRING,
    "varchar": Kind.STRING,
    "bpchar": Kind.STRING,
    "name": Kind.STRING,
    "bytea": Kind.BYTES,
    "numeric": Kind.DECIMAL,
    "timestamp": Kind.TIMESTAMP,
    "timestamptz": Kind.TIMESTAMP,
    "date": Kind.DATE,
    "time": Kind.TIME,
    "json": Kind.JSON,
    "jsonb": Kind.JSON,
    "uuid": Kind.UUID,
}
"""By the type's name in pg_catalog."""

REFUSED_KEYS: Mapping[Kind, str] = {
    Kind.DOUBLE: "floating point numbers, which are equal in ways that their text doesn't show",
    Kind.DECIMAL: "numeric, where 1.0 and 1.00 are equal",
    Kind.JSON: "json, which has no text of its own",
    Kind.ARRAY: "an array",
}
"""The reasons why no column of these kinds may be in a key. (A LITERAL may not either: see ``why_no_key``.)"""
_ROUNDED = frozenset({"timestamp", "timestamptz", "time"})


@dataclass(frozen=True, slots=True)
class TypeRow:
    """A row of pg_type. ``typtype`` and ``category`` are its letters there; ``element`` is the element's
    number of a true array, else 0; ``base`` that of a domain's base type, else 0; ``modifier`` a domain's
    modifier, else -1."""

    oid: int
    schema_name: str
    name: str
    typtype: str
    category: str
    element: int
    base: int
    modifier: int
    not_null: bool
    has_default: bool


Types = Mapping[int, TypeRow]
"""Types by their numbers, with all types that they are made of."""


def base_type(types: Types, oid: int) -> TypeRow:
    """The type below all domains. In Postgres no domain is based on itself, so the way down ends."""
    row = types[oid]
    while row.typtype == "d":
        row = types[row.base]
    return row


def kinds_of(types: Types, oid: int) -> tuple[Kind, Kind | None]:
    """The kind that carries a type, and for an array that of its elements."""
    row = base_type(types, oid)
    if row.typtype == "e":
        return Kind.STRING, None
    if row.schema_name == "pg_catalog":
        if row.name in _KINDS:
            return _KINDS[row.name], None
        # These two count from zero and have no second dimension: a device does not treat them as arrays.
        if row.name in ("int2vector", "oidvector"):
            return Kind.LITERAL, None
    if row.category == "A" and row.element:
        element, _ = kinds_of(types, row.element)
        if element not in (Kind.LITERAL, Kind.ARRAY):
            return Kind.ARRAY, element
    return Kind.LITERAL, None


def not_null(types: Types, oid: int) -> bool:
    """Whether a domain on the way down refuses NULL."""
    return any(row.not_null for row in _way_down(types, oid))


def has_default(types: Types, oid: int) -> bool:
    """Whether a domain on the way down has a default."""
    return any(row.has_default for row in _way_down(types, oid))


def why_no_key(types: Types, oid: int, modifier: int, deterministic: bool) -> str | None:
    """The reason why a column of this type, with its modifier (-1: none) and collation, can't be in a key; None where
    it can.

    A key is compared as Postgres prints it: two values that are equal in Postgres must print alike, and a stored value
    must print as the value that was sent.
    """
    row = base_type(types, oid)
    kind, _ = kinds_of(types, oid)
    if row.name == "citext":
        return "citext, where A and a are equal"
    if row.name == "bpchar" and row.schema_name == "pg_catalog":
        return "char(n), where trailing blanks don't count"
    if kind in REFUSED_KEYS:
        return REFUSED_KEYS[kind]
    if kind is Kind.LITERAL:
        return f"{row.name}, a type whose text is not known to be unique for its value"
    if not deterministic:
        return "text under a nondeterministic collation, where different texts are equal"
    modifiers = [modifier, *(r.modifier for r in _way_down(types, oid))]
    if row.name in _ROUNDED and any(0 <= m < 6 for m in modifiers):
        return f"{row.name} with a precision, to which values are rounded"
    return None


def _way_down(types: Types, oid: int) -> list[TypeRow]:
    rows = [types[oid]]
    while rows[-1].typtype == "d":
        rows.append(types[rows[-1].base])
    return rows
