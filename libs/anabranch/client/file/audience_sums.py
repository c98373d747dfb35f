"""Sums of the rows of each audience of a restricted table, kept beside the table's own sum while bases change.

There is a sum for exactly those audiences of a table whose every row the file has: an audience that it holds and that
has none is still to be pulled. ``disagrees``: the position since which the sum is not the server's, 0 while it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from anabranch.client.file.sets import change_in, select_in
from anabranch.values.canonical import SUM_MODULUS

NO_ROWS = (0, 0)
"""The sum of no rows."""
_HASH_BYTES = 16


def complete(conn: sqlite3.Connection, table: str) -> frozenset[str]:
    """The audiences of a table whose every row the file has."""
    rows = conn.execute("SELECT audience FROM _db_audience_sums WHERE tbl = ?", (table,))
    return frozenset(audience for (audience,) in rows)


def add(conn: sqlite3.Connection, table: str, changes: Mapping[str, tuple[int, int]]) -> None:
    """Change the kept sums of a table: by audience, how many rows came, and the change of their hashes' sum. Audiences
    that are not complete are left out."""
    query = "SELECT audience, count, hash FROM _db_audience_sums WHERE tbl = ? AND audience IN {in}"
    changed = []
    for audience, count, digest in select_in(conn, query, changes, (table,)):
        rows, more = changes[audience]
        changed.append((count + rows, as_bytes(int.from_bytes(digest, "big") + more), table, audience))
    conn.executemany("UPDATE _db_audience_sums SET count = ?, hash = ? WHERE tbl = ? AND audience = ?", changed)


def keep(conn: sqlite3.Connection, table: str, sums: Mapping[str, tuple[int, int]]) -> None:
    """Keep the sums (count, sum of hashes) of audiences that are complete from now on."""
    conn.executemany(
        "INSERT OR REPLACE INTO _db_audience_sums (tbl, audience, count, hash) VALUES (?, ?, ?, ?)",
        [(table, audience, count, as_bytes(total)) for audience, (count, total) in sums.items()],
    )


def clear(conn: sqlite3.Connection, table: str) -> None:
    """Forget all sums of a table."""
    conn.execute("DELETE FROM _db_audience_sums WHERE tbl = ?", (table,))


def forget(conn: sqlite3.Connection, audiences: Iterable[str]) -> None:
    """Forget the sums of audiences that are no longer held."""
    change_in(conn, "DELETE FROM _db_audience_sums WHERE audience IN {in}", audiences)


def all_of(conn: sqlite3.Connection, table: str) -> dict[str, tuple[int, bytes]]:
    """The kept sums of a table by audience: count and hash."""
    rows = conn.execute("SELECT audience, count, hash FROM _db_audience_sums WHERE tbl = ?", (table,))
    return {audience: (count, digest) for audience, count, digest in rows}


def reduced(total: int) -> int:
    """A sum of hashes as sums keep it."""
    return total % SUM_MODULUS


def as_bytes(total: int) -> bytes:
    """A sum of hashes as it is kept and sent, 16 bytes."""
    return reduced(total).to_bytes(_HASH_BYTES, "big")


def recounted(conn: sqlite3.Connection, table: str, sums: Mapping[str, tuple[int, int]]) -> None:
    """Keep other sums (count, sum of hashes) of the audiences that are complete, and leave the others out."""
    conn.executemany(
        "UPDATE _db_audience_sums SET count = ?, hash = ? WHERE tbl = ? AND audience = ?",
        [
            (count, as_bytes(total), table, audience)
            for audience in complete(conn, table)
            for count, total in [sums.get(audience, NO_ROWS)]
        ],
    )
