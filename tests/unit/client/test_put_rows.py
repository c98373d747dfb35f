"""Many rows enter a table by a few statements, in their order, however many they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from anabranch.client.file.sets import put_rows


def insert(rows: int) -> str:
    return f"INSERT INTO t (id, n) VALUES {', '.join(['(?, ?)'] * rows)}"


@pytest.fixture
def conn() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        made.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER UNIQUE)")
        yield made


@pytest.mark.parametrize("count", [0, 1, 49, 50, 51, 99, 100, 101, 1_003])
@pytest.mark.parametrize("lazy", [False, True])
def test_every_row_enters_in_its_order(conn: sqlite3.Connection, count: int, lazy: bool) -> None:
    ran: list[str] = []
    conn.set_trace_callback(ran.append)
    rows = [(None, n) for n in range(count)]
    put_rows(conn, insert, 2, iter(rows) if lazy else rows)
    conn.set_trace_callback(None)
    assert [n for (n,) in conn.execute("SELECT n FROM t ORDER BY id")] == list(range(count))
    assert len(ran) == count // 50 + count % 50


@pytest.mark.parametrize("limit", [1, 3, 4, 99])
def test_no_statement_has_more_values_than_sqlite_takes(conn: sqlite3.Connection, limit: int) -> None:
    """A table of a thousand columns has no room for fifty of its rows."""
    conn.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, max(limit, 2))
    put_rows(conn, insert, 2, [(None, n) for n in range(120)])
    assert conn.execute("SELECT count(*), sum(n) FROM t").fetchone() == (120, 119 * 60)


def test_a_row_that_is_refused_is_an_error_wherever_it_stands(conn: sqlite3.Connection) -> None:
    for at in (3, 60, 70):
        rows = [(None, n) for n in range(75)]
        rows[at] = (None, 0)
        with pytest.raises(sqlite3.IntegrityError):
            put_rows(conn, insert, 2, rows)
        conn.execute("DELETE FROM t")
