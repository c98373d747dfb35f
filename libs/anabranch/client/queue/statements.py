"""The queue's statements: batches that wait for a verdict, or for the log to show them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from anabranch.client.file.sets import change_in, select_in


class Queued(NamedTuple):
    """A batch of the queue. ``prev``: the nearest earlier one in it, or ""."""

    id: str
    value: bytes
    basis: int
    prev: str


def add(
    conn: sqlite3.Connection,
    batch_id: str,
    value: bytes,
    basis: int,
    rows: Iterable[tuple[str, str]],
) -> None:
    """Queue a batch that touches ``rows`` (table, key text)."""
    conn.execute("INSERT INTO _db_mutations_queue (id, value, basis) VALUES (?, ?, ?)", (batch_id, value, basis))
    conn.executemany(
        "INSERT OR IGNORE INTO _db_pending_rows (tbl, key, batch) VALUES (?, ?, ?)",
        [(table, key, batch_id) for table, key in rows],
    )


def count(conn: sqlite3.Connection) -> int:
    """Batches in the queue."""
    found: int = conn.execute("SELECT count(*) FROM _db_mutations_queue").fetchone()[0]
    return found


def is_empty(conn: sqlite3.Connection) -> bool:
    """Whether the queue is empty, so that every row is shown as its base."""
    return conn.execute("SELECT 1 FROM _db_mutations_queue LIMIT 1").fetchone() is None


def has_unsent(conn: sqlite3.Connection) -> bool:
    """Whether a batch has no verdict yet."""
    found = conn.execute("SELECT 1 FROM _db_mutations_queue WHERE server_timestamp_ms IS NULL LIMIT 1").fetchone()
    return found is not None


def unsent(conn: sqlite3.Connection, after: str, max_count: int, max_bytes: int, before: str = "~") -> list[Queued]:
    """Batches without a verdict with ``after`` < id < ``before``, in order; at most ``max_count`` and, beyond the
    first one, no more than ``max_bytes`` of payload."""
    out: list[Queued] = []
    size = 0
    cursor = conn.execute(
        """SELECT id, value, basis,
                  coalesce((SELECT max(p.id) FROM _db_mutations_queue p WHERE p.id < q.id), '')
           FROM _db_mutations_queue q
           WHERE server_timestamp_ms IS NULL AND id > ? AND id < ? ORDER BY id LIMIT ?""",
        (after, before, max_count),
    )
    for row in cursor:
        queued = _queued(row)
        size += len(queued.value)
        if out and size > max_bytes:
            cursor.close()
            break
        out.append(queued)
    return out


def _queued(row: tuple[Any, ...]) -> Queued:
    """A row as a batch; one that is damaged has no bytes, so that it is found out where it is sent."""
    batch_id, value, basis, prev = row
    return Queued(*row) if type(value) is bytes and type(basis) is int else Queued(batch_id, b"", 0, prev)


def envelope(conn: sqlite3.Connection, batch_id: str) -> Queued | None:
    """The batch of that id; None where the queue has none."""
    row = conn.execute(
        """SELECT id, value, basis, coalesce((SELECT max(p.id) FROM _db_mutations_queue p WHERE p.id < q.id), '')
           FROM _db_mutations_queue q WHERE id = ?""",
        (batch_id,),
    ).fetchone()
    return None if row is None else _queued(row)


class InQueue(NamedTuple):
    """A batch of the queue, as far as the overlay needs it. ``position_ms``: that of its verdict, None before."""

    value: bytes
    seen: bool
    position_ms: int | None


def find(conn: sqlite3.Connection, ids: Iterable[str]) -> dict[str, InQueue]:
    """Those of ``ids`` that are in the queue."""
    sql = "SELECT id, value, seen, server_timestamp_ms FROM _db_mutations_queue WHERE id IN {in}"
    return {i: InQueue(value, bool(seen), position) for i, value, seen, position in select_in(conn, sql, ids)}


def which(conn: sqlite3.Connection, ids: Iterable[str]) -> list[str]:
    """Those of ``ids`` that are in the queue, in order."""
    return sorted(i for (i,) in select_in(conn, "SELECT id FROM _db_mutations_queue WHERE id IN {in}", ids))


def without_verdict(conn: sqlite3.Connection, ids: Iterable[str]) -> set[str]:
    """Those of ``ids`` that are in the queue and whose verdict has never come."""
    sql = "SELECT id FROM _db_mutations_queue WHERE verdict IS NULL AND id IN {in}"
    return {i for (i,) in select_in(conn, sql, ids)}


def accepted(conn: sqlite3.Connection, verdicts: Sequence[tuple[str, int, bytes]]) -> None:
    """Note the positions of accepted batches: id, position in milliseconds, serialized Verdict."""
    conn.executemany(
        "UPDATE _db_mutations_queue SET server_timestamp_ms = ?, verdict = ? WHERE id = ?",
        [(position, verdict, i) for i, position, verdict in verdicts],
    )


def mark_seen(conn: sqlite3.Connection, ids: Sequence[str]) -> None:
    """Note that the log, or a pull, has shown these batches."""
    change_in(conn, "UPDATE _db_mutations_queue SET seen = 1 WHERE id IN {in}", ids)


def covered(conn: sqlite3.Connection, position_ms: int) -> list[str]:
    """Batches whose verdict lies at or below a position and that neither log nor pull has shown."""
    rows = conn.execute(
        "SELECT id FROM _db_mutations_queue WHERE server_timestamp_ms IS NOT NULL AND NOT seen "
        "AND server_timestamp_ms <= ? ORDER BY id",
        (position_ms,),
    )
    return [i for (i,) in rows]


def ask_again(conn: sqlite3.Connection, ids: Sequence[str]) -> list[str]:
    """Forget the verdicts of batches that the log has passed without showing them, so that they are sent again. Return
    those for which that was done before."""
    again = [i for (i,) in select_in(conn, "SELECT id FROM _db_mutations_queue WHERE asked_again AND id IN {in}", ids)]
    change_in(conn, "UPDATE _db_mutations_queue SET server_timestamp_ms = NULL, asked_again = 1 WHERE id IN {in}", ids)
    return again


# A row's batches are walked in order, and only as far as the first one: thousands may touch the same row.
_EARLIEST_UNSEEN = """
SELECT r.tbl, r.key, (
    SELECT p.batch FROM _db_pending_rows p CROSS JOIN _db_mutations_queue q ON q.id = p.batch
    WHERE p.tbl = r.tbl AND p.key = r.key AND NOT q.seen ORDER BY p.batch LIMIT 1)
FROM (SELECT DISTINCT tbl, key FROM _db_pending_rows WHERE batch IN {in}) r
"""


def leaving(conn: sqlite3.Connection) -> list[str]:
    """Seen batches that may leave: every earlier batch that touches one of their rows has left, or leaves now."""
    seen = [i for (i,) in conn.execute("SELECT id FROM _db_mutations_queue WHERE seen ORDER BY id")]
    if not seen:
        return []
    rows_of: dict[str, list[tuple[str, str]]] = {i: [] for i in seen}
    touched = select_in(conn, "SELECT DISTINCT batch, tbl, key FROM _db_pending_rows WHERE batch IN {in}", seen)
    for batch, table, key in touched:
        rows_of[batch].append((table, key))
    # Per row the earliest batch that stays; a seen one that is behind such a batch stays, too.
    staying = {
        (table, key): batch for table, key, batch in select_in(conn, _EARLIEST_UNSEEN, seen) if batch is not None
    }
    out: list[str] = []
    for batch in seen:
        if any(staying.get(row, "~") < batch for row in rows_of[batch]):
            for row in rows_of[batch]:
                staying[row] = min(batch, staying.get(row, "~"))
        else:
            out.append(batch)
    return out


def remove(conn: sqlite3.Connection, ids: Sequence[str]) -> None:
    """Take batches out of the queue and of the overlay's index. Ids of calls whose answer is missing are kept apart:
    they still prove to the server whose call it was."""
    change_in(conn, "DELETE FROM _db_pending_rows WHERE batch IN {in}", ids)
    change_in(conn, "DELETE FROM _db_mutations_queue WHERE id IN {in}", ids)


def confirm(conn: sqlite3.Connection, ids: Sequence[str], position_ms: int) -> None:
    """Keep batches that are about to leave, with their position (``position_ms`` where no verdict has come)."""
    change_in(
        conn,
        """INSERT OR REPLACE INTO _db_confirmed (id, value, position, basis, verdict)
           SELECT id, value, coalesce(server_timestamp_ms, ?), basis, verdict
           FROM _db_mutations_queue WHERE id IN {in}""",
        ids,
        (position_ms,),
    )


def pending_after(conn: sqlite3.Connection, table: str, key: str, after: str) -> list[tuple[str, bytes]]:
    """The batches after the one called ``after`` that touch a row, in order, with their payloads."""
    return conn.execute(
        """SELECT p.batch, q.value FROM _db_pending_rows p CROSS JOIN _db_mutations_queue q ON q.id = p.batch
           WHERE p.tbl = ? AND p.key = ? AND p.batch > ? ORDER BY p.batch""",
        (table, key, after),
    ).fetchall()


def is_before(conn: sqlite3.Connection, table: str, key: str, batch: str) -> bool:
    """Whether an earlier batch than this one touches a row."""
    found = conn.execute(
        "SELECT 1 FROM _db_pending_rows WHERE tbl = ? AND key = ? AND batch < ? LIMIT 1", (table, key, batch)
    ).fetchone()
    return found is not None


def touches(conn: sqlite3.Connection, table: str) -> bool:
    """Whether the queue touches rows of ``table``."""
    return conn.execute("SELECT 1 FROM _db_pending_rows WHERE tbl = ? LIMIT 1", (table,)).fetchone() is not None


def rows_of_seen(conn: sqlite3.Connection, table: str) -> set[str]:
    """The key texts of rows of ``table`` that batches touch which were seen and have not left."""
    rows = conn.execute(
        """SELECT p.key FROM _db_mutations_queue q CROSS JOIN _db_pending_rows p ON p.batch = q.id
           WHERE q.seen AND p.tbl = ?""",
        (table,),
    )
    return {key for (key,) in rows}


def pending_of(conn: sqlite3.Connection, table: str, keys: Iterable[str]) -> dict[str, list[str]]:
    """The batches that touch rows of ``table``, by key text, in order."""
    rows = select_in(
        conn,
        "SELECT key, batch FROM _db_pending_rows WHERE tbl = ? AND key IN {in}",
        keys,
        (table,),
    )
    out: dict[str, list[str]] = {}
    for key, batch in sorted(rows):
        out.setdefault(key, []).append(batch)
    return out


def confirmed_after(conn: sqlite3.Connection, position_ms: int) -> list[str]:
    """The ids of batches that were accepted after a position, whether they have left the queue or not, in order."""
    rows = conn.execute(
        """SELECT id FROM _db_confirmed WHERE position > :after
           UNION SELECT id FROM _db_mutations_queue WHERE server_timestamp_ms > :after ORDER BY 1""",
        {"after": position_ms},
    )
    return [i for (i,) in rows]


def which_confirmed(conn: sqlite3.Connection, ids: Iterable[str]) -> list[str]:
    """Those of ``ids`` that have left the queue as accepted, in order."""
    return sorted(i for (i,) in select_in(conn, "SELECT id FROM _db_confirmed WHERE id IN {in}", ids))
