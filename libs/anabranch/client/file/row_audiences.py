"""The audiences of rows of restricted tables, in a table of ours beside the rows: by them the device removes, by
itself, the rows that it may no longer hold.

Invariant, held by every commit: a restricted table has an entry for exactly the rows that its base has, whatever
pending batches show of these. A pull's rows have theirs under the name of the table that takes them. A row's audiences
are one text, since few texts serve many rows; they include those that the device does not hold.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from anabranch.client.file.sets import change_in, select_in

_AT_ONCE = 10_000
NOBODYS: frozenset[str] = frozenset()
"""The audiences of a row that nobody sees."""


def text_of(audiences: Iterable[str]) -> str:
    """Audiences as the file keeps them."""
    return json.dumps(sorted(audiences), ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=10_000)
def of_text(text: str) -> frozenset[str]:
    """Audiences from their text. Raises ValueError, TypeError where it is none of ``text_of``."""
    audiences = frozenset(json.loads(text))
    if not all(isinstance(one, str) for one in audiences):
        raise ValueError("the audiences of a row are no list of texts")
    return audiences


def put(conn: sqlite3.Connection, name: str, rows: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Keep the audiences of rows (key text, audiences) of the table ``name``, in place of those that they had."""
    conn.executemany(
        "INSERT OR REPLACE INTO _db_row_audiences (tbl, key, audiences) VALUES (?, ?, ?)",
        [(name, key, text_of(audiences)) for key, audiences in rows],
    )


def remove(conn: sqlite3.Connection, name: str, keys: Iterable[str]) -> None:
    """Forget the audiences of rows that are gone."""
    change_in(conn, "DELETE FROM _db_row_audiences WHERE tbl = ? AND key IN {in}", keys, (name,))


def clear(conn: sqlite3.Connection, name: str) -> None:
    """Forget the audiences of all rows of a table."""
    conn.execute("DELETE FROM _db_row_audiences WHERE tbl = ?", (name,))


def move(conn: sqlite3.Connection, staged: str, name: str) -> None:
    """Let the rows of a table have the audiences of those that a pull brought beside it."""
    clear(conn, name)
    conn.execute("UPDATE _db_row_audiences SET tbl = ? WHERE tbl = ?", (name, staged))


def read(conn: sqlite3.Connection, name: str, keys: Iterable[str]) -> dict[str, frozenset[str]]:
    """The audiences of rows by key text. Raises ValueError, TypeError where what is kept can't be read."""
    rows = select_in(conn, "SELECT key, audiences FROM _db_row_audiences WHERE tbl = ? AND key IN {in}", keys, (name,))
    return {key: of_text(text) for key, text in rows}


def has_any(conn: sqlite3.Connection, name: str, keys: Iterable[str]) -> bool:
    """Whether the base has one of these rows."""
    return bool(select_in(conn, "SELECT 1 FROM _db_row_audiences WHERE tbl = ? AND key IN {in} LIMIT 1", keys, (name,)))


def counts(conn: sqlite3.Connection, name: str) -> tuple[int, Counter[str]]:
    """How many rows of a table have audiences kept, and how many of them are each audience's."""
    rows, by_audience = 0, Counter[str]()
    for text, count in conn.execute(
        "SELECT audiences, count(*) FROM _db_row_audiences WHERE tbl = ? GROUP BY audiences", (name,)
    ).fetchall():
        rows += count
        by_audience.update(dict.fromkeys(of_text(text), count))
    return rows, by_audience


def keys_of(conn: sqlite3.Connection, name: str, audiences: frozenset[str]) -> Iterator[list[str]]:
    """The key texts of rows that are of one of these audiences, some at a time. Raises ValueError, TypeError where what
    is kept can't be read."""
    return _those(conn, name, lambda text: not of_text(text).isdisjoint(audiences))


def seen_through(
    conn: sqlite3.Connection, name: str, lost: frozenset[str], left: frozenset[str]
) -> Iterator[list[str]]:
    """The key texts of rows that are of one of the audiences ``lost`` and of none of those ``left``, some at a time:
    those given may be removed before the next are asked for. A row whose audiences can't be read is among them."""

    def goes(text: str) -> bool:
        try:
            audiences = of_text(text)
        except (ValueError, TypeError):
            return True
        return not audiences.isdisjoint(lost) and audiences.isdisjoint(left)

    return _those(conn, name, goes)


def _those(conn: sqlite3.Connection, name: str, is_wanted: Callable[[str], bool]) -> Iterator[list[str]]:
    known: dict[str, bool] = {}
    # A key may be the empty text.
    after, beyond = "", ">="
    while True:
        rows = conn.execute(
            f"SELECT key, audiences FROM _db_row_audiences WHERE tbl = ? AND key {beyond} ? ORDER BY key LIMIT ?",
            (name, after, _AT_ONCE),
        ).fetchall()
        if not rows:
            return
        after, beyond = rows[-1][0], ">"
        known.update((text, is_wanted(text)) for _, text in rows if text not in known)
        if keys := [key for key, text in rows if known[text]]:
            yield keys
