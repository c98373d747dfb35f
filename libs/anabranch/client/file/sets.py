"""Statements over many values: a few statements for any number of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

_CHUNK = 512
_ROWS = 50
"""Rows of one INSERT: more of them gain little, and one of its own for each row costs half as much again."""


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


def put_rows(conn: sqlite3.Connection, sql: Callable[[int], str], width: int, rows: Iterable[Sequence[Any]]) -> None:
    """Add rows of ``width`` values in their order; ``sql`` gives the statement that adds so many of them."""
    each = min(_ROWS, conn.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width)
    if each < 2:
        conn.executemany(sql(1), rows)
        return
    values, rest = chain.from_iterable(rows), list[Any]()

    def whole() -> Iterator[tuple[Any, ...]]:
        while len(block := tuple(islice(values, each * width))) == each * width:
            yield block
        rest.extend(block)

    conn.executemany(sql(each), whole())
    conn.executemany(sql(1), [rest[at : at + width] for at in range(0, len(rest), width)])
