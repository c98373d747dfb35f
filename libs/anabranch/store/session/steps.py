"""One implementation for a synchronous and an asynchronous session: work as a generator that yields statements.

A function that needs several statements yields each and is sent its rows; ``run`` and ``arun`` put them to a
connection, all in one transaction (in a savepoint where the caller has one open).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, LiteralString, NamedTuple, TypeAlias, TypeVar

import psycopg

Rows: TypeAlias = list[tuple[Any, ...]]


class Statement(NamedTuple):
    """A statement with its parameters, by name."""

    sql: LiteralString
    parameters: dict[str, Any] | None = None


_R = TypeVar("_R")
Steps: TypeAlias = Generator[Statement, Rows, _R]


def run(conn: psycopg.Connection[Any], steps: Steps[_R]) -> _R:
    """Put the statements of ``steps`` to ``conn`` one after the other; return the result of ``steps``."""
    with conn.transaction(), conn.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
        try:
            statement = next(steps)
            while True:
                rows = cursor.execute(statement.sql, statement.parameters).fetchall()
                statement = steps.send(rows)
        except StopIteration as end:
            result: _R = end.value
            return result


async def arun(conn: psycopg.AsyncConnection[Any], steps: Steps[_R]) -> _R:
    """``run`` for asyncio."""
    async with conn.transaction(), conn.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
        try:
            statement = next(steps)
            while True:
                await cursor.execute(statement.sql, statement.parameters)
                statement = steps.send(await cursor.fetchall())
        except StopIteration as end:
            result: _R = end.value
            return result
