"""The text of a key, which represents it in the log, on a device and in messages, and the cells of such a text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from anabranch.values.cells import Cell, Literal
from anabranch.values.kinds import TEXT_KINDS, Kind, NoFormError
from anabranch.values.table import Table


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
    """The text that represents a key, unambiguous within its table.

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
    if kind in TEXT_KINDS:
        return part
    raise NoFormError(kind, __name__)


def key_cells(table: Table, key: str) -> tuple[Cell, ...]:
    """The cells of a key, in the key's order, from its text: the inverse of ``key_text``.

    Raises:
        ValueError: ``key`` is no key text of ``table``.
    """
    parts = [key] if len(table.key_columns) == 1 else json.loads(key)
    kinds = [table.by_name[name].kind for name in table.key_columns]
    return tuple(_key_cell(kind, part) for kind, part in zip(kinds, parts, strict=True))
