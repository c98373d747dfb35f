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

SQL NULL is ``None`` in every kind. An array with lower bounds other than one, and a timestamp beyond 64 bits of
microseconds (after the year 294246), are held as :class:`Literal`, their Postgres text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias, Union

from anabranch.schema.table import Kind, Table


class Literal(str):
    """A value held as its Postgres text in a column whose kind has another form."""

    __slots__ = ()


Cell: TypeAlias = Union[bool, int, float, str, bytes, "tuple[Cell, ...]", None]

TIMESTAMP_MINUS_INFINITY = -(2**63)
TIMESTAMP_INFINITY = 2**63 - 1
DATE_MINUS_INFINITY = -(2**31)
DATE_INFINITY = 2**31 - 1


def _key_part(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return "t" if cell else "f"
    if isinstance(cell, int):
        return str(cell)
    if isinstance(cell, bytes):
        return cell.hex()
    raise ValueError("a key's cell is text, a number, a boolean or bytes")


def key_text(key: Sequence[Cell]) -> str:
    """One text that stands for a key, unambiguous within its table.

    ``key`` holds the key's cells in the key's order. A key of one column is that cell's text; a longer one is the
    JSON array of its cells' texts.

    Raises:
        ValueError: a cell is NULL or of a type that no key may have.
    """
    if len(key) == 1:
        return _key_part(key[0])
    return json.dumps([_key_part(c) for c in key], ensure_ascii=False, separators=(",", ":"))


def _key_cell(kind: Kind, part: str) -> Cell:
    match kind:
        case Kind.BOOL:
            return part == "t"
        case Kind.BYTES:
            return bytes.fromhex(part)
        case Kind.TIMESTAMP if not part.removeprefix("-").isdecimal():
            return Literal(part)
        case Kind.INT64 | Kind.DATE | Kind.TIME | Kind.TIMESTAMP:
            return int(part)
    return part


def key_cells(table: Table, key: str) -> tuple[Cell, ...]:
    """The cells of a key, in the key's order, from its text: the inverse of ``key_text``.

    Raises:
        ValueError: ``key`` is no key text of ``table``.
    """
    parts = [key] if len(table.key_columns) == 1 else json.loads(key)
    kinds = [table.by_name[name].kind for name in table.key_columns]
    return tuple(_key_cell(kind, part) for kind, part in zip(kinds, parts, strict=True))
