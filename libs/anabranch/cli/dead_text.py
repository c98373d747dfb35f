"""Dead letters as text and as JSON, short enough for a terminal: long values are cut, and their length is given.

Only the standard library and what a device has are imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from anabranch.client.events import DeadLetter

CHARACTERS = 200
"""The most characters of a value that are shown. A bytea is cut the same, though its digits would be twice as many."""
ROWS = 20
"""The most rows of a mutation that are shown."""


def lines(letter: DeadLetter, *, full: bool) -> Iterator[str]:
    """A letter's attempt, why it was refused, and the server's row then and now. ``full``: every value and row."""
    yield f"letter      {letter.id}, dead since {moment(letter.died_ms)}"
    yield f"why not     {letter.reason}: {message(letter, full=full)}"
    if letter.constraint or letter.sqlstate:
        yield f"constraint  {letter.constraint} (SQLSTATE {letter.sqlstate})"
    cut = False
    for kind, table, rows in letter.mutations:
        shown = rows if full else rows[:ROWS]
        for row in shown:
            text = _row(row, full=full)
            cut = cut or text != _row(row, full=True)
            yield f"tried       {kind} {table}: {text}"
        if len(shown) < len(rows):
            cut = True
            yield f"            {kind} {table}: {len(rows) - len(shown):,} more rows"
    if letter.key:
        yield f"refused     {letter.table}, key {', '.join(_key(part, full=full) for part in letter.key)}"
        for title, server_row in (("then", letter.server_row), ("now ", letter.server_row_now)):
            text = _row(server_row, full=full)
            cut = cut or text != _row(server_row, full=True)
            yield f"server {title} {text}"
    if letter.still_shown:
        yield "undo        FAILED: what it showed is still shown, until its table has been pulled again"
    if cut:
        yield "not all is shown: --full prints all of it, --out FILE writes it into a file as JSON"


def message(letter: DeadLetter, *, full: bool) -> str:
    """Why a letter was refused, on one line."""
    text = " ".join(letter.message.split())
    return text if full or len(text) <= 2 * CHARACTERS else f"{text[: 2 * CHARACTERS]}… ({len(text):,} characters)"


def moment(ms: int) -> str:
    """A time in UTC; as it is where it is damaged, and can't be one."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OSError, OverflowError, TypeError, ValueError):
        return f"{ms!r} ms"


def as_json(letter: DeadLetter, *, full: bool) -> dict[str, Any]:
    """A letter as an object for JSON. Unless ``full``, a long value is an object of its beginning and its length, and
    rows beyond ``ROWS`` are only counted."""
    return {
        "id": letter.id,
        "reason": letter.reason,
        "message": message(letter, full=full),
        "constraint": letter.constraint,
        "sqlstate": letter.sqlstate,
        "died_ms": letter.died_ms,
        "tried": [_mutation(kind, table, rows, full=full) for kind, table, rows in letter.mutations],
        "table": letter.table,
        "key": [_cell(cell, full=full) for cell in letter.key],
        "server_row_then": _cells(letter.server_row, full=full),
        "server_row_now": _cells(letter.server_row_now, full=full),
        "still_shown": letter.still_shown,
    }


def _mutation(kind: str, table: str, rows: Sequence[Mapping[str, Any]], *, full: bool) -> dict[str, Any]:
    shown = rows if full else rows[:ROWS]
    left_out = {"rows_left_out": len(rows) - len(shown)} if len(shown) < len(rows) else {}
    return {"type": kind, "table": table, "rows": [_cells(row, full=full) for row in shown], **left_out}


def _cells(row: Mapping[str, Any] | None, *, full: bool) -> dict[str, Any] | None:
    return None if row is None else {name: _cell(value, full=full) for name, value in row.items()}


def _cell(value: Any, *, full: bool) -> Any:
    if isinstance(value, bytes):
        if full or len(value) * 2 <= CHARACTERS:
            return value.hex()
        return {"begins": value[: CHARACTERS // 2].hex(), "bytes": len(value)}
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_bytes)
    return value if full or len(text) <= CHARACTERS else {"begins": text[:CHARACTERS], "characters": len(text)}


def _row(row: Mapping[str, Any] | None, *, full: bool) -> str:
    if row is None:
        return "no row"
    parts = (f"{json.dumps(name, ensure_ascii=False)}: {_text(value, full=full)}" for name, value in row.items())
    return "{" + ", ".join(parts) + "}"


def _text(value: Any, *, full: bool) -> str:
    cell = _cell(value, full=full)
    if isinstance(cell, dict) and cell is not value:
        unit = "bytes" if "bytes" in cell else "characters"
        return f'{json.dumps(cell["begins"], ensure_ascii=False)[:-1]}…" ({cell[unit]:,} {unit})'
    return json.dumps(cell, ensure_ascii=False, default=_bytes)


def _key(value: Any, *, full: bool) -> str:
    text = _text(value, full=full)
    return json.loads(text) if isinstance(value, str) and text.endswith('"') else text


def _bytes(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")
