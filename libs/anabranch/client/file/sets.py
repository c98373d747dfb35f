"""Statements over many values: a few statements for any number of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

_CHUNK = 512


def select_in(
    conn: sqlite3.Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """All rows of ``sql``, whose ``{in}`` stands for a list of ``values``; ``before``: the parameters ahead of it."""
    rows: list[tuple[Any, ...]] = []
    for sql_part, parameters in _parts(sql, values, before):
        rows += conn.execute(sql_part, parameters).fetchall()
    return rows


def change_in(conn: sqlite3.Connection, sql: str, values: Iterable[Any], before: Sequence[Any] = ()) -> None:
    """Run ``sql``, which changes rows and returns none, for all ``values``; the rest is as in ``select_in``."""
    for sql_part, parameters in _parts(sql, values, before):
        conn.execute(sql_part, parameters)


def _parts(sql: str, values: Iterable[Any], before: Sequence[Any]) -> Iterable[tuple[str, list[Any]]]:
    values = list(values)
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        # Padded to a power of two, so that few statements are ever prepared.
        size = 1 << (len(chunk) - 1).bit_length()
        chunk += [chunk[-1]] * (size - len(chunk))
        yield sql.replace("{in}", f"({', '.join('?' * size)})"), [*before, *chunk]
