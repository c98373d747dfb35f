"""Cells: the plain Python form of one value, the same in the resolver, in merge and on a device.

============  ==========================================================================================
kind          cell
============  ==========================================================================================
BOOL          ``bool``
INT64         ``int`` within 64 bits
DOUBLE        ``float`` (a real is widened exactly)
STRING        ``str``
BYTES         ``bytes``
DECIMAL       ``str`` as Postgres prints it
TIMESTAMP     ``int`` microseconds since 1970-01-01; -2**63 and 2**63-1 are the infinities
DATE          ``int`` days since 1970-01-01; -2**31 and 2**31-1 are the infinities
TIME          ``int`` microseconds since midnight
JSON          ``str`` as Postgres prints it
UUID          ``str``, lower case with dashes
ARRAY         ``tuple`` of cells of the element's kind, nested for further dimensions
LITERAL       ``str``, the type's text
============  ==========================================================================================

A tuple is an array everywhere (rules, sums, SQLite, functions): no other kind's cell may be one.

SQL NULL is ``None`` in every kind. An array with lower bounds other than one, and a timestamp beyond 64 bits of
microseconds (after the year 294246), are held as :class:`Literal`, their Postgres text.
"""

from __future__ import annotations

from typing import TypeAlias, Union


class Literal(str):
    """A value held as its Postgres text in a column whose kind has another form."""

    __slots__ = ()


Cell: TypeAlias = Union[bool, int, float, str, bytes, "tuple[Cell, ...]", None]

TIMESTAMP_MINUS_INFINITY = -(2**63)
TIMESTAMP_INFINITY = 2**63 - 1
DATE_MINUS_INFINITY = -(2**31)
DATE_INFINITY = 2**31 - 1
